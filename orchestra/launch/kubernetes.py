"""`--launch kubernetes`: the head and the hosts are pods of two Jobs, which the user's `kubectl` makes from YAML.

No library of Kubernetes is used, and no pod has rights in the cluster: inside of it nothing is asked of Kubernetes.
"""

import math
import os
import re
import shlex
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.settings import HostSettings
from orchestra.hosts.shape import HEAD
from orchestra.launch.engine import (
    AskedHosts,
    Detach,
    Engine,
    HeadCores,
    HeadGpus,
    HeadJob,
    HostCores,
    HostGpus,
    HostMemory,
    Python,
    Settings,
    Submitter,
    bytes_of,
    on_top,
)
from orchestra.launch.events import HostEvents
from orchestra.launch.kubernetes_yaml import PORT, RUNS_FOLDER, TOKEN_FILE, Pods, job_set, objects, yaml_of
from orchestra.launch.protocol import HostEvent, HostRequest, Submission

if TYPE_CHECKING:  # it imports numpy
    from orchestra.hosts.run_plan import RunPlan

INDEX = "JOB_COMPLETION_INDEX"
"""The variable in the pods of an Indexed Job."""
ORPHAN_S = 3600
"""Seconds for which agents look for a head: a pod may wait for its image, or for room."""
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""The names of pods, such as NAME-hosts-1023, have at most 63 characters."""


class KubernetesLauncher:
    """Waits for agents that Kubernetes starts, and starts again, by itself. Implements `Launcher`.

    Args:
        hosts: the hosts with an agent.
        name: of the run, as its pods are labelled.
    """

    name = "kubernetes"
    replaces = True

    def __init__(self, hosts: Sequence[HostSettings], name: str) -> None:
        self._hosts = hosts
        self._run = name
        self._events = HostEvents(self._pod_of)

    def submission(self, plan: "RunPlan", requests: Sequence[HostRequest]) -> Submission:
        """Return nothing: the pods were asked for together with that of the head."""
        return Submission({}, ())

    async def start(self, submission: Submission, token: str) -> None:
        reason = f"kubectl get pods -l orchestra/run={self._run} shows its pod, and kubectl describe why it waits"
        for host in self._hosts:
            self._events.tell(host.slot, "asked", reason)

    def events(self) -> AsyncIterator[HostEvent]:
        return self._events.follow()

    async def again(self, slot: int) -> None:
        """Do nothing: the Job replaces a pod that has ended with another code than 0."""

    async def stop(self, deadline: float) -> None:
        """Stop the events. Agents that were told that the run is over end with 0, which completes their Job."""
        self._events.close()

    def _pod_of(self, slot: int) -> str:
        return f"pod {self._run}-hosts-{slot - 1}"


class KubernetesSubmitter:
    """Writes the YAML of a run, and a script that gives it to kubectl. Implements `Submitter`."""

    def submission(self, job: HeadJob) -> Submission:
        """Return the YAML, the script, and the command that runs it.

        Raises:
            UsageError: a setting is not allowed.
        """
        name, settings = name_of(job), job.settings
        if job.resumes:
            raise UsageError("--launch kubernetes: --resume names a folder of this machine; --as NAME goes on there")
        if not settings.get("image"):
            raise UsageError("--launch kubernetes needs --image: one with orchestra and the experiment in it")
        pods = _pods(name, job)
        jobs = job_set(pods) if settings.get("jobset") else objects(pods)
        folder = settings.get("write") or job.folder
        script = _script(name, settings)
        files = {f"{name}.yaml": yaml_of(jobs), f"{name}.sh": script}
        return Submission(files, (("sh", str(Path(folder) / f"{name}.sh")),))

    def submit(self, job: HeadJob, submission: Submission) -> int:
        """Write the files, run the script, and show what the head prints until it is over, or Ctrl-C."""
        ((shell, script),) = submission.commands
        Path(script).parent.mkdir(parents=True, exist_ok=True)
        for name, text in submission.files.items():
            Path(script).with_name(name).write_text(text)
        if job.settings.get("write"):
            print(f"written: {', '.join(submission.files)} in {job.settings['write']}; start the run by sh {script}")
            return 0
        name = name_of(job)
        if not job.settings.get("volume"):
            print(
                "the run directory ends with the head's pod, since there is no --volume; until then copy it by "
                f"kubectl cp {shlex.quote(_pod_of_head(name, job.settings))}:{RUNS_FOLDER} runs"
            )
        try:
            code = subprocess.run((shell, script), check=False).returncode  # noqa: S603 (a list, for no shell)
            if code or job.settings.get("detach"):
                return 1 if code else 0
            return _follow(name, job.settings)
        except KeyboardInterrupt:
            print(f"the run goes on, and is not followed any more; kubectl delete {_owner(name, job.settings)} ends it")
            return 0


def _follow(name: str, settings: Settings) -> int:
    """Show what the head prints; return 0 if its Job completes, else 1."""
    kubectl = ["kubectl", *(["--namespace", settings["namespace"]] if "namespace" in settings else [])]
    selector = f"orchestra/run={name},orchestra/part=head"
    pod = f"{kubectl[0]} describe pods -l {selector}"
    print(f"look at it: kubectl get pods -l orchestra/run={name}; why it waits: {pod}", flush=True)
    waited = ["wait", "--for=jsonpath={.status.phase}=Running", "--timeout=-1s", "pods", "-l", selector]
    subprocess.run([*kubectl, *waited], check=False, stdout=subprocess.DEVNULL)  # noqa: S603 (the user's own kubectl)
    subprocess.run([*kubectl, "logs", "--follow", "-l", selector, "--tail=-1"], check=False)  # noqa: S603 (the user's own kubectl)
    condition = "jsonpath={.status.conditions[?(@.status=='True')].type}"
    while True:
        asked = subprocess.run(  # noqa: S603 (the user's own kubectl)
            [*kubectl, "get", _owner(name, settings), "-o", condition], check=False, capture_output=True, text=True
        )
        if asked.returncode:
            raise OrchestraError(f"kubectl does not know how the run has ended: {asked.stderr.strip()}")
        if {"Complete", "Completed"} & set(asked.stdout.split()):
            return 0
        if {"Failed", "FailureTarget"} & set(asked.stdout.split()):
            return 1
        subprocess.run([*kubectl, "wait", "--for=condition=Complete", "--timeout=10s", _owner(name, settings)],  # noqa: S603 (the user's own kubectl)
                       check=False, capture_output=True)  # fmt: skip


def _owner(name: str, settings: Settings) -> str:
    """Return the object that owns all others of a run."""
    return f"jobset/{name}" if settings.get("jobset") else f"job/{name}-head"


def _pod_of_head(name: str, settings: Settings) -> str:
    return f"{name}-head-0-0" if settings.get("jobset") else f"{name}-head-0"


def _script(name: str, settings: Settings) -> str:
    """Return the shell script that makes the objects. The token is in a pipe alone: on no disk and no command line."""
    space = f" --namespace {shlex.quote(settings['namespace'])}" if "namespace" in settings else ""
    address = f"tls://{_pod_of_head(name, settings)}.{name}:{PORT}"
    kind, version = ("JobSet", "jobset.x-k8s.io/v1alpha2") if settings.get("jobset") else ("Job", "batch/v1")
    owner, owned = _owner(name, settings), ["secret"] if settings.get("jobset") else ["secret", "service"]
    others = [f"{each}/{name}" for each in owned] + ([] if settings.get("jobset") else [f"job/{name}-hosts"])
    resumed = [owner] if settings.get("jobset") else [owner, f"job/{name}-hosts"]
    reference = f'{{"apiVersion":"{version}","kind":"{kind}","name":"{owner.partition("/")[2]}","uid":"\'"$uid"\'"}}'
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Starts the run {name}. It needs kubectl and orchestra.",
            "set -eu",
            'cd -- "$(dirname -- "$0")"',
            f'kubectl() {{ command kubectl{space} "$@"; }}',
            f"token=$(orchestra token --new --name {name} --join {address})",
            f"kubectl create -f {name}.yaml",
            f"printf '%s\\n' \"$token\" | kubectl create secret generic {name} --from-file=token=/dev/stdin",
            f"uid=$(kubectl get {owner} -o 'jsonpath={{.metadata.uid}}')",
            f'owner=\'{{"metadata":{{"ownerReferences":[{reference}]}}}}\'',
            *(f'kubectl patch {each} --type=merge -p "$owner"' for each in others),
            *(f'kubectl patch {each} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'' for each in resumed),
            "",
        ]
    )


def _pods(name: str, job: HeadJob) -> Pods:
    settings = job.settings
    python = settings.get("python", "python")
    words = [*job.words, "--runs-dir", RUNS_FOLDER, "--token", TOKEN_FILE, "--port", str(PORT), "--as", name]
    if not any(word.partition("=")[0] == "--orphan-timeout" for word in words):
        words += ["--orphan-timeout", str(ORPHAN_S)]
    return Pods(
        name=name,
        image=settings["image"],
        head=[python, "-m", "orchestra", "run", *words],
        agent=[python, "-m", "orchestra", "host", "--token", TOKEN_FILE, "--dial-on"],
        hosts=len(job.hosts.hosts),
        grace=math.ceil(job.grace),
        host_cores=settings.get("host_cores", 1),
        host_gpus=settings.get("host_gpus", 0),
        host_memory=bytes_of("--host-memory", settings.get("host_memory", "")),
        head_cores=settings.get("head_cores", 1),
        head_gpus=settings.get("head_gpus", 0),
        head_memory=bytes_of("--head-memory", settings.get("head_memory", "")),
        volume=settings.get("volume", ""),
        pack=settings.get("pack", False),
    )


def name_of(job: HeadJob) -> str:
    """Return the name of a run's objects: that of `--as`, or one made of the experiment's.

    Raises:
        UsageError: `--as` cannot be the name of a pod.
    """
    name = job.name or re.sub("[^a-z0-9]+", "-", job.experiment.lower()).strip("-")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--as {name}: it names pods, too, so it must have lower-case letters, digits and dashes, at most 40, and "
            "begin with a letter"
        )
    return name


def hosts_of(number: int | None, settings: Settings, environment: Mapping[str, str] = os.environ) -> AskedHosts:
    """Return the hosts of a run: they come on top of the head, which only learns.

    Raises:
        UsageError: there is no number, or a setting is not allowed.
    """
    cores, gpus = settings.get("host_cores", 1), settings.get("host_gpus", 0)
    memory = bytes_of("--host-memory", settings.get("host_memory", ""))
    head_memory = bytes_of("--head-memory", settings.get("head_memory", ""))
    hosts = on_top(number, settings).hosts
    asked = tuple(HostSettings(host.slot, cores=cores, gpus=gpus, memory=memory) for host in hosts)
    head_cores, head_gpus = settings.get("head_cores", 0), settings.get("head_gpus", 0)
    head = HostSettings(HEAD, cores=head_cores, gpus=head_gpus, memory=head_memory)
    return AskedHosts(asked, head=head, head_elsewhere=INDEX not in environment)


def _launcher(hosts: Sequence[HostSettings], settings: Settings) -> KubernetesLauncher:
    pod = os.environ.get("HOSTNAME", "")
    return KubernetesLauncher(hosts, re.sub(r"-head-0(-0)?$", "", pod))


def _submitter(settings: Settings) -> Submitter | None:
    return None if INDEX in os.environ else KubernetesSubmitter()


def _flags(
    *,
    python: Python = None,
    image: Annotated[
        str | None, Field(description="the image of all pods, with orchestra and the experiment in it")
    ] = None,
    namespace: Annotated[str | None, Field(description="the namespace of all objects")] = None,
    volume: Annotated[str | None, Field(description="the claim of the volume that keeps the runs")] = None,
    write: Annotated[str | None, Field(description="write the YAML and the script into this folder, and stop")] = None,
    jobset: Annotated[bool, Field(description="write one JobSet in place of two Jobs")] = False,
    pack: Annotated[bool, Field(description="hosts need not be spread over the nodes")] = False,
    host_cores: HostCores = None,
    host_gpus: HostGpus = None,
    host_memory: HostMemory = None,
    head_cores: HeadCores = None,
    head_gpus: HeadGpus = None,
    head_memory: Annotated[
        str | None, Field(coerce_numbers_to_str=True, description="the memory of the head: 16Gi")
    ] = None,
    detach: Detach = False,
) -> None:
    """Describe the flags of Kubernetes."""


SUBMIT_FLAGS = frozenset(
    {
        *("image", "namespace", "volume", "write", "jobset", "pack", "python", "detach"),
        *("head_cores", "head_gpus", "head_memory"),
    }
)

ENGINE = Engine("kubernetes", _launcher, _flags, counted=hosts_of, submitter=_submitter, submit_flags=SUBMIT_FLAGS)
