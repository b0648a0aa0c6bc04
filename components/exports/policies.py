"""The policy of a checkpoint as named arrays, and as safetensors."""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.policies.base import Policy
from components.policies.modules import ModulePolicy
from components.policies.wrapped import WrappedPolicy
from components.trainer import Trainer
from orchestra import (
    RunDirectory,
    UsageError,
    build,
    flags_of,
    load_experiment,
    recorded_experiment,
    recorded_hosts,
    replacing,
)


def learner_of(run: RunDirectory, spec: EnvSpec) -> Policy:
    """Return the learning policy of a run, on the CPU, with initial parameters.

    Raises:
        UsageError: the run has no Trainer.
    """
    file, name, values = recorded_experiment(run)
    function, flags = flags_of(load_experiment(file, name), values)
    validated = {flag.name: flag.validated(values.get(flag.name, flag.default)) for flag in flags}
    topology = build(function, validated, recorded_hosts(run))
    for node in topology.nodes.values():
        for actor in node.actors:
            if issubclass(actor.kind, Trainer):
                make = actor.factory.keywords["policy"]
                known = {"device": "cpu"} if isinstance(make, partial) and "device" in make.keywords else {}
                policy: Policy = make(spec, seed=0, **known)
                return policy
    raise UsageError(f"topology {topology.name!r} has no Trainer, so it does not say what learns")


def modules_of(policy: Policy) -> ModulePolicy:
    """Return the part of a policy that is made of torch modules: itself, or the learner that it wraps.

    Raises:
        UsageError: there is none.
    """
    inner = policy.learner if isinstance(policy, WrappedPolicy) else policy
    if isinstance(inner, ModulePolicy):
        return inner
    raise UsageError(f"{type(policy).__name__} is not made of torch modules, so its arrays have no names")


def write_safetensors(path: Path, arrays: dict[str, NDArray[np.float32]], notes: dict[str, str]) -> None:
    """Write named arrays, and notes beside them, as safetensors.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.numpy import save

    with replacing(path) as file:
        file.write(save(arrays, metadata=notes))
