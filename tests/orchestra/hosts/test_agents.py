"""Agents: all that come are let in, and those that may not come are told why."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra import Actor, Node, Unreachable, on
from orchestra.cli.exit_codes import NOT_LET_IN
from orchestra.hosts.agent import Agent
from orchestra.hosts.messages import HEAD, AdmittedMsg, HostMsg, LeaveMsg
from orchestra.hosts.scratch import Scratch
from orchestra.hosts.token import JoinToken
from orchestra.nodes import peers
from orchestra.runs import join_file
from orchestra.runs.run_directory import RunDirectory
from orchestra.wire import admission
from orchestra.wire.admission import Admission

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents run on Linux")
Run = Callable[..., Any]
AGENTS, PLACES = 100, 64


@asynccontextmanager
async def held(address: str, released: asyncio.Event) -> AsyncIterator[str]:
    """Lead to a TCP address, and pass nothing on before `released` is set."""
    host, port = address.partition("://")[2].rsplit(":", 1)
    tasks: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await released.wait()
                writer.write(data)
        writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        tasks.update([asyncio.create_task(pipe(reader, other_writer)), asyncio.create_task(pipe(other_reader, writer))])

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, backlog=2 * AGENTS)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*tasks)


def test_a_hundred_agents_that_come_at_once_are_all_let_in_though_fewer_may_be_unproven(
    run: Run, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection proves itself before as many as are too many were turned away: their agents have to come again."""
    monkeypatch.setattr(admission, "MAX_PER_SOURCE", PLACES)
    monkeypatch.setattr(peers, "DIALS", 1)  # else a node that is turned away comes again before its agent knows
    turned_away: list[Any] = []
    as_many_as_must_be = asyncio.Event()
    add = Admission.add

    def noted(self: Admission[Any], connection: Any, source: str) -> Any:
        if (dropped := add(self, connection, source)) is not None:
            turned_away.append(dropped)
        if len(turned_away) >= AGENTS - PLACES:
            as_many_as_must_be.set()
        return dropped

    monkeypatch.setattr(Admission, "add", noted)

    async def main() -> None:
        token = JoinToken.new("a-run", (), tls=None)
        async with (
            Node("learner", listen="tcp://127.0.0.1:0", secret=token.secret).running() as root,
            held(root.listening, as_many_as_must_be) as address,
            AsyncExitStack() as stack,
        ):

            async def joins(slot: int) -> Node | None:
                scratch: Any = SimpleNamespace(socket_address=lambda name: f"unix://{sockets}/{slot}")
                return await Agent(token.joining(address), slot=slot)._join(stack, scratch)

            nodes = [node for node in await asyncio.gather(*map(joins, range(1, AGENTS + 1))) if node is not None]
            assert len(nodes) == len(root.peers.names) == AGENTS
            assert len(turned_away) >= AGENTS - PLACES
            await asyncio.gather(*(node.stop() for node in nodes))

    run(main())


