"""An agent measures how many processors the processes of its host use, with all that they have started."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestra.hosts.use import LEAST_S, ProcessorUse

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="only Linux tells")
SPENDS = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
STARTS = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPENDS!r}])"


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


def test_what_a_process_has_started_counts_too() -> None:
    use = ProcessorUse()
    with running(STARTS) as parent:
        begun = time.monotonic()
        assert use.measured(100.0, [parent.pid]) is None
        assert parent.stdout is not None
        parent.stdout.readline()  # the child has spent 0.3 s since it began
        spent = use.measured(110.0, [parent.pid])
    assert spent is not None
    assert 0.02 <= spent <= (time.monotonic() - begun) * 2 / 10


def test_of_a_process_that_counts_alone_its_children_do_not() -> None:
    use = ProcessorUse()
    with running(STARTS) as parent:
        assert use.measured(100.0, [], [parent.pid]) is None
        assert parent.stdout is not None
        parent.stdout.readline()
        alone = use.measured(110.0, [], [parent.pid])
        before = use.measured(120.0, [parent.pid])
    assert alone is not None
    assert before is not None
    assert alone < 0.02 < before


def test_a_process_that_has_begun_since_counts_from_its_start() -> None:
    use = ProcessorUse()
    assert use.measured(100.0, []) is None
    with running(SPENDS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent = use.measured(110.0, [process.pid])
    assert spent is not None
    assert spent >= 0.02


def test_a_measurement_soon_after_another_repeats_it_and_one_without_processes_is_none_in_use() -> None:
    use = ProcessorUse()
    assert use.measured(50.0, []) is None
    assert use.measured(50.0 + LEAST_S / 2, []) is None
    assert use.measured(50.0 + LEAST_S, [2**22 + 1]) == 0.0  # no process has this id
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    assert use.measured(50.0 + 2 * LEAST_S - 0.01, [os.getpid()]) == 0.0
