"""An address of several candidates: the first that proves itself is used, whatever the others do."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from orchestra import Actor, Message, Node, Unreachable, on
from orchestra.cli.exit_codes import NOT_LET_IN, OTHER_VERSION, of_error
from orchestra.errors import AuthenticationFailed, HandshakeError, NobodyListens, OrchestraError, VersionMismatch
from orchestra.hosts.certificates import make_credentials
from orchestra.nodes.dialling import JOIN_BACKOFF_MAX_S, STAGGER_S, Claim, Dialler
from orchestra.testing import Simulation, run_seed
from orchestra.wire.frames import VERSION
from orchestra.wire.transports import stream
from orchestra.wire.transports.tunnel import HEAD_START_S

Run = Callable[..., Any]
SECRET = b"the run's secret".ljust(32)
NOW = datetime.now(UTC)
UNTIL = NOW + timedelta(days=30)


class NoteMsg(Message):
    n: int


class Notes(Actor[NoteMsg]):
    def __init__(self, heard: "asyncio.Queue[int]") -> None:
        self.heard = heard

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        self.heard.put_nowait(msg.n)


# ─── the race, in virtual time ───


class Log:
    """In the place of a node's log: a simulation keeps its own."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def warning(self, event: str, *, reason: str) -> None:
        assert event == "not joined yet"
        self.reasons.append(reason)


Attempt = Callable[[Claim], Coroutine[Any, Any, None]]
Began = dict[str, float]


def raced(
    attempts: dict[str, Attempt], *, reached: str = "", join_s: float | None = None
) -> tuple[str | OrchestraError, Began, float, list[str]]:
    """Return what a race came to, when each candidate began for the first time, how long it took, and the log."""
    outcome: list[str | OrchestraError] = []
    began: Began = {}
    took: list[float] = []
    log: Any = Log()

    async def scenario(sim: Simulation) -> None:
        loop = asyncio.get_running_loop()
        here = sim.node("here")
        await sim.start()
        dialler = Dialler(here.node.peers._settings, log)
        start = loop.time()

        async def attempt(candidate: str, claim: Claim) -> None:
            began.setdefault(candidate, round(loop.time() - start, 6))
            await attempts[candidate](claim)

        try:
            if join_s is None:
                outcome.append(await dialler.first(",".join(attempts), reached, attempt))
            else:
                outcome.append(await dialler.join(lambda: dialler.first(",".join(attempts), "", attempt), join_s))
        except OrchestraError as error:
            outcome.append(error)
        took.append(round(loop.time() - start, 6))
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("dial ")], "all are ended"

    run_seed(scenario, 1)
    return outcome[0], began, took[0], log.reasons


async def answers(claim: Claim) -> None:
    assert claim()


async def silent(claim: Claim) -> None:
    await asyncio.sleep(3.0)
    raise Unreachable("no answer")


def fails(error: OrchestraError, after: float = 0.001) -> Attempt:
    async def attempt(claim: Claim) -> None:
        await asyncio.sleep(after)
        raise error

    return attempt


def test_each_candidate_begins_a_quarter_of_a_second_after_the_one_before() -> None:
    winner, began, took, _ = raced({"a": silent, "b": silent, "c": answers})
    assert winner == "c"
    assert began == {"a": 0.0, "b": STAGGER_S, "c": 2 * STAGGER_S}
    assert took == 2 * STAGGER_S


def test_a_candidate_that_fails_lets_the_next_begin_at_once() -> None:
    winner, began, took, _ = raced({"a": fails(NobodyListens("refused")), "b": answers})
    assert winner == "b"
    assert began["b"] == took == 0.001


def test_only_the_first_that_proves_itself_goes_on() -> None:
    went_on: list[str] = []

    def proves(name: str, after: float, takes: float) -> Attempt:
        async def attempt(claim: Claim) -> None:
            await asyncio.sleep(after)
            if not claim():
                raise Unreachable("another was faster")
            went_on.append(name)
            await asyncio.sleep(takes)

        return attempt

    winner, _, took, _ = raced({"a": proves("a", 0.5, 0.1), "b": proves("b", 0.2, 3.0), "c": proves("c", 0.1, 0.1)})
    assert (winner, went_on) == ("b", ["b"])
    assert took == STAGGER_S + 0.2 + 3.0


def test_a_tunnel_begins_five_seconds_later_unless_nothing_else_is_left() -> None:
    assert raced({"tunnel:///s": answers, "a": fails(Unreachable("no answer"), 60.0)})[1] == {
        "a": 0.0,
        "tunnel:///s": HEAD_START_S,
    }
    assert raced({"a": fails(Unreachable("no answer"), 1.0), "tunnel:///s": answers})[1]["tunnel:///s"] == 1.0
    assert raced({"tunnel:///s": answers})[1]["tunnel:///s"] == 0.0