def test_an_orphan_gives_up_in_time_although_something_accepts_its_connections(
    run: Run, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ssh server whose client is cut off accepts what goes into its tunnel, and nothing ever comes back."""
    monkeypatch.setattr("orchestra.wire.handshake.ANSWER_SECONDS", 1000.0)

    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(sockets / "tunnel"))
            silent.listen()
            token = JoinToken.new("a-run", (f"tunnel://{sockets}/tunnel",), tls=None)
            scratch: Any = SimpleNamespace(socket_address=lambda name: f"unix://{sockets}/agent")
            agent = Agent(token, slot=1, join_timeout=0.3)
            async with AsyncExitStack() as stack, asyncio.timeout(20.0):
                with pytest.raises(
                    Unreachable, match="the head of a-run cannot be found: nothing has answered in time"
                ):
                    await agent._join(stack, scratch)
                agent._admitted = AdmittedMsg(slot=1)
                assert await agent._join(stack, scratch) is None
        (sockets / "tunnel").unlink()

    run(main())


def test_an_agent_joins_though_the_name_of_the_head_does_not_resolve_on_its_host(
    run: Run, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether no server answers the question for the name, or one says that there is none."""
    asked: list[str] = []

    async def connect(self: Any, protocol: Any, host: str, *more: Any, **options: Any) -> Any:
        if not host.endswith(".invalid"):
            return await connected(self, protocol, host, *more, **options)
        asked.append(host)
        if host.startswith("silent"):
            await asyncio.Event().wait()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def main() -> None:
        nonlocal connected
        kind = type(asyncio.get_running_loop())
        connected = kind.create_connection
        monkeypatch.setattr(kind, "create_connection", connect)
        token = JoinToken.new("a-run", (), tls=None)
        scratch: Any = SimpleNamespace(socket_address=lambda name: f"unix://{sockets}/agent")
        async with Node("learner", listen="tcp://127.0.0.1:0", secret=token.secret).running() as root:
            port = root.listening.rpartition(":")[2]
            names = [f"tcp://{name}.invalid:{port}" for name in ("silent", "unknown")]
            agent = Agent(token.joining(",".join([*names, root.listening])), slot=1, join_timeout=60.0)
            async with AsyncExitStack() as stack, asyncio.timeout(30.0):
                node = await agent._join(stack, scratch)
                assert node is not None
                assert node.peers.joined_by == root.listening
                await node.stop()
                alone = Agent(token.joining(",".join(names)), slot=2, join_timeout=1.0)
                with pytest.raises(Unreachable, match="the head of a-run cannot be found"):
                    await alone._join(stack, scratch)

    connected: Any = None
    run(main())
    assert set(asked) == {"silent.invalid", "unknown.invalid"}


@pytest.mark.parametrize("dial_on", [False, True])
def test_nobody_listening_is_the_end_of_a_head_unless_it_may_be_started_again(
    run: Run, sockets: Path, dial_on: bool
) -> None:
    """The agent has been in the run: its first head is there no more when it looks for it again."""

    async def main() -> None:
        token = JoinToken.new("a-run", (), tls=None)
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        scratch: Any = SimpleNamespace(socket_address=lambda name: f"unix://{sockets}/agent")
        agent = Agent(token.joining(address), slot=1, join_timeout=25.0, dial_on=dial_on)
        agent._admitted, agent._joined_by = AdmittedMsg(slot=1), address
        said: list[str] = []
        agent._say = said.append  # type: ignore[method-assign]
        async with AsyncExitStack() as stack:
            joining = asyncio.create_task(agent._join(stack, scratch))
            if not dial_on:
                assert await joining is None
                assert said[-1].startswith("the head is dead: ")
                return
            while not said:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with Node("learner", listen=address, secret=token.secret).running():
                node = await joining
                assert node is not None
                assert node.root == "learner"
                await node.stop()

    run(main())


class Desk(Actor[HostMsg]):
    """In the place of a head: lets the first agent in, tells it at once to leave, and then refuses it."""

    def __init__(self, came: "asyncio.Queue[int]", order: LeaveMsg) -> None:
        self._came, self._order, self._over = came, order, False

    @on(HostMsg)
    async def admit(self, msg: HostMsg) -> AdmittedMsg:
        self._came.put_nowait(msg.pid)
        if self._over:
            return AdmittedMsg(refusal="a-run is over", code=self._order.code, rejoin=self._order.rejoin)
        self._over = True
        await msg.agent.tell(self._order)
        return AdmittedMsg(slot=1)


@pytest.mark.parametrize("dial_on", [False, True])
def test_an_agent_that_dials_on_stays_for_the_head_that_goes_on_with_a_stopped_run(
    run: Run, tmp_path: Path, dial_on: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    token = JoinToken.new("a-run", (address,), tls=None)
    came: asyncio.Queue[int] = asyncio.Queue()

    @asynccontextmanager
    async def head(order: LeaveMsg) -> AsyncIterator[None]:
        async with Node("learner", listen=address, secret=token.secret).running() as node:
            node.spawn(HEAD, Desk, came, order)
            yield

    async def main() -> None:
        words = ["-m", "orchestra", "host", "--token", "-", "--scratch", str(tmp_path), *["--dial-on"][: int(dial_on)]]
        async with head(LeaveMsg(code=75, reason="stopped", deadline=0.1, rejoin=True)):
            agent = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=subprocess.PIPE)
            assert agent.stdin is not None
            agent.stdin.write(token.line().encode())
            assert await came.get() == agent.pid
            if not dial_on:
                assert await agent.wait() == 75
                return
            assert await came.get() == agent.pid, "it has not looked for another head"
        async with head(LeaveMsg(code=0, reason="done", deadline=0.1)):
            while not came.empty():
                came.get_nowait()
            assert await came.get() == agent.pid
            assert await agent.wait() == 0

    run(main())


async def started(token: str, folder: Path) -> tuple[int | None, str]:
    """Return the exit code of an agent with this token, and what it said."""
    words = ("-m", "orchestra", "host", "--token", "-", "--scratch", str(folder), "--join-timeout", "20")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, said = await process.communicate(token.encode())
    return process.returncode, said.decode()


def test_an_agent_with_the_token_of_another_run_or_an_expired_one_ends_with_77_and_says_which(
    run: Run, tmp_path: Path
) -> None:
    async def main() -> None:
        async with Node("learner", listen="tcp://127.0.0.1:0", secret=bytes(range(32))).running() as root:
            ended = JoinToken.new("yesterdays-run", (root.listening,), tls=None)
            expired = JoinToken(
                "last-months-run", ended.secret, ended.join, None, datetime.now(UTC) - timedelta(days=1)
            )
            found = await asyncio.gather(*(started(token.line(), tmp_path) for token in (ended, expired)))
            assert [code for code, _ in found] == [NOT_LET_IN, NOT_LET_IN]
            assert "the join token is that of yesterdays-run, which has ended or is elsewhere" in found[0][1]
            assert "the join token of last-months-run in standard input expired on" in found[1][1]
            assert not any("Traceback" in said for _, said in found)
            assert root.peers.names == ()

    run(main())
    assert not list(tmp_path.glob("orchestra-*/*/owner.json")), "folders are left"


STRANGER = """
import os, sys
from pathlib import Path
from orchestra.cli.main import main
from orchestra.hosts.scratch import Scratch
run, base = Path(sys.argv[1]), Path(sys.argv[2])
main(["ps", str(run / "absent")])  # whatever is imported late: the stranger may not read the interpreter's files
Scratch.claim("a-run", 9, base).close()
os.setgroups([]), os.setgid(65534), os.setuid(65534)
print(main(["ps", str(run)]), flush=True)
scratch = Scratch.claim("a-run", 1, base)
print(scratch.folder)
for path in base.iterdir():
    try:
        list(path.iterdir())
    except PermissionError:
        print("closed", path.name)
scratch.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED HERE: only root can become another user")
def test_two_users_on_a_host_see_nothing_of_each_others_runs(sockets: Path) -> None:
    sockets.chmod(0o711)
    base, folder = sockets / "scratch", sockets / "run"
    base.mkdir()
    base.chmod(0o1777)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    info = join_file.JoinInfo("tcp://127.0.0.1:1", bytes(32), os.getpid(), "", None)
    mine = Scratch.claim("a-run", 1, base)
    try:
        with join_file.opened(RunDirectory(folder), info):
            words = [sys.executable, "-c", STRANGER, str(folder), str(base)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        code, theirs, *closed = done.stdout.splitlines()
        assert code == "2"
        assert "only the user who started a run can look into it" in done.stderr
        assert Path(theirs) == base / "orchestra-65534" / "a-run-1"
        assert sorted(closed) == sorted(f"closed {path.name}" for path in (mine.home, mine.sockets))
        assert (mine.folder / "owner.json").exists(), "a stranger has removed it"
    finally:
        mine.close()
