"""What ssh will be asked to do is text, known before anything is contacted, and quoted for any login shell."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestra.errors import UsageError
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.settings import HostSettings
from orchestra.launch.protocol import HostRequest
from orchestra.launch.ssh import LOGGED_IN, SshLauncher

GOLDEN = Path(__file__).with_name("ssh_submission.txt")
PLAN = RunPlan(experiment=Path("game.py"), flags=(), seed=0, run_directory=Path("runs/game/1"))
HOSTS = (
    HostSettings(1, "cpu1"),
    HostSettings(2, "cpu3", user="me", port=2222),
    HostSettings(3, "fd00::7", setup="module load cuda; ulimit -n 4096;", scratch="/fast disk"),
    HostSettings(4, "gpu1", python="/opt/it's new/bin/python3"),
    HostSettings(5, "gpu2", python="~/venv/bin/python"),
)


def commands(hosts: Sequence[HostSettings], **settings: Any) -> tuple[tuple[str, ...], ...]:
    requests = [HostRequest(host.slot, host.name) for host in hosts]
    return SshLauncher(hosts, **settings).submission(PLAN, requests).commands


def test_the_commands_of_five_hosts_are_those_of_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/head/bin/python3")
    text = "".join(f"{shlex.join(command)}\n" for command in commands(HOSTS, ssh="ssh -F 'my config'"))
    assert text == GOLDEN.read_text()


def test_the_commands_do_not_depend_on_the_order_of_the_hosts() -> None:
    assert commands(HOSTS) == commands(HOSTS[::-1])


def test_a_submission_for_other_slots_than_the_hosts_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hosts for the slots \[1, 2, 3, 4, 5\], not for \[7\]"):
        SshLauncher(HOSTS).submission(PLAN, [HostRequest(7)])


@pytest.mark.parametrize(("command", "why"), [("", "empty"), ("ssh -F 'x", "no command: No closing quotation")])
def test_a_ssh_command_that_is_none_is_refused(command: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        SshLauncher(HOSTS, ssh=command)


@pytest.mark.parametrize("shell", ["sh", "bash", "csh", "fish", "zsh"])
def test_the_remote_command_passes_every_word_on_through_a_login_shell(shell: str, tmp_path: Path) -> None:
    """A program in place of Python prints its arguments and what is left of its input."""
    python = tmp_path / 'it\'s a $HOME "python" !x'
    python.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\ncat\n')
    python.chmod(0o755)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    host = HostSettings(3, "a b", python=str(python), setup="cat >&2; export Y='1;2'", scratch="$HOME/it's")
    ((*_, remote),) = commands([host])
    done = subprocess.run([shell, "-c", remote], input="the token\n", capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        LOGGED_IN,
        *("<-m>", "<orchestra>", "<host>", "<--token>", "<->", "<--slot>", "<3>", "<--name>", "<a b>"),
        *("<--scratch>", "<$HOME/it's>"),
        "the token",
    ]
    assert done.stderr == ""


def test_the_local_side_imports_neither_numpy_nor_torch() -> None:
    code = "import sys, orchestra.launch.ssh; sys.exit(bool({'numpy', 'torch', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