def test_the_candidate_that_worked_before_comes_first_and_its_refusal_is_final() -> None:
    winner, began, _, _ = raced({"a": silent, "b": answers}, reached="b")
    assert (winner, began) == ("b", {"b": 0.0})
    error, _, took, _ = raced({"a": silent, "b": fails(NobodyListens("refused"))}, reached="b")
    assert isinstance(error, NobodyListens)
    assert took < 0.01


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((NobodyListens("x"), NobodyListens("y")), NobodyListens),
        ((NobodyListens("x"), Unreachable("y")), Unreachable),
        ((Unreachable("x"), HandshakeError("y")), HandshakeError),
        ((HandshakeError("x"), AuthenticationFailed("y"), NobodyListens("x")), AuthenticationFailed),
        ((AuthenticationFailed("x"), VersionMismatch("y")), VersionMismatch),
    ],
)
def test_the_error_of_all_is_of_the_most_telling_kind_and_names_each_reason_once(
    errors: tuple[OrchestraError, ...], kind: type[OrchestraError]
) -> None:
    error, *_ = raced({f"c{n}": fails(each) for n, each in enumerate(errors)})
    assert type(error) is kind
    assert str(error) == "x; y"


def test_a_node_tries_to_join_again_until_the_time_is_over_and_logs_each_reason_once() -> None:
    left = 6

    async def turned_away(claim: Claim) -> None:
        nonlocal left
        left -= 1
        if left:
            raise Unreachable("turned away")
        assert claim()

    refused = fails(NobodyListens("refused"))
    winner, _, _, log = raced({"a": turned_away, "b": refused}, join_s=60.0)
    assert (winner, log) == ("a", ["turned away", "refused"])

    error, _, took, log = raced({"a": refused, "b": fails(Unreachable("no answer"), 3.0)}, join_s=60.0)
    assert str(error) == "the run was not joined within 60 s: refused; no answer"
    assert type(error) is Unreachable
    assert took == 60.0
    assert log == ["refused", "no answer"]


def test_a_node_that_is_not_let_in_does_not_try_again() -> None:
    error, _, took, log = raced(
        {"a": fails(AuthenticationFailed("another secret")), "b": fails(Unreachable("no answer"), 3.0)}, join_s=60.0
    )
    assert isinstance(error, AuthenticationFailed)
    assert took < 3.0 + JOIN_BACKOFF_MAX_S
    assert log == ["another secret", "no answer"]


# ─── real sockets ───


@asynccontextmanager
async def silent_address() -> AsyncIterator[str]:
    """Somebody else's service: it accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def refusing_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_a_node_joins_by_the_one_candidate_that_is_its_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Were the silent one waited for, the test would end by its time limit.
    monkeypatch.setattr("orchestra.wire.handshake.ANSWER_SECONDS", 1000.0)

    async def main() -> None:
        heard: asyncio.Queue[int] = asyncio.Queue()
        async with (
            silent_address() as silent_one,
            Node("other", listen="tcp://127.0.0.1:0", secret=b"another run's secret").running() as other,
            Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root,
        ):
            join = ",".join([refusing_address(), silent_one, other.listening, root.listening])
            notes = root.spawn("notes", Notes, heard)
            async with Node("leaf", join=join, secret=SECRET).running() as leaf:
                assert leaf.root == "root"
                assert leaf.peers.joined_by == root.listening
                assert other.peers.names == ()
                await leaf.ref(notes.address).tell(NoteMsg(n=1))
                assert await heard.get() == 1
                root.peers._links["leaf"].interrupt(Unreachable("cut"))  # and it comes back the same way
                await leaf.ref(notes.address).tell(NoteMsg(n=2))
                assert await heard.get() == 2

    run(main())


def test_a_root_is_dead_if_nobody_listens_where_it_was_joined_before(
    run: Run, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other candidates there are: nobody can tell that the process behind a tunnel is gone."""
    monkeypatch.setattr("orchestra.nodes.peers.DIALS", 1)

    async def main() -> None:
        async with Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root:
            join = f"{root.listening},tunnel://{sockets}/head"
            async with Node("leaf", join=join, secret=SECRET).running() as leaf:
                joined_by = leaf.peers.joined_by
        for before, kind in (("", Unreachable), (joined_by, NobodyListens)):
            node = Node("later", join=join, secret=SECRET)
            node.peers.joined_by = before
            with pytest.raises(Unreachable) as caught:
                await node.running().__aenter__()
            assert type(caught.value) is kind

    run(main())


def test_a_node_waits_for_a_root_that_comes_later(run: Run) -> None:
    async def main() -> None:
        address = refusing_address()
        with capture_logs() as lines:
            leaf = Node("leaf", join=address, secret=SECRET, join_timeout_s=100.0)
            joining = asyncio.create_task(leaf.running().__aenter__())
            while not [line for line in lines if line["event"] == "not joined yet"]:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            async with Node("root", listen=address, secret=SECRET).running():
                await joining
                assert leaf.root == "root"
                await leaf.stop()
        assert len([line for line in lines if line["event"] == "not joined yet"]) == 1

    run(main())


