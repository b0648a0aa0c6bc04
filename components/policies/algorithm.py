"""Learning algorithms by name: an experiment chooses and configures one, and torch is imported where it learns."""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from components.envs.base import EnvSpec
from components.policies.acting import ActingPolicy, epsilon_greedy, recurrent_acting, softmax_mixture
from components.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A learning algorithm with its options: what makes the policy that learns, and the policies that act.

    All processes of a run import the experiment that names it, and only the learner needs torch. `learner` is the
    factory for a Trainer, `acting` the one for a Worker.

    Args:
        policy: the class of the policy that learns, or "module:name" of one that is imported when it is called.
        acting_side: makes the policy that acts, given the spec and `options`. None if the policy that learns does: then
            each worker imports it.
        options: keywords of `policy`.
    """

    policy: str | Callable[..., Policy]
    acting_side: Callable[[EnvSpec, Mapping[str, Any]], ActingPolicy] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def configured(self, **options: Any) -> "Algorithm":
        """Return this algorithm with `options` added to its own."""
        return replace(self, options={**self.options, **options})

    @property
    def learner(self) -> "partial[Policy]":
        """The factory of the policy that learns: a partial function whose `keywords` are the options."""
        return partial(_learner, self.policy, **self.options)

    def acting(self, spec: EnvSpec, *, seed: int) -> ActingPolicy:
        """Make a policy that acts. `seed` has an effect only where that is the one that learns."""
        if self.acting_side is None:
            return self.learner(spec, seed=seed)
        return self.acting_side(spec, self.options)


def _learner(policy: str | Callable[..., Policy], spec: EnvSpec, /, *, seed: int, **options: Any) -> Policy:
    make: Callable[..., Policy] = pkgutil.resolve_name(policy) if isinstance(policy, str) else policy
    return make(spec, seed=seed, **options)


ALGORITHMS: Mapping[str, Algorithm] = {
    "qmix": Algorithm("components.policies.qmix:Qmix", recurrent_acting(epsilon_greedy)),
    "vdn": Algorithm("components.policies.vdn:Vdn", recurrent_acting(epsilon_greedy)),
    "iql": Algorithm("components.policies.iql:Iql", recurrent_acting(epsilon_greedy)),
    "coma": Algorithm("components.policies.coma:Coma", recurrent_acting(softmax_mixture)),
}
"""The algorithms of this package, by the names that the command line uses."""


def prepare() -> None:
    """Compile the loops of a gradient step ahead of time, as `kernel.prepare` does, which this imports."""
    from components.policies import kernel

    kernel.prepare()
