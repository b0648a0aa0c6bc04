"""Learning algorithms by name: an experiment chooses and configures one; torch is imported only where it learns."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from components.envs.base import EnvSpec
from components.experience import ExperienceSchema
from components.policies.acting import ActingPolicy, epsilon_greedy, recurrent_acting, softmax_mixture
from components.policies.base import Policy
from components.policies.hierarchical_acting import hierarchical_acting
from components.policies.ppo_acting import ppo_acting
from components.policies.ppo_options import TEAM
from components.policies.pqn_acting import pqn_acting
from orchestra import UsageError, code_file, did_you_mean, import_file


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A learning algorithm with its options: the factories of the learning policy and of the acting policies.

    All processes of a run import the experiment that names it; only the learner needs torch. `learner` is the
    factory for a Trainer, `acting` the one for a Worker.

    Args:
        policy: the class of the policy that learns, or "module:name" of one that is imported when it is called.
        acting_side: makes the acting policy from the spec and `options`. None if the learning policy also acts: each
            worker then imports it.
        options: keywords of `policy`.
        own_flags: True if the keyword-only parameters of the class are its flags, as for a class in a file. Otherwise
            the experiment has the flags.
    """

    policy: str | Callable[..., Policy]
    acting_side: Callable[[EnvSpec, Mapping[str, Any]], ActingPolicy] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    own_flags: bool = False

    def configured(self, **options: Any) -> "Algorithm":
        """Return this algorithm with `options` added to its own."""
        return replace(self, options={**self.options, **options})

    @classmethod
    def of_class(cls, policy: type[Policy], shared: Mapping[str, Any], chosen: Mapping[str, Any]) -> "Algorithm":
        """Return the algorithm of a class whose options are flags, as `class_of` returns it.

        Args:
            policy: the class.
            shared: options for a class that passes further keywords on, as a subclass of one of this package does.
            chosen: options of its own.
        """
        ours = f"{policy.__module__}:{policy.__qualname__}"
        # A class of this package stays a name, so that a worker that receives it does not import torch.
        known = next((each for each in ALGORITHMS.values() if each.own_flags and each.policy == ours), cls(policy))
        return known.configured(**(shared if passes_on(policy) else {}), **chosen)

    def on_device(self, device: str) -> "Algorithm":
        """Return the algorithm on a device.

        Raises:
            UsageError: its class takes no `device`, and this is not the CPU.
        """
        parameters = inspect.signature(self.policy).parameters if not isinstance(self.policy, str) else None
        takes = parameters is None or any(
            name == "device" or each.kind is each.VAR_KEYWORD for name, each in parameters.items()
        )
        if not takes and device != "cpu":
            raise UsageError(f"--device: {self.policy!r} takes no device, so that it learns on the CPU alone")
        return self.configured(device=device) if takes else self

    @property
    def learner(self) -> "partial[Policy]":
        """The factory of the policy that learns: a partial function whose `keywords` are the options."""
        return partial(_learner, self.policy, **self.options)

    def schema(self, spec: EnvSpec, segment_length: int | None = None) -> ExperienceSchema:
        """Return the fields of a transition, which environment and policy declare.

        Raises:
            ValueError: two fields have one name.
        """
        schema = spec.schema.having(self.acting(spec, seed=0).fields)
        return schema if segment_length is None else schema.limited(min(segment_length, schema.limit))

    def preload(self, spec: EnvSpec) -> None:
        """Load the code of the acting side. A policy that also learns has none, and nothing is loaded."""
        if self.acting_side is not None:
            self.acting(spec, seed=0).preload()

    def acting(self, spec: EnvSpec, *, seed: int) -> ActingPolicy:
        """Make a policy that acts. `seed` has an effect only if the learning policy acts."""
        if self.acting_side is None:
            return self.learner(spec, seed=seed)
        return self.acting_side(spec, self.options)


def _learner(policy: str | Callable[..., Policy], spec: EnvSpec, /, *, seed: int, **options: Any) -> Policy:
    make: Callable[..., Policy] = pkgutil.resolve_name(policy) if isinstance(policy, str) else policy
    return make(spec, seed=seed, **options)


