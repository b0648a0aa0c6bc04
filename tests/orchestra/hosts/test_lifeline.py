"""A launched process ends when its starter does: at once, in order if it can, by force if it is stuck."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FREE = """
import signal, sys
from orchestra.hosts.lifeline import Lifeline
signal.signal(signal.SIGTERM, lambda *_: None)
with Lifeline(0):
    print("begun", flush=True)
    while True:
        signal.pause()
"""
IN_ORDER = """
import sys, threading
from orchestra.hosts.lifeline import Lifeline
ended = threading.Event()
with Lifeline(0) as lifeline, lifeline.ends_by(ended.set):
    print("begun", flush=True)
    ended.wait()
    print("ended in order", flush=True)
"""
STUCK = """
import ctypes, threading
from orchestra.hosts.lifeline import Lifeline
told = threading.Event()
with Lifeline(0, stuck_s=0.2) as lifeline, lifeline.ends_by(told.set):
    print("begun", flush=True)
    told.wait()
    ctypes.PyDLL(None).sleep(600)  # compiled code that keeps the interpreter's lock
"""


@contextmanager
def started(program: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(reading)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process, writing
    finally:
        process.kill()
        process.communicate()


def test_a_process_ends_with_its_starter_and_not_by_sigterm() -> None:
    with started(FREE) as (process, ours):
        process.send_signal(signal.SIGTERM)
        os.write(ours, b"whatever")
        assert process.poll() is None
        os.close(ours)
        assert process.wait(timeout=30) == 1


def test_a_process_that_can_ends_in_order() -> None:
    with started(IN_ORDER) as (process, ours):
        os.close(ours)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "ended in order\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_a_process_whose_interpreter_is_locked_is_ended_by_force() -> None:
    with started(STUCK) as (process, ours):
        os.close(ours)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Timeout" in errors
