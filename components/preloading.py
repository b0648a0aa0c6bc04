"""Preloading: a template loads the code of an environment and of a policy before it forks workers."""

from components.envs import base
from components.policies.algorithm import Algorithm
from components.rollout import ActingFactory, EnvFactory
from components.sparse import loops


def preload(env: EnvFactory, policy: ActingFactory) -> None:
    """Load the code of an environment and its sparse fields, and of a policy that is the acting side of an algorithm.

    A policy that also learns is left to each process: it may start threads, and a process with threads is not forked.
    An environment in processes of its own has nothing to load, and its policy is left to each process, too.
    """
    spec = base.preload(env)
    if spec is not None and spec.schema.sparse:
        loops().load()
    algorithm = getattr(policy, "__self__", None)
    if spec is not None and isinstance(algorithm, Algorithm):
        algorithm.preload(spec)
