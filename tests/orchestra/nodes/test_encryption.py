"""Secrets are long enough, and nothing travels unencrypted beyond the host unless that is wanted and shown."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra import Node, UsageError
from orchestra.cli.main import main as command
from orchestra.errors import HandshakeError
from orchestra.nodes.dialling import dial
from orchestra.runs.plan import plan
from orchestra.wire.transports.registry import is_exposed

Run = Callable[..., Any]
EXPERIMENT = Path(__file__).parents[3] / "experiments" / "qmix_8m.py"
LOCAL = ["tcp://127.0.0.1:0", "tcp://127.8.9.1:1", "tcp://[::1]:1", "tcp://localhost:1", "unix:///x", "memory://x"]
EXPOSED = ["tcp://0.0.0.0:0", "tcp://[::]:1", "tcp://192.0.2.7:1", "tcp://learner:1", "tcp://[fe80::1%eth0]:1"]


def test_only_plain_tcp_beyond_loopback_is_exposed() -> None:
    assert [address for address in (*LOCAL, *EXPOSED, "tls://0.0.0.0:0") if is_exposed(address)] == EXPOSED


@pytest.mark.parametrize("where", ["listen", "join"])
@pytest.mark.parametrize("address", EXPOSED)
def test_a_node_refuses_plain_tcp_beyond_loopback_unless_it_is_allowed(where: str, address: str) -> None:
    with pytest.raises(UsageError, match="is plain TCP beyond this host") as refused:
        Node("here", **{where: address})
    assert str(refused.value).startswith(address)
    assert Node("here", unencrypted=True, **{where: address}).unencrypted
    assert not Node("here", unencrypted=True, **{where: LOCAL[0]}).unencrypted


def test_a_peer_that_listens_beyond_loopback_in_plain_tcp_is_not_dialled(run: Run) -> None:
    settings = Node("here").peers._settings

    async def main() -> None:
        with pytest.raises(HandshakeError, match=r"tcp://192\.0\.2\.7:1 is plain TCP beyond this host"):
            await dial(settings, "tcp://192.0.2.7:1")

    run(main())
    assert replace(settings, unencrypted=True).unencrypted


@pytest.mark.parametrize("length", [0, 1, 15])
def test_a_secret_of_less_than_16_bytes_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match=rf"the secret has {length} bytes; at least 16 are required"):
        Node("here", secret=bytes(length))
    assert Node("here", secret=bytes(16)).secret == bytes(16)


def test_a_run_beyond_loopback_needs_tls_or_tls_off(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", str(EXPERIMENT), "--runs-dir", str(tmp_path), "--listen", "tcp://0.0.0.0:0"]
    assert command(words) == 2
    said = capsys.readouterr().err
    assert "tcp://0.0.0.0:0 is plain TCP beyond this host" in said
    assert "--tls off" in said
    assert list(tmp_path.iterdir()) == []
    assert plan(EXPERIMENT, listen="tcp://0.0.0.0:0", tls="off").launch.unencrypted
    assert not plan(EXPERIMENT).launch.unencrypted


def test_an_unencrypted_run_is_shown_as_such_for_as_long_as_it_lasts(run: Run) -> None:
    async def main() -> None:
        async with (
            Node("root", listen="tcp://0.0.0.0:0", unencrypted=True).running() as root,
            Node("local").running() as local,
        ):
            assert root.statistics().unencrypted
            assert not local.statistics().unencrypted

    run(main())
