"""Runs the pods of Indexed Jobs as processes of this machine, by the rules that were seen on a real cluster.

Played are: the index variable, names of pods, Secrets, empty volumes and claims, SIGTERM to the first process alone,
the grace, exit codes, `podFailurePolicy`, `backoffLimit`, and replacement. There are no images, users or limits.
"""

import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
TEMPORARY = Path("/tmp")
COMPILED = Path.home() / ".cache" / "orchestra"
"""Compiled kernels, which take a minute to make."""
CONTAINER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Starts the first process of a container: it handles its signals, and all others end with it."""


def why_unavailable() -> str:
    """Return why pods cannot be run here; empty if they can."""
    try:
        done = subprocess.run([*CONTAINER, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        return "there is no unshare here"
    return "" if done.returncode == 0 else "this process may not mount, which the volumes of pods need"


class Pod:
    """One pod, from its start to its exit code."""

    def __init__(self, cluster: "PodRunner", job: "Job", index: int) -> None:
        self.cluster, self.job, self.index = cluster, job, index
        self.spec: dict[str, Any] = job.spec["template"]["spec"]
        self.host_name = f"{job.name}-{index}"
        self.number = cluster.number()
        self.address = f"127.0.21.{self.number}"
        self.folder = cluster.folder / f"{self.host_name}-{self.number}"
        self.folder.mkdir()
        self.deleted = False
        self.killed_at = 0.0
        self.log = self.folder / "log"
        (self.container,) = self.spec["containers"]
        with self.log.open("wb") as out:
            self.process = psutil.Popen(
                [*CONTAINER, "sh", "-c", f'{self._mounts()}\nexec "$@"', "sh", *self.container["command"]],
                env={
                    **{each["name"]: each["value"] for each in self.container["env"]},
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "PYTHONPATH": str(ROOT),
                    "HOSTNAME": self.host_name,
                    "JOB_COMPLETION_INDEX": str(index),
                },
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def delete(self) -> None:
        """Begin to end the pod, as `kubectl delete pod` and a drain do."""
        self.deleted = True
        self.killed_at = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        for first in self.process.children():
            first.terminate()

    def freeze(self) -> None:
        """Have its node stop answering: its processes stand still, and its Job gives it up, though it never ends."""
        self.deleted, self.killed_at = True, math.inf
        for process in self.process.children(recursive=True):
            process.suspend()

    def thaw(self) -> None:
        """Have its node answer again."""
        for process in self.process.children(recursive=True):
            process.resume()

    def code(self) -> int | None:
        """Return the exit code as Kubernetes counts it, or None while the pod runs."""
        if self.process.poll() is None:
            if self.deleted and time.monotonic() > self.killed_at:
                self.process.kill()
            return None
        code = int(self.process.returncode)
        return code if code >= 0 else 128 - code

    def _mounts(self) -> str:
        """Return the shell commands that mount the pod's volumes where the container has them."""
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        lines = ["set -e", "mount --make-rprivate /", f"mount --bind {self.cluster.hosts_file} /etc/hosts"]
        lines += ["mount -t tmpfs none /run", "mount -t tmpfs none /mnt"]
        mounts = sorted(self.container["volumeMounts"], key=lambda each: str(each["mountPath"]) == str(TEMPORARY))
        for mount in mounts:
            source, target = self._source(volumes[mount["name"]]), Path(mount["mountPath"])
            if target == TEMPORARY and ROOT.is_relative_to(TEMPORARY):  # the checkout stays where it is
                inside = source / ROOT.relative_to(TEMPORARY)
                inside.mkdir(parents=True)
                lines.append(f"mount --bind {shlex.quote(str(ROOT))} {shlex.quote(str(inside))}")
            if target == TEMPORARY and COMPILED.is_dir():  # as in an image that has played before
                inside = source / ".cache" / "orchestra"
                inside.mkdir(parents=True)
                lines.append(f"mount --bind {shlex.quote(str(COMPILED))} {shlex.quote(str(inside))}")
            lines += [f"mkdir -p {target}", f"mount --rbind {shlex.quote(str(source))} {target}"]
        return "\n".join(lines)

    def _source(self, volume: dict[str, Any]) -> Path:
        if "persistentVolumeClaim" in volume:
            return self.cluster.claim
        source = self.folder / str(volume["name"])
        source.mkdir()
        if "secret" in volume:
            for name, text in self.cluster.secrets[volume["secret"]["secretName"]].items():
                (source / name).write_text(text)
                (source / name).chmod(volume["secret"]["defaultMode"])
        return source


