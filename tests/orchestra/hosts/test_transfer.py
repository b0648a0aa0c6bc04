"""Files travel whole between hosts, in pieces between which other messages pass."""

import errno
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra import Actor, CannotWrite, Message, Node, Ref, Request, Unreachable, UsageError, on
from orchestra.hosts import transfer
from orchestra.hosts.transfer import (
    FILES,
    PIECE,
    Collector,
    FilePieceMsg,
    Files,
    SendFilesMsg,
    checked_name,
    collect_files,
    send_bytes,
)
from orchestra.nodes.node_actors import COLLECTOR

Run = Callable[..., Any]
SECRET = bytes(32)


class NoteMsg(Message):
    number: int


class SaveMsg(Request[str]):
    pattern: str
    into: str


class Saver(Actor[SaveMsg]):
    """Stands for an Orchestrator: it collects what the workers of other hosts have saved."""

    @on(SaveMsg)
    async def save(self, msg: SaveMsg) -> str:
        return await collect_files(self.me.address, msg.pattern, msg.into)


class Hosts:
    """The head and two agents, each with a folder of its own."""

    def __init__(self, head: Node, agents: list[Node], folder: Path) -> None:
        self.head, self.agents = head, agents
        self.run = folder / "head"
        self.files = head.spawn(FILES, Files, self.run, allowed=("state", "traces"))
        self.scratch = [folder / agent.name for agent in agents]
        self.refs: list[Ref[Any]] = []
        for agent, scratch in zip(agents, self.scratch, strict=True):
            agent.spawn(FILES, Files, scratch)
            self.refs.append(head.ref(f"{agent.name}/{FILES}"))
        head.spawn(COLLECTOR, Collector, self.files, lambda: [agent.name for agent in self.agents])


@asynccontextmanager
async def hosts(folder: Path) -> AsyncIterator[Hosts]:
    async with Node("head", listen="tcp://127.0.0.1:0", secret=SECRET).running() as head:
        join = {"listen": "tcp://127.0.0.1:0", "join": head.listening, "secret": SECRET}
        async with Node("agent-1", **join).running() as one, Node("agent-2", **join).running() as two:
            yield Hosts(head, [one, two], folder)


