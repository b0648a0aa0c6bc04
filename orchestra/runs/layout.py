"""Layout: an experiment and the values of its flags, from which the topology of a run is built over any hosts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestra.errors import UsageError
from orchestra.hosts.shape import Hosts
from orchestra.runs.experiment import (
    NAME,
    build,
    experiment_flags,
    find_experiment,
    hosts_parameters,
    load_experiment,
    recorded_experiment,
    source_of,
)
from orchestra.runs.run_directory import HIDDEN, RunDirectory
from orchestra.runs.specialised import specialised
from orchestra.runs.topology import Topology

Experiment = str | Path | Callable[..., Topology] | Topology
"""The path of an experiment's file, a function that returns a topology, or a topology."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An experiment and the values of its flags, which lay out the nodes of a run."""

    function: Callable[..., Topology]
    values: dict[str, Any]
    """The values of the experiment's flags."""
    words: Sequence[str]
    """The same as on a command line."""
    source: tuple[Path, str] | None
    """The file and the function that another process can import; None if there are none."""
    resumed: RunDirectory | None = None
    """The run that is resumed."""

    @property
    def spreads(self) -> bool:
        """True if the experiment takes the hosts of its run."""
        return bool(hosts_parameters(self.function))

    def topology(self, hosts: Hosts) -> Topology:
        """Return the topology of the run over `hosts`.

        Raises:
            UsageError: the experiment fails.
        """
        topology = build(self.function, self.values, hosts)
        if self.resumed is not None:
            _rescale(topology, self.resumed)
        return topology

    def imported(self) -> "Layout":
        """Return the layout as the other processes import it.

        A message of another module would be another message to them.
        """
        if self.source is None:
            return self
        return replace(self, function=specialised(load_experiment(*self.source), self.values))


def layout_of(
    experiment: Experiment | None,
    resumed: RunDirectory | None,
    given: Mapping[str, Any],
    every_run: Mapping[str, object],
) -> Layout:
    """Return the layout of an experiment, or of the one of the run that is `resumed`.

    Args:
        experiment: None for a resumed run, or the path at which its file is now.
        resumed: the run that goes on.
        given: the flags of the experiment that were given.
        every_run: the flags that every run has, which an experiment cannot have.

    Raises:
        UsageError: there is no such experiment, or a flag is not allowed.
    """
    source: tuple[Path, str] | None
    if isinstance(experiment, Topology):
        if given:
            raise UsageError(f"a Topology has no flags, but got {', '.join(given)}")
        topology = experiment
        return Layout(lambda: topology, {}, (), None)
    if callable(experiment):
        function, source = experiment, source_of(experiment)
    else:
        if resumed is not None:
            file, name, earlier = recorded_experiment(resumed)
            if isinstance(experiment, Path):
                file = experiment
            source, given = (file, name), {**earlier, **given}
            if hidden := [name for name, value in given.items() if value == HIDDEN]:
                raise UsageError(
                    f"--{hidden[0].replace('_', '-')}: a secret is not recorded in a run directory; give it again"
                )
        elif isinstance(experiment, str | Path):
            source = find_experiment(Path(experiment)), NAME
        else:
            raise UsageError(
                f"cannot run {experiment!r}: an experiment is the path of a file, a function that returns a Topology, "
                "or a Topology"
            )
        function = load_experiment(*source)
    function = specialised(function, given)
    known = experiment_flags(function)
    if taken := [flag for flag in known if flag.name in every_run]:
        raise UsageError(f"parameter {taken[0].name!r} makes the flag {taken[0].option}, which every run has")
    values = known.validated(given)
    return Layout(function, values, known.to_argv(values), source, resumed)


def _rescale(topology: Topology, resumed: RunDirectory) -> None:
    """Give a resumed run the replicas that `orchestra scale` left it, unless a flag asks for another number now."""
    for name, (planned, now) in resumed.read_replicas().items():
        group = topology.groups.get(name)
        if group is not None and group.planned == planned:
            topology.scale(name, max(now, group.at_least))
