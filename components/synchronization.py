"""Rules for loading parameters: at every publication, at every N-th, or when a worker's policy has diverged too far.

The last is adaptive actor policy synchronisation (AAPS; Lafuente-Mercado, *High-Throughput Distributed Reinforcement
Learning via Adaptive Policy Synchronization*). In the paper, workers compare with received parameters. Here the head
sends a digest, the outputs of its policy for a few inputs, and a worker requests parameters only when it needs them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from components.policies.acting import ActingPolicy
from components.policies.divergence import Measure, Outputs, mean_divergence, packed
from messages import LoadParamsMsg, ProbesMsg, PullParamsMsg, SyncMsg, VersionMsg
from messages.params import Decision
from orchestra import Ref, State, UsageError

FRAMES = "frames/"
"""Prefix of the fields per frame in the inputs of a probe."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SyncRule:
    """The rule by which a worker loads a version of the parameters. The first version is always loaded.

    Raises:
        ValueError: a threshold below 0, an interval below 1, or a weight outside of (0, 1].
    """

    measure: Measure | None = None
    """Measure for comparing policies; None for no comparison."""
    threshold: float = 0.0
    """Divergence above which a worker loads."""
    max_lag: int | None = None
    """Lag in versions from which on a worker loads for any divergence; None for no limit."""
    smoothing: float = 1.0
    """Weight of the newest divergence in the running average; with 1 the average is the newest one."""

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise ValueError(f"the threshold must be at least 0, got {self.threshold:g}")
        if self.max_lag is not None and self.max_lag < 1:
            raise ValueError(f"the number of versions must be at least 1, got {self.max_lag}")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"the weight of the newest divergence must be above 0 and at most 1, got {self.smoothing}")

    @property
    def pulls(self) -> bool:
        """True if workers request parameters; False if all are sent to them."""
        return self.measure is not None or self.max_lag is not None

    @classmethod
    def parse(cls, text: str, *, max_lag: int | None = None, smoothing: float = 1.0) -> "SyncRule":
        """Return the rule of `always`, `every:N`, `kl:THRESHOLD` or `greedy:THRESHOLD`.

        Raises:
            ValueError: the text is none of these, or an option does not fit it.
        """
        name, _, number = text.partition(":")
        if name in ("kl", "greedy"):
            measure: Measure = "kl" if name == "kl" else "greedy"
            return cls(measure, _number(float, text, number), max_lag, smoothing)
        if max_lag is not None or smoothing != 1.0:
            raise ValueError(f"a largest lag and smoothing are for thresholds such as kl:0.01, not for {text!r}")
        if text == "always":
            return ALWAYS
        if name == "every":
            return cls(max_lag=_number(int, text, number))
        raise ValueError(f"it must be always, every:N, kl:THRESHOLD or greedy:THRESHOLD, got {text!r}")

    def __str__(self) -> str:
        if self.measure is not None:
            return f"{self.measure}:{self.threshold:g}"
        return "always" if self.max_lag is None else f"every:{self.max_lag}"


def rule_of_flags(sync: str, max_lag: int | None, smoothing: float) -> SyncRule:
    """Return the rule of the flags `--sync`, `--sync-max-lag` and `--sync-smoothing`.

    Raises:
        UsageError: as `SyncRule.parse`.
    """
    try:
        return SyncRule.parse(sync, max_lag=max_lag, smoothing=smoothing)
    except ValueError as error:
        raise UsageError(f"--sync: {error}") from error


ALWAYS = SyncRule()
"""The rule that every version is sent to workers."""


def _number(kind: type[T], text: str, number: str) -> T:
    try:
        return kind(number)  # type: ignore[call-arg]  # int and float take texts
    except ValueError:
        raise ValueError(f"{text!r} needs a number after its colon") from None


def probe_outputs(policy: ActingPolicy, probes: ProbesMsg) -> dict[str, NDArray[Any]]:
    """Return the packed outputs of a policy for the last frame of each probe.

    Raises:
        TypeError: the policy gives no outputs.
        ValueError: its outputs are neither logits nor a Gaussian.
    """
    inputs = probes.inputs
    frames = {name.removeprefix(FRAMES): inputs[name] for name in inputs if name.startswith(FRAMES)}
    last_actions = inputs["last_actions"]
    hidden = policy.initial_hidden(len(last_actions))
    outputs: Outputs = {}
    for t in range(last_actions.shape[1]):
        outputs, hidden = policy.outputs({name: a[:, t] for name, a in frames.items()}, last_actions[:, t], hidden)
    return packed(outputs, _last(probes, "available"))


def compare(own: Outputs, other: Outputs, probes: ProbesMsg, measure: Measure) -> float:
    """Return the mean divergence of packed outputs over the probes and the agents that are alive and have a choice."""
    masks = {"available": _last(probes, "available"), "alive": _last(probes, "alive")}
    return mean_divergence(own, other, **masks, measure=measure)


