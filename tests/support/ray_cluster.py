"""A real Ray cluster of several nodes on one machine, for tests."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import psutil

ADDRESSES = ("127.0.0.2", "127.0.0.3")
"""Of the nodes. Ray rewrites 127.0.0.1."""
CPUS = 4
"""CPUs that each node says it has."""
PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


def environment_folder() -> Path:
    """Return the environment with Ray, which `install_ray.sh` makes."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("ORCHESTRA_RAY_ENV") or f"{cache}/orchestra-tests/ray")


def why_unavailable() -> str:
    """Return why there can be no cluster here; empty if there can be one."""
    if os.uname().sysname != "Linux":
        return "the nodes of Ray need addresses of Linux's loopback interface"
    return (
        "" if (environment_folder() / "bin" / "ray").exists() else "Ray is not installed; `make test-engines` does it"
    )


class RayCluster:
    """Some nodes, from entering to leaving the block. Other clusters of the machine are left alone.

    Args:
        addresses: of the nodes.
    """

    def __init__(self, addresses: Sequence[str] = ADDRESSES) -> None:
        self._addresses = addresses
        self.folder = Path(tempfile.mkdtemp(prefix="ry"))  # sockets have short paths
        self.python = environment_folder() / "bin" / "python"
        self._ray = str(environment_folder() / "bin" / "ray")
        self._nodes: list[subprocess.Popen[Any]] = []
        self.address = f"{ADDRESSES[0]}:{_free_port()}"
        self.dashboard = f"http://{ADDRESSES[0]}:{_free_port()}"
        self.environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": self.address,
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def __enter__(self) -> Self:
        port, dashboard = self.address.rpartition(":")[2], self.dashboard.rpartition(":")[2]
        try:
            self._start(
                *("--head", f"--port={port}", f"--node-ip-address={ADDRESSES[0]}", f"--temp-dir={self.folder}/r"),
                *("--include-dashboard=true", f"--dashboard-host={ADDRESSES[0]}", f"--dashboard-port={dashboard}"),
            )
            for number, address in enumerate(self._addresses[1:], start=1):
                # Else nodes share the working folders of jobs, and the second one removes that of the first.
                own = f"--temp-dir={self.folder}/{number}"
                self._start(f"--address={self.address}", f"--node-ip-address={address}", own)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for node in reversed(self._nodes):  # never `ray stop`, which ends every Ray of the machine
            if node.poll() is not None:
                continue
            family = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
            node.terminate()
            _, alive = psutil.wait_procs(family, timeout=10)
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            node.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_node(self, number: int) -> None:
        """Kill all processes of a node, but not the first, which has the tables of the cluster.

        Agents have sessions of their own, but not process trees.
        """
        node = self._nodes[number]
        for process in (*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait(10)

    def ask(self, *command: str, timeout: float = 120.0) -> str:
        """Return what a command of Ray prints."""
        done = subprocess.run(
            [self._ray, *command], env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.stdout + done.stderr

    def tell(self, code: str) -> str:
        """Return what a driver of the cluster prints that runs `code`."""
        program = f"import ray; ray.init(log_to_driver=False, logging_level='ERROR')\n{code}"
        done = subprocess.run(
            [str(self.python), "-c", program], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _start(self, *options: str) -> None:
        log: IO[bytes]
        number = len(self._nodes)
        path = self.folder / f"node-{number}.log"
        with path.open("wb") as log:
            self._nodes.append(
                subprocess.Popen(
                    [
                        *(self._ray, "start", "--block", "--disable-usage-stats"),
                        *(f"--num-cpus={CPUS}", "--num-gpus=1", "--object-store-memory=100000000", *options),
                    ],
                    env={name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )
        deadline = time.monotonic() + PATIENCE_S
        while "Ray runtime started" not in path.read_text():
            assert self._nodes[-1].poll() is None, path.read_text()
            assert time.monotonic() < deadline, path.read_text()
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((ADDRESSES[0], 0))
        return int(free.getsockname()[1])
