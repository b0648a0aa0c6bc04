"""The Kubernetes objects of a run, and their YAML: a Service, a Job of the head, and a Job of the hosts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestra.launch.protocol import NEVER_AGAIN

PORT = 41000
"""The port of the head."""
LABEL = "orchestra/run"
TOKEN_FOLDER = "/run/orchestra"  # noqa: S105 (a folder, and no password)
TOKEN_FILE = f"{TOKEN_FOLDER}/token"
RUNS_FOLDER = "/mnt/runs"
USER = 1000
"""The user and the group of all processes."""
KILL_S = 10
"""Seconds that a pod has to end, beyond the grace of the run."""
UNREACHABLE_S = 30
"""Seconds after which a pod leaves a node that does not answer; 300 by default."""
RETRIES = 20
"""Failures that are allowed for the agent of each host."""
HEAD_RETRIES = 6
KEPT_S = 3600
"""Seconds for which Kubernetes shows a Job that is over."""
_PLAIN = re.compile(r"[A-Za-z/][\w./-]*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of a run."""

    name: str
    """Of the run: a DNS label."""
    image: str
    head: Sequence[str]
    """The command line of the head."""
    agent: Sequence[str]
    """The command line of the agents."""
    hosts: int
    grace: int
    """Seconds from SIGTERM to SIGKILL, without `KILL_S`."""
    host_cores: int = 1
    host_gpus: int = 0
    host_memory: int = 0
    head_cores: int = 1
    head_gpus: int = 0
    head_memory: int = 0
    volume: str = ""
    """The claim of the volume with the runs; empty for one that ends with the pod."""
    pack: bool = False
    """True if several hosts may be on one node."""


def objects(pods: Pods) -> list[dict[str, Any]]:
    """Return the Service, the Job of the head and the Job of the hosts. The Jobs wait until they are resumed."""
    return [_service(pods), _job(pods, "head", suspend=True), _job(pods, "hosts", suspend=True)]


def job_set(pods: Pods) -> list[dict[str, Any]]:
    """Return one JobSet of the same two Jobs. It makes the Service."""
    jobs = [
        {"name": part, "replicas": 1, "template": {"spec": _job_spec(pods, part, subdomain=False)}}
        for part in ("head", "hosts")
    ]
    spec = {
        "suspend": True,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": pods.name},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["head"]},
        "ttlSecondsAfterFinished": KEPT_S,
        "replicatedJobs": jobs,
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(pods), "spec": spec}]


def _metadata(pods: Pods, name: str = "") -> dict[str, Any]:
    return {"name": name or pods.name, "labels": {LABEL: pods.name}}


def _service(pods: Pods) -> dict[str, Any]:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # else names appear with readiness alone
        "selector": {LABEL: pods.name},
        "ports": [{"name": "head", "port": PORT}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(pods), "spec": spec}


def _job(pods: Pods, part: str, *, suspend: bool) -> dict[str, Any]:
    spec = {"suspend": suspend, "ttlSecondsAfterFinished": KEPT_S, **_job_spec(pods, part)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(pods, f"{pods.name}-{part}"), "spec": spec}


def _job_spec(pods: Pods, part: str, *, subdomain: bool = True) -> dict[str, Any]:
    number = 1 if part == "head" else pods.hosts
    spec: dict[str, Any] = {"completionMode": "Indexed", "completions": number, "parallelism": number}
    if part == "head":
        spec["backoffLimit"] = HEAD_RETRIES
        in_vain = {"containerName": part, "operator": "In", "values": list(NEVER_AGAIN)}
        saved = {"containerName": part, "operator": "In", "values": [75]}
        spec["podFailurePolicy"] = {
            "rules": [
                {"action": "FailJob", "onExitCodes": in_vain},
                {"action": "Ignore", "onExitCodes": saved},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        }
    else:  # no policy: the pod of a dead node stays there for ever, and must be replaced before it has ended
        spec["backoffLimit"] = RETRIES * pods.hosts
    labels = {LABEL: pods.name, "orchestra/part": part}
    spec["template"] = {"metadata": {"labels": labels}, "spec": _pod(pods, part, subdomain=subdomain)}
    return spec


def _pod(pods: Pods, part: str, *, subdomain: bool) -> dict[str, Any]:
    head = part == "head"
    runs: dict[str, Any] = {"name": "runs"}
    runs |= {"persistentVolumeClaim": {"claimName": pods.volume}} if pods.volume else {"emptyDir": {}}
    mounts = [
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
        {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 (the pod's own)
        *([{"name": "runs", "mountPath": RUNS_FOLDER}] if head else []),
    ]
    container = {
        "name": part,
        "image": pods.image,
        "command": list(pods.head if head else pods.agent),
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108
        "resources": _resources(
            pods.head_cores if head else pods.host_cores,
            pods.head_gpus if head else pods.host_gpus,
            pods.head_memory if head else pods.host_memory,
        ),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",  # else exit codes would not decide
        "terminationGracePeriodSeconds": pods.grace + KILL_S,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        **({"subdomain": pods.name} if subdomain else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{how}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": UNREACHABLE_S,
            }
            for how in ("unreachable", "not-ready")
        ],
        "containers": [container],
        "volumes": [
            {"name": "token", "secret": {"secretName": pods.name, "defaultMode": 0o400, "optional": False}},
            {"name": "scratch", "emptyDir": {}},
            *([runs] if head else []),
        ],
    }
    if not head and not pods.pack:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {LABEL: pods.name, "orchestra/part": part}},
            }
        ]
    return pod


def _resources(cores: int, gpus: int, memory: int) -> dict[str, Any]:
    """Return what a container asks for. GPUs and memory are limits, too: Kubernetes gives out no others."""
    limits = {**({"memory": str(memory)} if memory else {}), **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {"requests": {"cpu": str(cores), **limits}, **({"limits": limits} if limits else {})}


def yaml_of(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents of JSON's types as YAML."""
    return "---\n".join("".join(line + "\n" for line in _lines(document)) for document in documents)


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item, "" if isinstance(item, list) else "  ")
        return
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
        else:
            yield from _entry("-", item, "  ")


def _entry(start: str, item: Any, indent: str) -> Iterator[str]:
    if isinstance(item, list | Mapping) and item:
        if isinstance(item, list) and not any(isinstance(each, list | Mapping) for each in item):
            yield f"{start} [{', '.join(map(_scalar, item))}]"
            return
        yield start
        yield from (f"{indent}{line}" for line in _lines(item))
    else:
        yield f"{start} {_scalar(item)}"


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line; a text that YAML could take for something else is in quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
