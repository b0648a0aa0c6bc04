"""The processes of a run map only the libraries that they compute with."""

from pathlib import Path
from typing import Any

import psutil


def libraries(pid: int) -> set[str]:
    """Those among the large libraries whose files a process has mapped."""
    mapped = Path(f"/proc/{pid}/maps").read_text()
    return {name for name in ("libtorch", "libllvmlite", "libpython") if name in mapped}


def test_workers_run_without_torch_and_the_proxy_without_torch_and_numba(launch: Any) -> None:
    words = [word for word in launch.quick if word != "600"]
    words[words.index("--steps")] = "--steps=1000000000"
    launched = launch.command("run", launch.experiment, *words, "--workers", "2")
    launched.until(lambda: any(line.get("event") == "evaluated" for line in launched.log()) or launched.records()[2:])
    assert libraries(launched.process.pid) >= {"libtorch", "libllvmlite"}
    assert libraries(launched.pid("host-0")) - {"libpython"} == set()
    for number in range(2):
        assert libraries(launched.pid(f"worker-0-{number}")) - {"libpython"} == {"libllvmlite"}
    parents = {psutil.Process(launched.pid(node)).ppid() for node in ("worker-0-0", "worker-0-1")}
    assert launched.process.pid not in parents  # both were forked from one template, which has loaded the simulator
    assert len(parents) == 1
    launched.process.terminate()
    assert launched.ends() == 75