ALGORITHMS: Mapping[str, Algorithm] = {
    "qmix": Algorithm("components.policies.qmix:Qmix", recurrent_acting(epsilon_greedy)),
    "vdn": Algorithm("components.policies.vdn:Vdn", recurrent_acting(epsilon_greedy)),
    "qplex": Algorithm("components.policies.qplex:Qplex", recurrent_acting(epsilon_greedy)),
    "iql": Algorithm("components.policies.iql:Iql", recurrent_acting(epsilon_greedy)),
    "coma": Algorithm("components.policies.coma:Coma", recurrent_acting(softmax_mixture)),
    "dqn": Algorithm("components.policies.dqn:Dqn", own_flags=True),
    "pqn": Algorithm(
        "components.policies.pqn:Pqn", pqn_acting(hidden_size=128, layers=2, recurrent=False), own_flags=True
    ),
    "pqn-vdn": Algorithm(
        "components.policies.pqn:PqnVdn", pqn_acting(hidden_size=128, layers=2, recurrent=False), own_flags=True
    ),
    "hierq": Algorithm(
        "components.policies.hierarchical:Hierq", hierarchical_acting(subtask_steps=5, factored=True), own_flags=True
    ),
    "ppo": Algorithm("components.policies.ppo:Ppo", ppo_acting(), own_flags=True),
    "ippo": Algorithm("components.policies.ppo:Ippo", ppo_acting(**TEAM, critic_input="obs"), own_flags=True),
    "mappo": Algorithm(
        "components.policies.ppo:Mappo", ppo_acting(**TEAM, critic_input="agent-specific"), own_flags=True
    ),
}
"""The algorithms of this package, by the names that the command line uses."""


def passes_on(policy: type[Policy]) -> bool:
    """Return whether a class takes further keywords, as a subclass does that passes them to its base class."""
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(policy).parameters.values())


def named(algorithm: str | type[Policy]) -> str:
    """Return the name of an algorithm as a run records it: one of `ALGORITHMS`, or FILE.py:CLASS with the whole path.

    Raises:
        ValueError: it is neither a name of `ALGORITHMS`, nor FILE.py:CLASS, nor a class in a file.
    """
    if isinstance(algorithm, type):
        file = inspect.getsourcefile(algorithm)
        if file is None or not issubclass(algorithm, Policy):
            raise ValueError(f"{algorithm.__name__} must be a subclass of Policy that stands in a file")
        return f"{Path(file).absolute()}:{algorithm.__qualname__}"
    file_text, colon, name = str(algorithm).rpartition(":")
    if algorithm in ALGORITHMS:
        return algorithm
    if not colon or not file_text.endswith(".py") or not name.isidentifier():
        hint = did_you_mean(str(algorithm), ALGORITHMS)
        raise ValueError(f"it must be {', '.join(ALGORITHMS)}, or FILE.py:CLASS{hint}")
    return f"{Path(file_text).absolute()}:{name}"


def class_of(algorithm: str | type[Policy]) -> type[Policy] | None:
    """Return the class whose options are flags: that of a file, or of one of `ALGORITHMS` with `own_flags`.

    Return None for other names of `ALGORITHMS`, and for values that `named` refuses.

    Raises:
        UsageError: there is no such file or no such class in it, or the class is no `Policy`.
    """
    try:
        known = named(algorithm)
    except ValueError:
        return None  # the error of the flag explains it
    if known in ALGORITHMS:
        ours = ALGORITHMS[known]
        found = pkgutil.resolve_name(ours.policy) if ours.own_flags and isinstance(ours.policy, str) else None
        return cast("type[Policy] | None", found)
    file_text, _, name = known.rpartition(":")
    path = Path(file_text)
    if not code_file(path).exists():
        raise UsageError(f"--algorithm: there is no file {file_text!r}")
    found = getattr(import_file(path, "algorithm"), name, None)
    if not isinstance(found, type) or not issubclass(found, Policy):
        raise UsageError(f"--algorithm: {file_text}: {name!r} is no subclass of Policy in this file")
    return found


def prepare() -> None:
    """Compile the loops of a gradient step ahead of time: import `kernel`, and call its `prepare`."""
    from components.policies import kernel

    kernel.prepare()
