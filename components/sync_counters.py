"""Counters of the synchronisation of workers: versions, loads, and bytes of parameters and digests."""

from collections.abc import Mapping
from typing import Any

from messages import ProbesMsg, SyncMsg, VersionMsg


class SyncCounters:
    """Counts the messages from an actor to those below it, and the decisions of workers.

    A message is counted once for each actor to which it is sent. From a proxy to the workers of its host messages use
    shared memory, so the counters of the Orchestrator measure the network.
    """

    def __init__(self) -> None:
        self.versions = 0
        """Versions that were announced, or sent to all workers."""
        self.params_sent = 0
        """Messages with parameters."""
        self.params_bytes = 0
        self.digests = 0
        """Announcements with a digest that were sent."""
        self.digest_bytes = 0
        """Bytes of the digests and of their probes."""
        self.decisions = 0
        """Decisions of all workers."""
        self.loads: dict[str, int] = {}
        """Loads of each worker that has decided, by its address."""
        self.divergence: float | None = None
        """The newest running average that a worker compared with its threshold."""

    def sent(self, nbytes: int, members: int = 1) -> None:
        """Count parameters of `nbytes` bytes, sent to `members` actors."""
        self.params_sent += members
        self.params_bytes += nbytes * members

    def announced(self, message: VersionMsg | ProbesMsg, members: int = 1) -> None:
        """Count an announcement or probes, sent to `members` actors."""
        if isinstance(message, ProbesMsg):
            self.digest_bytes += message.inputs.nbytes * members
        elif message.probes is not None:
            self.digests += members
            self.digest_bytes += message.outputs.nbytes * members

    def count(self, msg: SyncMsg) -> None:
        """Count the decisions of a worker."""
        self.decisions += len(msg.decisions)
        self.loads[msg.worker] = self.loads.get(msg.worker, 0) + sum(loads for *_, loads in msg.decisions)
        averages = [average for _, _, _, average, _ in msg.decisions if average is not None]
        self.divergence = averages[-1] if averages else self.divergence

    def figures(self) -> tuple[tuple[str, float], ...]:
        """Return the counts by name, for the Monitor."""
        own: dict[str, float] = {
            "versions": self.versions,
            "params_sent": self.params_sent,
            "params_bytes": self.params_bytes,
        }
        if self.loads:
            own |= {
                "digests": self.digests,
                "digest_bytes": self.digest_bytes,
                "decisions": self.decisions,
                "loads": sum(self.loads.values()),
                "loads_per_worker": sum(self.loads.values()) / len(self.loads),
            }
        if self.divergence is not None:
            own["divergence"] = self.divergence
        return tuple(own.items())

    def values(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint keeps."""
        return {**vars(self), "loads": dict(self.loads)}

    def load(self, values: Mapping[str, Any]) -> None:
        """Continue from the `values` of other counters."""
        vars(self).update(values)
        self.loads = dict(values["loads"])
