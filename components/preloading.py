"""Preloading: a template loads the code of an environment and of a policy before it forks workers."""

from components.envs import base
from components.policies.algorithm import Algorithm
from components.rollout import ActingFactory, EnvFactory


def preload(env: EnvFactory, policy: ActingFactory) -> None:
    """Load the code of an environment, and of the policy if it is the acting side of an `Algorithm`.

    A policy that also learns is left to each process: it may start threads, and a process with threads is not forked.
    An environment in processes of its own has nothing to load, and its policy is left to each process, too.
    """
    spec = base.preload(env)
    algorithm = getattr(policy, "__self__", None)
    if spec is not None and isinstance(algorithm, Algorithm):
        algorithm.preload(spec)
