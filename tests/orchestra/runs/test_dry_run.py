"""A dry run over hosts shows what would be listened at, sent and started, and refuses what could not work."""

import os
import re
import shlex
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.runs.hosted_run import launcher_of, requests_of
from orchestra.runs.plan import plan

EXPERIMENT = '''
from orchestra import Actor, Hosts, Message, Ref, Topology, on


class GoMsg(Message):
    """Go."""


class Player(Actor[GoMsg]):
    def __init__(self, to: Ref[GoMsg] | None = None) -> None: ...

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...


def experiment(*, hosts: Hosts, above: bool = False) -> Topology:
    topology = Topology("rehearsed")
    boss = topology.node("root").spawn("boss", Player)
    topology.until(boss)
    to = topology.node("above").spawn("player", Player, boss) if above else boss
    for host in hosts.playing:
        topology.node(f"player-{host.slot}", on=host).spawn("player", Player, to)
    topology.ships("rules.txt")
    return topology
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rehearsed.py").write_text(EXPERIMENT)
    (tmp_path / "rules.txt").write_text("x" * 300_000)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    made = os.listdir()
    assert main(["run", "rehearsed.py", *words, "--dry-run"]) == 0
    assert os.listdir() == made
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["run", "rehearsed.py", *words, "--dry-run"]) == 2
    return capsys.readouterr().err.strip()


def test_it_shows_the_commands_that_a_run_starts_byte_for_byte_and_no_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, "--hosts", "cpu1,me@cpu3:2222", "--python", "~/v/bin/python")
    planned = plan(Path("rehearsed.py"), hosts="cpu1,me@cpu3:2222", python="~/v/bin/python")
    assert planned.hosts is not None
    submission = launcher_of(planned.hosts).submission(planned.launch, requests_of(planned.hosts))
    shown = [shlex.split(line.removesuffix(" < <token>")) for line in lines if line.endswith(" < <token>")]
    assert shown == [list(command) for command in submission.commands]
    assert len(shown) == 2
    assert "--launch ssh runs, each with the join token on its standard input:" in lines
    assert not re.search(r"[0-9a-f]{64}", re.sub("the code [0-9a-f]{64}:", "", "\n".join(lines)))


def test_it_shows_where_each_node_would_be_and_what_the_hosts_would_get(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--hosts", "2", "--launch", "local", "--above", "--code", "installed")
    assert "  player-2   on host 2" in lines
    assert "    player: Player -> above/player" in lines
    assert "the head listens for other hosts at" in lines
    assert "  tls://127.0.0.1, any free port" in lines
    assert "TLS is on, with certificates of the run's own" in lines
    (code,) = [number for number, line in enumerate(lines) if line.startswith("each host gets the code ")]
    assert re.search(r": 3 files, 30\d\.\d kB$", lines[code])
    assert lines[code + 1].endswith("rules.txt, 300.0 kB")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--port", "41000-41010"), ["  tls://*:41000-41010"]),
        (("--advertise", "10.0.0.5"), ["  tls://*, any free port", "  reached at 10.0.0.5"]),
        (("--tls", "off"), ["  tcp://*, any free port", "TLS is off: messages to other hosts travel unencrypted"]),
    ],
)
def test_it_shows_port_addresses_and_encryption(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: list[str]
) -> None:
    lines = printed(capsys, "--hosts", "cpu1", *words)
    assert [line for line in lines if line in expected] == expected
    reached = [line for line in lines if line.startswith("  reached at ")]
    assert len(reached) == 1
    assert "127.0.0.1" not in reached[0]
    assert "*" not in reached[0]


def test_what_cannot_be_shipped_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--hosts", "cpu1", "--ship", "nowhere.txt") == (
        "orchestra: error: --ship: there is no file 'nowhere.txt'"
    )


def test_nodes_that_could_not_reach_each_other_are_refused_and_both_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, "--hosts", "cpu1,cpu2", "--above", "--tunnel")
    assert said.startswith("orchestra: error: player-1/player on host 1 (cpu1) cannot reach above/player on host 0 (")
    assert said.endswith("): with --tunnel the hosts reach the node 'root' alone; leave out --tunnel")
    printed(capsys, "--hosts", "cpu1,cpu2", "--tunnel")  # the root alone is talked to
