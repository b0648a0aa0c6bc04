"""The secret of a run over hosts is in its join token and in `join.json`, and nowhere else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestra.hosts.certificates import make_credentials
from orchestra.hosts.token import JoinToken

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux")]


def secrets_of(token: JoinToken) -> list[bytes]:
    """Return what nobody may see: the digits and the bytes of the secret, and a line in the middle of the key."""
    assert token.tls is not None
    return [token.secret.hex().encode(), token.secret, token.tls.key.splitlines()[1].encode()]


def test_the_secret_is_in_no_argument_environment_file_log_or_trace(launch: Any) -> None:
    scratch = Path(launch.folder) / "scratch"
    scratch.mkdir()
    flags = ("--launch", "local", "--hosts", "2", "--scratch", str(scratch), "--workers", "1", "--trace", "full")
    run = launch(*flags, "--log-level", "debug", "--steps", "1000000000")
    run.patience_s = 180.0
    run.until_playing()
    launch.until_all_play(run, "host-1", "host-2")
    written = json.loads((run.run / "join.json").read_text())
    token = JoinToken.parse(json.dumps(written["token"]), source="")
    hidden = secrets_of(token)
    assert token.secret.hex() == written["secret"]

    processes = [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]
    assert len(processes) >= 7, "the head, two agents, two proxies and two workers"
    for process in processes:
        for name in ("cmdline", "environ"):
            seen = Path(f"/proc/{process.pid}/{name}").read_bytes()
            assert not [each for each in hidden if each in seen], f"{name} of {process.pid}"

    # A host with the token of another run is not let in, whatever the network says.
    other = JoinToken.new(token.run, token.join, tls=make_credentials)
    turned_away = subprocess.run(
        [sys.executable, "-m", "orchestra", "host", "--token", "-", "--scratch", str(scratch)],
        input=other.line(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert turned_away.returncode == 77, turned_away.stderr
    assert "does not show a certificate of this run" in turned_away.stderr

    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.story("failed")
    files = [path for folder in (run.run, scratch) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".trace"]
    assert [path for path in files if path.suffix == ".jsonl"]
    for path in files:
        seen = path.read_bytes()
        assert not [each for each in hidden if each in seen], path


def test_a_dry_run_shows_no_secret() -> None:
    experiment = Path(__file__).parents[2] / "experiments" / "qmix_8m.py"
    words = ["run", str(experiment), "--launch", "local", "--hosts", "2", "--dry-run"]
    planned = subprocess.run([sys.executable, "-m", "orchestra", *words], capture_output=True, text=True, check=True)
    assert "worker-2-0" in planned.stdout
    assert "PRIVATE KEY" not in planned.stdout
    assert '"secret"' not in planned.stdout
