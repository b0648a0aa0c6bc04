"""Division of the cores of a run's hosts among the learner and the workers."""

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
        """Return the shares for these flags; if a flag is None, its value depends on the cores of the hosts.

        Args:
            hosts: hosts of the run. The learner and the evaluator are on the first.
            learner_threads: threads of the learner.
            workers: workers of each host.
            min_workers: least number of workers; the run fails below it.
            processes: further processes of each worker that need a core each.

        Raises:
            UsageError: there are fewer workers than `min_workers`.
        """
        n_cores = hosts[0].cores
        threads = learner_threads or max(1, min(n_cores, 4 if n_cores >= 8 else 2))
        reserved = threads + 1  # plus one for the evaluator
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
