"""An agent that is bound to its starter ends with its standard input, however its starter has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.hosts.token import JoinToken

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux")


def test_a_bound_agent_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    token = JoinToken.new("run", ("tcp://127.0.0.1:1",), tls=None)
    words = [sys.executable, "-m", "orchestra", "host", "--token", "-", "--bound", "--scratch", str(tmp_path)]
    keeping = "import subprocess, sys; agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); "
    keeping += f"agent.stdin.write({token.line()!r}.encode()); agent.stdin.flush(); agent.wait()"
    with subprocess.Popen([sys.executable, "-c", keeping, *words], stderr=subprocess.PIPE) as starter:
        assert starter.stderr is not None
        assert b"127.0.0.1:1" in starter.stderr.readline(), "it has begun to look for the head"
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)
        assert starter.stderr.read() == b"", "it gives up at once, and ends"


def test_an_agent_can_be_bound_to_standard_input_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "--token", "a-file", "--bound"]) == 2
    assert "add --token -" in capsys.readouterr().err
