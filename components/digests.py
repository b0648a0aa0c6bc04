"""Digests: outputs of the learner's policy for a few inputs from experience, with which workers compare their own."""

import numpy as np

from components.experience import ExperienceSchema
from components.policies.base import EpisodeBatch, Policy
from components.synchronization import FRAMES, probe_outputs
from messages import ProbesMsg, VersionMsg
from orchestra import Arrays, freeze

PROBES = 64
"""Probes of a digest."""
REDRAWN = 10
"""Number of versions for which the same probes are used."""


class Digests:
    """Makes the digests of a policy that learns.

    Args:
        schema: schema of the environment, with its fields per frame.
        policy: the policy that learns.
        rng: generator for the choice of probes.
    """

    def __init__(self, schema: ExperienceSchema, policy: Policy, rng: np.random.Generator) -> None:
        self._schema, self._policy, self._rng = schema, policy, rng
        self.probes: ProbesMsg | None = None
        """The current probes; None before the first."""

    def make(self, version: int, batch: EpisodeBatch) -> list[ProbesMsg | VersionMsg]:
        """Return the digest of a version, preceded by new probes from the batch if the current ones are old.

        Raises:
            TypeError: the policy gives no outputs.
        """
        made: list[ProbesMsg | VersionMsg] = []
        if self.probes is None or version - self.probes.number >= REDRAWN:
            self.probes = self._draw(version, batch)
            made.append(self.probes)
        outputs = Arrays({name: freeze(a) for name, a in probe_outputs(self._policy, self.probes).items()})
        made.append(
            VersionMsg(version=version, required=-1, env_steps=None, probes=self.probes.number, outputs=outputs)
        )
        return made

    def _draw(self, version: int, batch: EpisodeBatch) -> ProbesMsg:
        """Draw frames in which the policy has acted, each with the frames before it in its segment.

        A probe has `probe_frames` frames. Near the beginning of a segment, its first frame is repeated.
        """
        ends = np.cumsum(batch.lengths)
        drawn = self._rng.choice(int(ends[-1]), min(PROBES, int(ends[-1])), replace=False)
        segment = np.searchsorted(ends, drawn, side="right")
        begin = (ends - batch.lengths)[segment][:, None]
        t = drawn[:, None] - begin + np.arange(1 - self._policy.probe_frames, 1)  # (K, W)
        frames = begin + segment[:, None] + np.maximum(t, 0)  # a segment has a frame more than steps
        masks = [name for name in ("available", "alive") if name in self._schema.frames]
        fields = dict.fromkeys([*(self._policy.probe_fields or self._schema.frames), *masks])
        inputs = {FRAMES + name: freeze(batch.frames(name)[frames]) for name in fields}
        taken = batch.steps("actions")[begin + np.maximum(t - 1, 0)]
        taken[t <= 0] = -1 if taken.dtype.kind == "i" else 0
        inputs["last_actions"] = freeze(taken)
        return ProbesMsg(number=version, inputs=Arrays(inputs))
