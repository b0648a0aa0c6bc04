"""What a run over hosts does when the disk of a host, or of the head, is full; each takes a minute or so."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosted_accounts import check_message_counts
from hosted_runs import LONG, Hosted

from orchestra import RunDirectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.minutes,
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux"),
]


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of so many MB at `folder` while the block runs."""
    folder.mkdir(parents=True)
    words = ("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    if os.geteuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("NOT TESTED HERE: a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True)


def fill(disk: Path) -> None:
    """Write a file `ballast` until there is no room left."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
        while True:
            ballast.write(bytes(1 << 16))


def test_a_host_without_room_for_the_code_ends_the_run_that_needs_it_and_says_why(launch: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", 1) as disk:
        hosted = Hosted(launch, *LONG, hosts=1, scratch=disk)
        assert hosted.run.ends() == 74, hosted.run.story("ended in another way")
    (line,) = [line for line in hosted.run.err.splitlines() if line.startswith("orchestra: the run failed: ")]
    assert "its host local-1 is gone: needs " in line
    assert re.search(r"needs \d+ MB in '\S+', has \d+", line)


def test_a_full_disk_at_the_head_leaves_the_last_whole_checkpoint(launch: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "runs", 400) as disk:
        hosted = Hosted(launch, *LONG, "--checkpoint-interval", "1000", "--trace", "off", hosts=1)
        hosted.run.until(lambda: list(disk.glob("*/*/state/steps-*[0-9]")))
        (run,) = disk.glob("*/*")
        fill(disk)
        assert hosted.run.ends() == 74, hosted.run.story("ended in another way")
        (disk / "ballast").unlink()
        steps = int(RunDirectory(run).newest_state().name.removeprefix("steps-"))
        again = launch.command(
            *("run", "--resume", run, "--steps", str(steps + 300), "--launch", "local", "--hosts", "1"),
            *("--scratch", hosted.scratch),
        )
        again.patience_s = 120.0
        assert again.ends() == 0, again.story("failed")


def test_a_disk_of_a_host_that_fills_up_ends_its_trace_and_neither_the_run_nor_its_logs(
    launch: Any, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "filling", 800) as disk:
        hosted = Hosted(launch, *LONG, "--trace", "full", hosts=1, scratch=disk)
        hosted.until_workers(1)
        hosted.goes_on()
        fill(disk)
        stopped = "the trace has stopped; what comes is dropped and counted"
        hosted.until_said("worker-1-0", stopped)
        for _ in range(3):
            hosted.goes_on()
        hosted.processes(1)["worker-1-0"].kill()
        hosted.until_said("worker-1-0", stopped, times=2)  # its next process says so, too: the log goes on
        (disk / "ballast").unlink()
        hosted.goes_on()
        hosted.interrupted()
    check_message_counts(hosted.run.run)