def test_a_node_listens_at_several_addresses(run: Run, tmp_path: Any, sockets: Any) -> None:
    async def main() -> None:
        listen = f"unix://{sockets}/root,tcp://127.0.0.1:0"
        async with Node("root", listen=listen, secret=SECRET).running() as root:
            unix, tcp = root.listening.split(",")
            for address in (unix, tcp):
                async with Node("leaf", join=address, secret=SECRET).running() as leaf:
                    assert leaf.root == "root"

    run(main())


# ─── who is not let in ───


async def refused(join: str, **options: Any) -> OrchestraError:
    with pytest.raises(OrchestraError) as caught:
        async with Node("leaf", join=join, **options).running():
            pytest.fail("let in")
    return caught.value


def test_a_wrong_secret_is_not_let_in_and_the_root_logs_one_line_a_minute(run: Run) -> None:
    async def main() -> None:
        async with Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root:
            for _ in range(5):
                error = await refused(root.listening, secret=b"another run's secret", join_timeout_s=60.0)
                assert isinstance(error, AuthenticationFailed)
                assert of_error(error) == NOT_LET_IN
            while root.peers._acceptor._handshakes:  # noqa: ASYNC110
                await asyncio.sleep(0)

    with capture_logs() as lines:
        run(main())
    told = [line for line in lines if line["event"] == "connection refused" and line["actor"] == "root/system"]
    assert [line["reason"].endswith(" knows the secret of another run") for line in told] == [True]
    more = [line for line in lines if line["event"] == "more connections refused" and line["actor"] == "root/system"]
    assert [line["count"] for line in more] == [4]


def test_the_credentials_of_another_run_are_not_let_in_and_the_root_logs_one_line(run: Run) -> None:
    mine, other = make_credentials(NOW, UNTIL), make_credentials(NOW, UNTIL)

    async def main() -> None:
        async with Node("root", listen="tls://127.0.0.1:0", secret=SECRET, tls=mine).running() as root:
            for _ in range(3):
                error = await refused(root.listening, secret=SECRET, tls=other)
                assert of_error(error) == NOT_LET_IN
                assert "does not show a certificate of this run" in str(error)
            while root.peers._listeners[0]._beginning:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0)

    with capture_logs() as lines:
        run(main())
    said = "hung up during the TLS handshake"
    (line,) = [line for line in lines if said in line.get("reason", "")]
    assert line["event"] == "connection refused"
    assert [line["count"] for line in lines if said in line.get("last", "")] == [2]


def test_a_certificate_that_the_other_side_refuses_is_said_so(run: Run) -> None:
    mine, other = make_credentials(NOW, UNTIL), make_credentials(NOW, UNTIL)
    mixed = replace(other, ca=mine.ca)  # trusts the root, and shows what the root does not trust

    async def main() -> None:
        async with Node("root", listen="tls://127.0.0.1:0", secret=SECRET, tls=mine).running() as root:
            error = await refused(root.listening, secret=SECRET, tls=mixed)
            assert "refuse" in str(error)
            assert "certificate of this process" in str(error)

    run(main())


@pytest.mark.parametrize("reason", ["TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE_EXPIRED", None])
def test_a_refused_certificate_is_recognised_by_its_alert_and_suspected_behind_an_end_of_file(
    run: Run, reason: str | None
) -> None:
    async def main() -> None:
        connection = stream.StreamConnection()
        connection._encrypted = True
        if reason is None:
            said = connection._closed_by_other_side(None)
            assert isinstance(said, ConnectionResetError)
            assert "over TLS it may have refused the certificate of this process" in str(said)
            return
        alert = ssl.SSLError(1, reason)
        alert.reason = reason
        assert isinstance(connection._closed_by_other_side(alert), AuthenticationFailed)

    run(main())


def test_another_version_of_the_protocol_is_named_on_both_sides(run: Run) -> None:
    async def older_dialer() -> None:
        async with Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root:
            host, port = root.listening.removeprefix("tcp://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(struct.pack("<2sBBIQ", b"OR", VERSION - 1, 1, 32, 0) + bytes(32))
            assert (await reader.readexactly(3))[2] == VERSION  # from which the other side knows
            writer.close()
            await writer.wait_closed()

    async def older_listener() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with closing(writer):
                writer.write(struct.pack("<2sBBIQ", b"OR", VERSION - 1, 11, 0, 0))
                await writer.drain()
                await reader.read()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            error = await refused(f"tcp://127.0.0.1:{port}", secret=SECRET, join_timeout_s=60.0)
            assert of_error(error) == OTHER_VERSION
            said = f"the peer speaks protocol version {VERSION - 1}, this node speaks {VERSION}"
            assert str(error) == f"127.0.0.1:{port}: {said}"

    with capture_logs() as lines:
        run(older_dialer())
    (line,) = [line for line in lines if line["event"] == "connection refused"]
    assert f"the peer speaks protocol version {VERSION - 1}, this node speaks {VERSION}" in line["reason"]
    run(older_listener())