class Job:
    """An Indexed Job."""

    def __init__(self, cluster: "PodRunner", document: dict[str, Any]) -> None:
        self.name: str = document["metadata"]["name"]
        self.spec: dict[str, Any] = document["spec"]
        self._cluster = cluster
        self.codes: list[tuple[int, int]] = []
        """The index and the exit code of each pod that has ended, in order."""
        self.failures = 0
        self.state = "Running"
        self._done: set[int] = set()
        self.pods: list[Pod] = []
        """Those that have not ended."""

    def step(self) -> None:
        """Note which pods have ended, and start those that are missing."""
        for pod in list(self.pods):
            if (code := pod.code()) is not None:
                self.pods.remove(pod)
                self.codes.append((pod.index, code))
                self._ended(pod.index, code)
        if self.state != "Running":
            return
        policy = "podFailurePolicy" in self.spec  # then a pod is replaced once it has ended, else when it begins to
        for index in range(self.spec["completions"]):
            there = [pod for pod in self.pods if pod.index == index and (policy or not pod.deleted)]
            if index not in self._done and not there:
                self.pods.append(Pod(self._cluster, self, index))

    def pod(self, index: int) -> Pod:
        """Return the pod of an index."""
        return next(pod for pod in self.pods if pod.index == index and not pod.deleted)

    def _ended(self, index: int, code: int) -> None:
        if code == 0:
            self._done.add(index)
            if len(self._done) == self.spec["completions"]:
                self.state = "Complete"
            return
        for rule in self.spec.get("podFailurePolicy", {}).get("rules", ()):
            if code in rule.get("onExitCodes", {}).get("values", ()):
                if rule["action"] == "FailJob":
                    self.state = "Failed"
                return
        self.failures += 1
        if self.failures > self.spec["backoffLimit"]:
            self.state = "Failed"


class PodRunner:
    """A cluster that knows Jobs, Secrets and names.

    Args:
        folder: keeps what the pods write.
        documents: what was applied.
        secrets: the contents of each Secret, by file.
    """

    def __init__(self, folder: Path, documents: list[dict[str, Any]], secrets: dict[str, dict[str, str]]) -> None:
        self.folder, self.secrets = folder, secrets
        self.claim = folder / "claim"
        self.claim.mkdir()
        self.hosts_file = folder / "hosts"
        self.hosts_file.write_text("127.0.0.1 localhost\n")
        self._number = 0
        (self.service,) = [each["metadata"]["name"] for each in documents if each["kind"] == "Service"]
        jobs = [Job(self, each) for each in documents if each["kind"] == "Job"]
        self.jobs = {re.sub(f"^{self.service}-", "", job.name): job for job in jobs}

    def number(self) -> int:
        self._number += 1
        return self._number

    def step(self) -> None:
        """Do what controllers and kubelets do at this moment."""
        for job in self.jobs.values():
            job.step()
        lines = ["127.0.0.1 localhost"]
        for job in self.jobs.values():
            lines += [
                f"{pod.address} {pod.host_name}.{self.service} {pod.host_name}" for pod in job.pods if not pod.deleted
            ]
        self.hosts_file.write_text("\n".join(lines) + "\n")  # in place: pods have it mounted

    def close(self) -> None:
        """End all pods."""
        for job in self.jobs.values():
            for pod in job.pods:
                pod.process.kill()
                pod.process.wait(10)

    def story(self) -> str:
        """Return what all pods have printed, and how they have ended."""
        logs = "".join(f"\n--- {log}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*/log")))
        return f"{[(job.name, job.state, job.codes) for job in self.jobs.values()]}{logs}"
