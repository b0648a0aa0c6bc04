"""Server and clients in processes of their own, which are killed; and the examples of the documentation."""

import multiprocessing
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from components.replay_buffers import Field
from components.replay_server import Disconnected, Layout, ReplayClient, ReplayServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = Layout({"item": Field(np.int64)}, 64, chunk=4, alpha=1.0, epsilon=0.0)
SECRET = b"the secret".ljust(32)
LONG = 60.0
BOUND = 12.0
"""Seconds within which the death of a process is known wherever it was; here it takes one or two."""


def serve(address, ready):
    with ReplayServer(LAYOUT, listen=address, secret=SECRET):
        ready.set()
        multiprocessing.Event().wait()


def play(address, name, item, ready):
    with ReplayClient(address, name, secret=SECRET) as client:
        client.add_entries({"item": np.full(4, item)})
        client.flush(timeout=LONG)
        ready.set()
        multiprocessing.Event().wait()


def begin(target, *args):
    """Start a process, and wait until it is ready."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=target, args=(*args, ready), daemon=True)
    process.start()
    assert ready.wait(LONG)
    return process


def end(process):
    process.kill()
    process.join()


def test_a_killed_client_is_not_waited_for_and_can_come_back():
    with ReplayServer(LAYOUT, secret=SECRET) as server:
        doomed = begin(play, server.address, "doomed", 1)
        other = begin(play, server.address, "other", 2)
        assert set(server.sample(64, timeout=LONG).batch["item"].tolist()) == {1, 2}
        end(doomed)
        assert set(server.sample(256, timeout=BOUND).batch["item"].tolist()) == {2}
        end(other)
        with pytest.raises(TimeoutError):
            server.sample(1, timeout=0.5)
        # One of the same name is let in, whether or not the death of the first is known yet.
        again = begin(play, server.address, "other", 3)
        assert set(server.sample(8, timeout=LONG).batch["item"].tolist()) == {3}
        end(again)


def test_the_loss_of_a_killed_server_is_detected_and_its_successor_found(address_of):
    address = address_of("unix")
    first = begin(serve, address)
    with ReplayClient(address, "one", secret=SECRET) as one:
        one.add_entries({"item": np.arange(4)})
        one.flush(timeout=LONG)
        one.update(one.sample(4, timeout=LONG), np.full(4, 7.0))
        end(first)
        killed = time.monotonic()
        with pytest.raises(Disconnected, match=r"the server at .* is gone|there is no server at"):
            for _ in range(100):
                one.sample(4, timeout=LONG)
        assert time.monotonic() - killed < BOUND
        one.add_entries({"item": np.arange(4, 8)})
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)  # who was killed cannot clear up
        second = begin(serve, address)
        one.flush(timeout=LONG)
        assert set(one.sample(64, timeout=LONG).batch["item"].tolist()) == set(range(8))
        one.close()
        end(second)
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)


CONSOLES = re.findall(r"^```console\n(.*?)^```$", (ROOT / "docs" / "replay.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("console", CONSOLES, ids=["transitions", "episodes"])
def test_an_example_prints_what_the_documentation_shows(console):
    command, _, printed = console.partition("\n")
    words = shlex.split(command.removeprefix("$ "))
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
