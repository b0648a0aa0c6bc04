"""A SLURM cluster on one machine, without systemd: real daemons, and virtual nodes that are a slurmd each.

Nothing in `/etc/slurm`, `/etc/munge` or `/run` is touched: all of it lies in one folder. It needs root.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "munged")
FOLDERS = ("/usr/sbin", "/sbin")
NODES = 3
START_S = 60.0
END_S = 5.0
GPU_NODES = (2, 3)
"""The nodes that have a GPU, or what SLURM takes for one."""
KILL_WAIT_S = 30
"""Seconds from SIGTERM until SLURM kills the processes of a cancelled job."""


def why_unavailable() -> str:
    """Return why this machine cannot have such a cluster; empty if it can."""
    if platform.system() != "Linux":
        return f"SLURM runs on Linux, not on {platform.system()}"
    if os.geteuid() != 0:
        return "a SLURM cluster of one machine needs root"
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    if missing := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        return f"there is no program {', '.join(missing)}: run tests/support/install_slurm.sh"
    return ""


class SlurmCluster:
    """While the block runs, a cluster with virtual nodes `vn1`, `vn2`, …, which share files and processes.

    The partition `ci` gives a node to one job at a time, `shared` to two, and a job of `urgent` preempts those of `ci`.

    Args:
        folder: for all files of the daemons.
        nodes: how many nodes it has.
        cores: of each node.
    """

    def __init__(self, folder: Path, nodes: int = NODES, cores: int = 2) -> None:
        self.folder = folder
        self.nodes = nodes
        self._cores = cores
        self._daemons: dict[str, psutil.Popen] = {}
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]),
        }

    def __enter__(self) -> Self:
        # Not in the folder: the path of a socket is short.
        self._munge_folder = tempfile.TemporaryDirectory(prefix="munge")
        for name in ("log", "state", "spool", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName=vn{node} Name=gpu File=/dev/zero\n" for node in GPU_NODES)
        )
        try:
            self._start_munge(key)
            self._start("slurmctld", "slurmctld", "-D", "-c", "-f", self.environment["SLURM_CONF"])
            for number in range(1, self.nodes + 1):
                self.start_node(number)
            self.until(lambda: len(self.idle()) == self.nodes, START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self._daemons and self._daemons["slurmctld"].is_running():
            with contextlib.suppress(subprocess.SubprocessError):
                self.ask("scancel", "--me", "--signal=KILL")
                self.ask("scancel", "--me")
                self.until(lambda: not self.ask("squeue", "-h"), 20)
        slurmds = [name for name in self._daemons if name.startswith("slurmd.")]
        for name in (*slurmds, "slurmctld", "munged"):
            self._stop(name)
        self._munge_folder.cleanup()

    def ask(self, *command: str, folder: Path | None = None, **more: Any) -> str:
        """Return what a command prints; it must succeed."""
        environment = {**os.environ, **self.environment}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **more
        )
        if done.returncode:
            raise subprocess.SubprocessError(f"{command} ended with code {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def idle(self) -> list[str]:
        """The nodes that no job has."""
        try:
            return sorted(set(self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()))
        except subprocess.SubprocessError:  # it is starting
            return []

    def state(self, job: str) -> dict[str, str]:
        """What SLURM knows of a job, by the names of `scontrol show job`."""
        words = self.ask("scontrol", "show", "job", job, "-o").splitlines()[0].split()
        return dict(word.partition("=")[::2] for word in words)

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "".join(f"\n--- {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("log/*"))
                raise TimeoutError(f"SLURM: it took too long{logs}")
            time.sleep(0.1)

    def start_node(self, number: int) -> None:
        """Start the daemon of a node."""
        name = f"vn{number}"
        (self.folder / "spool" / name).mkdir(exist_ok=True)
        self._start(f"slurmd.{name}", "slurmd", "-D", "-N", name, "-f", self.environment["SLURM_CONF"])

    def kill_node(self, number: int) -> None:
        """Kill the daemon of a node, and all that it has started there."""
        daemon = self._daemons.pop(f"slurmd.vn{number}")
        daemon.kill()
        daemon.wait(END_S)
        for process in self.processes_on(number):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def processes_on(self, number: int) -> list[psutil.Process]:
        """The processes of jobs on a node, and the daemons of their steps."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                environment = process.environ()
                if environment.get("SLURM_CONF") != self.environment["SLURM_CONF"]:
                    continue
                if environment.get("SLURMD_NODENAME") == f"vn{number}":
                    found.append(process)
        return found

    def _start_munge(self, key: Path) -> None:
        socket = self._socket
        self._start(
            *("munged", "munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"),
            *(f"--socket={socket}", f"--pid-file={key.with_name('pid')}", f"--log-file={key.with_name('log')}"),
            f"--seed-file={key.with_name('seed')}",
        )
        self.until(socket.is_socket, START_S)

    @property
    def _socket(self) -> Path:
        return Path(self._munge_folder.name) / "munge.socket"

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            program = shutil.which(command[0], path=self.environment["PATH"])
            assert program is not None
            self._daemons[name] = psutil.Popen(
                [program, *command[1:]],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _stop(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.terminate()
        try:
            daemon.wait(END_S)
        except psutil.TimeoutExpired:
            daemon.kill()
            daemon.wait(END_S)

    def _configuration(self) -> str:
        folder = self.folder
        here = platform.node().partition(".")[0]
        nodes = [
            f"NodeName=vn{number} NodeHostname={here} NodeAddr=127.0.10.{number} Port={PORT + number} "
            f"CPUs={self._cores} RealMemory=4000 State=UNKNOWN{' Gres=gpu:1' if number in GPU_NODES else ''}"
            for number in range(1, self.nodes + 1)
        ]
        everywhere = f"Nodes=vn[1-{self.nodes}] MaxTime=INFINITE State=UP"
        return "\n".join(
            [
                *("ClusterName=ci", "SlurmctldHost=localhost(127.0.0.1)", f"SlurmctldPort={PORT}"),
                *("SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge", "CredType=cred/munge"),
                # A job that is queued again starts once its credentials have expired.
                f"AuthInfo=socket={self._socket},cred_expire=5",
                *(f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool/%n"),
                *(f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/slurmd.%n.pid"),
                *(f"SlurmctldLogFile={folder}/log/slurmctld.log", f"SlurmdLogFile={folder}/log/slurmd.%n.log"),
                *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none"),
                *("AccountingStorageType=accounting_storage/none", "JobCompType=jobcomp/none", "PrologFlags=NoHold"),
                *("SwitchType=switch/none", "MpiDefault=none", "SelectType=select/cons_tres"),
                *("GresTypes=gpu", "SelectTypeParameters=CR_Core", "SchedulerType=sched/backfill"),
                "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1",
                *("SlurmdParameters=config_overrides", "ReturnToService=2", "SlurmctldTimeout=30", "SlurmdTimeout=15"),
                *(f"KillWait={KILL_WAIT_S}", "WaitTime=0", "MinJobAge=300"),
                *nodes,
                *("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"),
                f"PartitionName=ci {everywhere} Default=YES OverSubscribe=NO PriorityTier=1 PreemptMode=REQUEUE",
                f"PartitionName=urgent {everywhere} OverSubscribe=NO PriorityTier=9 PreemptMode=OFF",
                f"PartitionName=shared {everywhere} OverSubscribe=FORCE:2 PriorityTier=1 PreemptMode=OFF",
                "",
            ]
        )


PORT = 26817
"""The port of the controller; those of the nodes follow it."""
