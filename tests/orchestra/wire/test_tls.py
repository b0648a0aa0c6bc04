"""tls://: what every transport does, and who is not let in."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra import Message, Node, Request, UsageError
from orchestra.cli.main import main as command
from orchestra.errors import HandshakeError, Unreachable
from orchestra.testing import Probe, check_transport
from orchestra.wire.credentials import TLS_DIR_VARIABLE, Credentials, context
from orchestra.wire.transports.registry import transport_for
from orchestra.wire.transports.stream import StreamConnection

Run = Callable[..., Any]
ADDRESS = "tls://127.0.0.1:0"


class CountMsg(Message):
    n: int


class DoubleMsg(Request[int]):
    n: int


Certificates = Callable[..., Path]


@pytest.fixture(scope="module")
def good(certificates: Certificates) -> Path:
    return certificates("good")


@pytest.fixture
def member(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TLS_DIR_VARIABLE, str(good))


@pytest.mark.usefixtures("member")
def test_it_does_what_every_transport_does(run: Run) -> None:
    run(check_transport(ADDRESS))


@pytest.mark.usefixtures("member")
def test_two_nodes_talk_over_it(run: Run) -> None:
    async def main() -> None:
        async with (
            Node("root", listen=ADDRESS).running() as root,
            Node("leaf", join=root.listening, secret=root.secret).running() as leaf,
        ):
            assert root.listening.startswith("tls://127.0.0.1:")
            probe = Probe(CountMsg, DoubleMsg, answers={DoubleMsg: 4})
            there = leaf.ref(probe.start(root, "probe").address)
            for n in range(1000):
                await there.tell(CountMsg(n=n))
            assert await there.ask(DoubleMsg(n=2)) == 4
            assert await probe.heard(CountMsg, 1000) == [CountMsg(n=n) for n in range(1000)]

    run(main())


@pytest.mark.usefixtures("member")
def test_a_node_has_stopped_when_its_connections_are_gone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[StreamConnection] = []
    close, lose = StreamConnection.close, StreamConnection.connection_lost

    def close_slowly(self: StreamConnection, turns: int = 100) -> None:
        """As where the peer, which has to agree, is another process."""
        if turns:
            asyncio.get_running_loop().call_soon(close_slowly, self, turns - 1)
        else:
            close(self)

    def connection_lost(self: StreamConnection, exc: Exception | None) -> None:
        lost.append(self)
        lose(self, exc)

    monkeypatch.setattr(StreamConnection, "close", close_slowly)
    monkeypatch.setattr(StreamConnection, "connection_lost", connection_lost)

    async def main() -> None:
        async with Node("root", listen=ADDRESS).running() as root:
            async with Node("leaf", join=root.listening, secret=root.secret).running():
                assert not lost
            gone = bool(lost)
            while not lost:  # noqa: ASYNC110 (else the loop would be closed in the midst of it, and never end)
                await asyncio.sleep(0)
            assert gone

    run(main())


@pytest.mark.usefixtures("member")
@pytest.mark.parametrize(
    ("who", "options"),
    [("stranger", {"holds": "theirs"}), ("gullible", {"trusts": "theirs"}), ("plain", None)],
)
def test_who_holds_no_certificate_of_the_run_is_not_let_in(
    run: Run, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, who: str, options: dict[str, str] | None
) -> None:
    monkeypatch.setattr("orchestra.nodes.dialling.BACKOFF_S", 0.001)

    async def main() -> None:
        async with Node("root", listen=ADDRESS).running() as root:
            address = root.listening
            if options is None:
                address = address.replace("tls://", "tcp://")
            else:
                monkeypatch.setenv(TLS_DIR_VARIABLE, str(certificates(who, **options)))
            with pytest.raises((Unreachable, HandshakeError)):
                async with Node("leaf", join=address, secret=root.secret).running():
                    pytest.fail("let in")
            assert root.statistics().peers == ()

    run(main())


@pytest.mark.usefixtures("member")
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"no hello of TLS at all"], ids=["silent", "halting", "noisy"])
def test_only_so_many_handshakes_are_under_way_and_members_come_in_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    limit = 8
    monkeypatch.setattr("orchestra.wire.admission.MAX_PER_SOURCE", limit)
    monkeypatch.setattr("orchestra.wire.transports.stream.HANDSHAKE_S", 600.0)  # nobody is let go because of the time

    async def main() -> None:
        async with Node("root", listen=ADDRESS).running() as root:
            host, port = root.listening.removeprefix("tls://").split(":")
            callers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            ends: list[asyncio.Task[bytes]] = []
            for _ in range(10 * limit):
                reader, writer = await asyncio.open_connection(host, int(port))
                callers.append((reader, writer))
                writer.write(said)
                ends.append(asyncio.create_task(_to_the_end(reader)))
            if said.startswith(b"no"):
                await asyncio.gather(*ends)  # who speaks something else makes room again at once
            else:
                while sum(not end.done() for end in ends) > limit:
                    await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
            async with Node("leaf", join=root.listening, secret=root.secret).running() as leaf:
                assert leaf.statistics().peers == ("root",)
            for _, writer in callers:
                writer.transport.abort()
            await asyncio.gather(*ends)

    monkeypatch.setattr("orchestra.nodes.dialling.BACKOFF_S", 0.001)
    run(main())


async def _to_the_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.usefixtures("member")
def test_a_node_that_stops_waits_for_no_handshake(run: Run) -> None:
    async def main() -> None:
        async with Node("root", listen=ADDRESS).running() as root:
            host, port = root.listening.removeprefix("tls://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\x16")
            await asyncio.sleep(0)
        await _to_the_end(reader)
        writer.close()

    run(main())


def test_only_the_newest_protocol_is_spoken(good: Path) -> None:
    for dialing in (True, False):
        made = context(Credentials.of_folder(good), dialing=dialing)
        assert made.minimum_version is ssl.TLSVersion.TLSv1_3
        assert made.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda folder: (folder / "key.pem").chmod(0o640), "key.pem' has mode 0640: others could read the key; chmod "),
        (lambda folder: (folder / "ca.pem").unlink(), "ca.pem': No such file or directory; tls:// needs ca.pem, cert"),
        (lambda folder: (folder / "cert.pem").write_text("no certificate"), "cannot use the certificates in "),
    ],
    ids=["mode", "missing", "no certificate"],
)
def test_a_folder_that_will_not_do_is_refused_in_one_line(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], Any], text: str
) -> None:
    folder = certificates("spoilt")
    spoil(folder)
    monkeypatch.setenv(TLS_DIR_VARIABLE, str(folder))
    with pytest.raises(UsageError) as caught:
        transport_for(ADDRESS).check(ADDRESS)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_without_certificates_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TLS_DIR_VARIABLE, raising=False)
    file = tmp_path / "plan.py"
    file.write_text(PLAN)
    words = ["run", str(file), "--runs-dir", str(tmp_path / "runs"), "--listen", ADDRESS]
    assert command(words) == 2
    assert "tls:// needs certificates: --tls-dir, or ORCHESTRA_TLS_DIR, names their folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_of_several_processes_goes_over_it(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TLS_DIR_VARIABLE, "")  # set back when the test ends
    file = tmp_path / "plan.py"
    file.write_text(PLAN)
    words = ["run", str(file), "--runs-dir", str(tmp_path / "runs"), "--listen", ADDRESS, "--tls-dir", str(good)]
    assert command(words) == 0
    assert "BEGIN" not in capsys.readouterr().err


PLAN = """
from orchestra import Actor, Message, Ref, Topology, on


class HelloMsg(Message):
    pass


class Boss(Actor[HelloMsg]):
    @on(HelloMsg)
    def hello(self, msg: HelloMsg) -> None:
        self.stop()


class Clerk(Actor[HelloMsg]):
    def __init__(self, boss: Ref[HelloMsg]) -> None:
        self._boss = boss

    async def started(self) -> None:
        await self._boss.tell(HelloMsg())

    @on(HelloMsg)
    def hello(self, msg: HelloMsg) -> None: ...


def experiment() -> Topology:
    topology = Topology("plan")
    boss = topology.node("root").spawn("boss", Boss)
    topology.node("other").spawn("clerk", Clerk, boss)
    topology.until(boss)
    return topology
"""
