"""How the cores of a run's hosts are shared out among the learner and the workers."""

from dataclasses import dataclass

from orchestra import Hosts, HostShape, UsageError


@dataclass(frozen=True, slots=True)
class Cores:
    """Threads of the learner, and workers of each host that plays."""

    learner_threads: int
    workers: dict[HostShape, int]

    @classmethod
    def of_flags(
        cls, hosts: Hosts, *, learner_threads: int | None, workers: int | None, min_workers: int, processes: int
    ) -> "Cores":
        """Return the shares of these flags; those that are None are as the hosts allow.

        Args:
            hosts: of the run. The learner and the evaluator are on the first.
            learner_threads: of the learner.
            workers: of each host.
            min_workers: below which the run fails.
            processes: of each worker that want a core each, beside itself.

        Raises:
            UsageError: there are fewer workers than there must be.
        """
        n_cores = hosts[0].cores
        threads = learner_threads or max(1, min(n_cores, 4 if n_cores >= 8 else 2))
        reserved = threads + 1  # and the evaluator's
        counts = {
            host: workers or host.room_for(1 + processes, reserved=reserved if host.slot == 0 else 0)
            for host in hosts.playing
        }
        shares = cls(threads, counts)
        if min_workers > shares.n_workers:
            raise UsageError(f"--min-workers: {min_workers} is more than the {shares.n_workers} workers of the run")
        return shares

    @property
    def n_workers(self) -> int:
        return sum(self.workers.values())
