"""The figures of a host: the environment steps that the learner has received from it, their rate, and their age."""

from collections import deque

RATE_S = 15.0
"""Seconds over which the rate is taken: experience comes in episodes, not in steps."""
NOTED_S = 0.5
"""Seconds between the counts that are kept for the rate."""


class HostFigures:
    """The figures of one host."""

    def __init__(self) -> None:
        self.env_steps = 0
        self.policy_lag: int | None = None
        """Versions by which its newest experience was behind, at most; None before it has played."""
        self._counts: deque[tuple[float, int]] = deque(maxlen=round(RATE_S / NOTED_S) + 1)

    def note(self, now: float, env_steps: int, policy_lag: int | None) -> None:
        """Note the steps so far and the lag of the newest experience, at `now` in seconds of a monotonic clock."""
        self.env_steps, self.policy_lag = env_steps, policy_lag
        if not self._counts or now - self._counts[-1][0] >= NOTED_S:
            self._counts.append((now, env_steps))

    def per_s(self, now: float) -> float:
        """Return the environment steps a second of the last `RATE_S` seconds; 0 before there are two counts."""
        counts = self._counts
        while len(counts) > 1 and now - counts[1][0] >= RATE_S:
            counts.popleft()
        if not counts or now <= counts[0][0]:
            return 0.0
        return (self.env_steps - counts[0][1]) / (now - counts[0][0])
