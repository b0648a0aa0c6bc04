"""The algorithm of a run: one of `policies.ALGORITHMS`, or a class in a file of the user."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from components import policies
from components.envs.base import EnvSpec
from components.experience import ExperienceSchema
from components.policies.base import Policy
from orchestra import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmChoice:
    """The algorithm named by `--algorithm`.

    Algorithms learn in one of three ways. Off policy they draw batches of episodes from a replay buffer. COMA learns
    from each episode once. Classes that are `on_policy` may learn in rounds of steps.
    """

    name: str
    own_class: type[Policy] | None
    """The class whose options are flags; None if the experiment has the flags of the algorithm."""

    @classmethod
    def named(cls, name: str) -> "AlgorithmChoice":
        """Return the choice for a name from `policies.named`.

        Raises:
            UsageError: there is no such file, or no such class in it.
        """
        return cls(name=name, own_class=policies.class_of(name))

    @property
    def is_coma(self) -> bool:
        return self.name == "coma"

    @property
    def on_policy(self) -> bool:
        """True if experience is learned from only while it is of the present policy."""
        return self.is_coma or (self.own_class is not None and self.own_class.on_policy)

    @property
    def title(self) -> str:
        """Name of the run and the display."""
        return self.name if self.own_class is None else self.own_class.__name__.lower()

    def or_default(self, value: T | None, usual: T, of_coma: T) -> T:
        """Return the value of a flag, or its default for COMA or for the other algorithms."""
        if value is not None:
            return value
        return of_coma if self.is_coma else usual

    def staleness(self, drop_stale: int | None, *, pulls: bool) -> int | None:
        """Return the largest lag of experience in versions; None if experience is never dropped.

        Args:
            drop_stale: value of the flag. By default the class decides.
            pulls: True if workers decide when they load parameters, and so how large their lag is.
        """
        if drop_stale is None and self.own_class is not None and not pulls:
            return self.own_class.max_staleness
        return drop_stale

    def check_used(
        self,
        experiment: Callable[..., object],
        shared: Mapping[str, Any],
        *,
        critic_steps: int,
        double_q: bool,
        exploration: Mapping[str, Any],
        replay: Mapping[str, Any],
    ) -> None:
        """Refuse a flag that the algorithm does not use, if its value differs from the default.

        Args:
            experiment: function with the defaults.
            shared: the flags of several algorithms; a class has them if it passes further keywords on.
            critic_steps: flag of COMA.
            double_q: flag of the algorithms that learn values.
            exploration: the flags of ε, for policies that use it.
            replay: the flags of the replay buffer's pace, off policy.

        Raises:
            UsageError: there is such a flag.
        """
        unused = {} if self.own_class is None or policies.passes_on(self.own_class) else dict(shared)
        if not self.is_coma:
            unused["critic_steps"] = critic_steps
        if self.is_coma or self.own_class is not None:
            unused["double_q"] = double_q
        if self.own_class is not None and not self.own_class.uses_epsilon:
            unused |= exploration
        if self.on_policy:
            unused |= replay
        parameters = inspect.signature(experiment).parameters
        for name, value in unused.items():
            if value != parameters[name].default:
                raise UsageError(
                    f"--{name.replace('_', '-')}: {value!r} is not allowed: {self.title} does not use this flag; "
                    "leave it out"
                )

    def configured(
        self, shared: "policies.RecurrentOptions", chosen: Mapping[str, Any], *, critic_steps: int, double_q: bool
    ) -> policies.Algorithm:
        """Return the algorithm with its options.

        Args:
            shared: options of several algorithms.
            chosen: options of `own_class`.
            critic_steps: option of COMA.
            double_q: option of the algorithms that learn values.
        """
        if self.own_class is not None:
            return policies.Algorithm.of_class(self.own_class, shared, chosen)
        ours = policies.ALGORITHMS[self.name].configured(**shared)
        if self.is_coma:
            return ours.configured(critic_learning_rate=shared["learning_rate"], critic_steps=critic_steps)
        return ours.configured(double_q=double_q)

    def check_environment(self, spec: EnvSpec) -> None:
        """Refuse an environment with fields of its own, from which only algorithms that are classes can learn.

        Raises:
            UsageError: the algorithm cannot learn from the environment.
        """
        if self.own_class is None and spec.fields:
            hint = "; --rewards mean makes one of all" if spec.schema.by_name["reward"].agents else ""
            raise UsageError(
                f"--algorithm: {self.name} learns from flat observations, discrete actions and one reward of the team, "
                f"which {spec.name} does not have{hint}"
            )

    def check_log_prob(self, schema: ExperienceSchema) -> None:
        """Refuse to compare log-probabilities if transitions have none.

        Raises:
            UsageError: the schema lacks them.
        """
        if "log_prob" not in schema.by_name:
            raise UsageError(f"--check-log-prob: {self.name} does not declare the field log_prob")