def written(folder: Path, name: str, nbytes: int) -> bytes:
    data = np.random.default_rng(nbytes).bytes(nbytes)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def below(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


@pytest.mark.parametrize("nbytes", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_file_arrives_whole_whatever_its_size(run: Run, tmp_path: Path, nbytes: int) -> None:
    async def main() -> None:
        async with hosts(tmp_path) as these:
            data = written(tmp_path, "source", nbytes)
            await send_bytes(these.refs[0], data, "code.zip")
            assert (these.scratch[0] / "code.zip").read_bytes() == data
            back = written(these.scratch[0], "traces/worker-1.17.trace", nbytes)
            sent = await these.refs[0].ask(SendFilesMsg(patterns=("traces/worker-1.*",), to=these.files))
            assert (sent.names, sent.nbytes, sent.error) == (("traces/worker-1.17.trace",), nbytes, "")
            assert (these.run / "traces" / "worker-1.17.trace").read_bytes() == back
            assert not below(tmp_path, "**/*.incoming")

    run(main())


def test_other_messages_pass_between_the_pieces(run: Run, tmp_path: Path) -> None:
    order: list[int] = []

    class Counter(Actor[NoteMsg | FilePieceMsg]):
        """Takes pieces, and notes when another message came."""

        @on(FilePieceMsg)
        def piece(self, msg: FilePieceMsg) -> str:
            order.append(msg.offset // PIECE)
            if msg.offset == 0:
                self.me.tell_nowait(NoteMsg(number=-1))
            return ""

        @on(NoteMsg)
        def note(self, msg: NoteMsg) -> None:
            order.append(msg.number)

    async def main() -> None:
        async with hosts(tmp_path) as these:
            these.agents[0].spawn("counter", Counter)
            await send_bytes(these.head.ref("agent-1/counter"), bytes(3 * PIECE), "code.zip")
            assert order == [0, -1, 1, 2]

    run(main())


def test_what_the_agents_have_saved_is_in_the_heads_folder_before_the_answer(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosts(tmp_path) as these:
            expected = {}
            for number, scratch in enumerate(these.scratch):
                name = f"worker-{number}.worker.npz"
                expected[name] = written(scratch, f"state/steps-7.unfinished/{name}", PIECE + number)
                written(scratch, f"state/steps-6.unfinished/{name}", 1)
            saver = these.head.spawn("saver", Saver)
            request = SaveMsg(pattern="state/steps-7.unfinished/*", into="state/steps-8.unfinished")
            assert await saver.ask(request) == ""
            folder = these.run / "state" / "steps-8.unfinished"
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
            assert not below(tmp_path, "agent-*/state/steps-7.unfinished/*")

    run(main())


def test_a_run_on_one_host_has_nothing_to_collect(run: Run) -> None:
    async def main() -> None:
        async with Node("alone").running() as node:
            saver = node.spawn("saver", Saver)
            assert await saver.ask(SaveMsg(pattern="state/*", into="state")) == ""

    run(main())


def test_the_files_of_a_host_that_is_lost_are_missing_and_nothing_else(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosts(tmp_path) as these:
            written(these.scratch[1], "state/new/worker.npz", 10)
            await these.agents[0].cell(f"agent-1/{FILES}").stop()
            request = transfer.CollectFilesMsg(pattern="state/new/*", into="state/new")
            assert await these.head.ref(f"head/{COLLECTOR}").ask(request) == ""
            assert [path.name for path in (these.run / "state" / "new").iterdir()] == ["worker.npz"]

    run(main())


def test_a_full_disk_ends_a_transfer_with_its_reason_and_leaves_no_part(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive = transfer.Arriving.write

    def full(self: transfer.Arriving, data: bytes) -> None:
        if self.nbytes >= PIECE:
            raise OSError(errno.ENOSPC, "No space left on device")
        arrive(self, data)

    async def main() -> None:
        async with hosts(tmp_path) as these:
            monkeypatch.setattr(transfer.Arriving, "write", full)
            with pytest.raises(CannotWrite, match=r"^cannot write code\.zip: No space left on device$"):
                await send_bytes(these.refs[0], bytes(3 * PIECE), "code.zip")
            assert not below(tmp_path, "**/code.zip*")
            written(these.scratch[0], "state/new/worker.npz", 2 * PIECE)
            request = transfer.CollectFilesMsg(pattern="state/new/*", into="state/new")
            answer = await these.head.ref(f"head/{COLLECTOR}").ask(request)
            assert "cannot write state/new/worker.npz: No space left on device" in answer

    run(main())


def test_a_piece_that_does_not_follow_and_a_damaged_file_are_refused(run: Run, tmp_path: Path) -> None:
    def piece(offset: int, data: bytes, digest: str = "") -> FilePieceMsg:
        return FilePieceMsg(name="code.zip", offset=offset, data=data, digest=digest)

    async def main() -> None:
        async with hosts(tmp_path) as these:
            (agent, _) = these.refs
            assert "from byte 5 on does not follow" in await agent.ask(piece(5, b"there"))
            assert await agent.ask(piece(0, b"hello")) == ""
            assert "from byte 7 on does not follow" in await agent.ask(piece(7, b"there"))
            digest = hashlib.sha256(b"hello there").hexdigest()
            assert "is not what was sent" in await agent.ask(piece(5, b" THERE", digest))
            assert not below(these.scratch[0], "*")
            assert await agent.ask(piece(0, b"hello there", digest)) == ""  # the next attempt begins anew

    run(main())


def test_a_transfer_to_an_agent_that_is_gone_fails(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosts(tmp_path) as these:
            await these.agents[0].cell(f"agent-1/{FILES}").stop()
            with pytest.raises(Unreachable):
                await send_bytes(these.refs[0], b"code", "code.zip")

    run(main())


@pytest.mark.parametrize("name", ["/etc/passwd", "../state/x", "state/../../x", "", "state/x\0"])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a file below this folder"):
        checked_name(name)


def test_agents_write_into_a_few_folders_of_the_head_alone(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with hosts(tmp_path) as these:
            written(these.scratch[0], "config.json", 1)
            sent = await these.refs[0].ask(SendFilesMsg(patterns=("config.json",), to=these.files))
            assert "'config.json' is not allowed; files may arrive in state, traces" in sent.error
            assert not these.run.exists()

    run(main())