def _last(probes: ProbesMsg, name: str) -> NDArray[np.bool_] | None:
    array = probes.inputs.get(FRAMES + name)
    return None if array is None else array[:, -1]


class _Own(NamedTuple):
    """A worker's own outputs, with their version and probes."""

    version: int
    probes: int
    outputs: Outputs


class Synchronizer:
    """A worker's side: decides about each announced version by a rule, and records the decisions.

    Args:
        rule: the rule for loading.
    """

    def __init__(self, rule: SyncRule) -> None:
        self.rule = rule
        self.version: int | None = None
        """Version of the acting parameters; None before the first."""
        self.wanted: int | None = None
        """Version that was requested and has not arrived; None if there is none."""
        self.decisions: list[Decision] = []
        """Decisions that have not been reported."""
        self._probes: ProbesMsg | None = None
        self._undecided: VersionMsg | None = None  # the newest announcement, while it waits
        self._average = 0.0
        self._own: _Own | None = None

    @property
    def ready(self) -> bool:
        """True if the worker may act: it has parameters, and no request is open."""
        return self.version is not None and self.wanted is None

    @property
    def undecided(self) -> bool:
        """True if an announced version waits for a decision."""
        return self._undecided is not None

    def forget_request(self) -> None:
        """Forget an open request, because the upstream is gone; the next upstream announces its version."""
        self.wanted = None

    def take_probes(self, probes: ProbesMsg) -> None:
        """Use these inputs for comparisons from now on."""
        self._probes = probes

    def decide(self, policy: ActingPolicy, news: VersionMsg | None = None) -> bool:
        """Return whether to request the parameters of the newest announced version; if so, expect them from now on.

        Each version is decided once, when no request is open. The decision waits for the probes of the digest, unless
        the version is loaded anyway. A version that is not newer than the own one is ignored.

        Args:
            policy: the policy with the parameters of the own version.
            news: an announcement; None to decide about a waiting one, if any.

        Raises:
            TypeError: the rule compares policies, and the policy gives no outputs.
        """
        news = self._undecided = news or self._undecided
        if news is None or self.wanted is not None:
            return False
        own, rule = self.version, self.rule
        if own is not None and news.version <= own:
            self._undecided = None
            return False
        divergence = average = None
        probes = None if self._probes is None or self._probes.number != news.probes else self._probes
        if own is not None and rule.measure is not None and probes is not None:
            divergence = compare(self._outputs(policy, own, probes), news.outputs, probes, rule.measure)
            average = rule.smoothing * divergence + (1.0 - rule.smoothing) * self._average
        loads = (
            own is None
            or own < news.required
            or (rule.max_lag is not None and news.version - own >= rule.max_lag)
            or (average is not None and average > rule.threshold)
        )
        if not loads and divergence is None and rule.measure is not None and news.probes is not None:
            return False  # its probes have not arrived yet
        self._undecided = None
        if average is not None:
            self._average = average
        if loads:
            self.wanted = news.version
        self.decisions.append((own, news.version, divergence, average, loads))
        return loads

    def loaded(self, params: LoadParamsMsg) -> bool:
        """Register parameters that have arrived; return whether to load them.

        A worker that requests parameters does not load any that are not newer than its own.
        """
        if self.wanted is not None and params.version >= self.wanted:
            self.wanted = None
        if self.rule.pulls and self.version is not None and params.version <= self.version:
            return False
        self.version, self._average = params.version, 0.0
        return True

    def report(self, worker: str) -> SyncMsg | None:
        """Return the decisions since the last report; None if there are none."""
        if not self.decisions:
            return None
        made, self.decisions = tuple(self.decisions), []
        return SyncMsg(worker=worker, decisions=made)

    def pull(self, ref: Ref[Any]) -> PullParamsMsg:
        """Return the request for the version that `decide` chose; the parameters are sent to `ref`."""
        assert self.wanted is not None
        return PullParamsMsg(version=self.wanted, ref=ref)

    def state(self) -> State:
        """Return the state, as values of a message."""
        return {
            "version": self.version,
            "wanted": self.wanted,
            "decisions": self.decisions,
            "probes": self._probes,
            "undecided": self._undecided,
            "average": self._average,
        }

    def load(self, state: State) -> None:
        """Continue from the `state` of another synchronizer."""
        self.version, self.wanted, self._average = state["version"], state["wanted"], state["average"]
        self._own = None
        self.decisions = [(own, version, d, mean, loads) for own, version, d, mean, loads in state["decisions"]]
        self._probes = None if state["probes"] is None else ProbesMsg.model_validate(state["probes"])
        self._undecided = None if state["undecided"] is None else VersionMsg.model_validate(state["undecided"])

    def _outputs(self, policy: ActingPolicy, version: int, probes: ProbesMsg) -> Outputs:
        if self._own is None or (self._own.version, self._own.probes) != (version, probes.number):
            self._own = _Own(version, probes.number, probe_outputs(policy, probes))
        return self._own.outputs
