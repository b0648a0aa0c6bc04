"""Hosts of a sweep, divided among the runs that run at the same time."""

from collections.abc import Sequence

from orchestra import UsageError


def shared_out(words: Sequence[str], of_each: int | None) -> tuple[list[str], list[list[str]]]:
    """Return the arguments of all runs, and those of the runs in each place: `--hosts` with its own hosts.

    Args:
        words: flags of `orchestra run`. `--hosts` has names, such as `cpu1,cpu2,cpu3`, or a number of hosts, which the
            launcher then chooses.
        of_each: hosts of a run; None gives all arguments to all runs.

    Raises:
        UsageError: `--hosts` is missing, is a file, or has fewer hosts than a run gets.
    """
    if of_each is None:
        return list(words), []
    rest, hosts = _without_hosts(words)
    if hosts is None:
        raise UsageError("--hosts-per-run needs --hosts NAME,NAME,… or --hosts N")
    if hosts.endswith(".toml"):
        raise UsageError(f"--hosts-per-run: --hosts {hosts} is not allowed: name the hosts, as in --hosts cpu1,cpu2")
    names = None if hosts.isdecimal() else hosts.split(",")
    number = int(hosts) if names is None else len(names)
    if number < of_each:
        raise UsageError(f"--hosts-per-run: {of_each} is not allowed: --hosts {hosts} has {number}")
    places = range(0, number - of_each + 1, of_each)
    if names is None:
        return rest, [["--hosts", str(of_each)] for _ in places]
    return rest, [["--hosts", ",".join(names[first : first + of_each])] for first in places]


def _without_hosts(words: Sequence[str]) -> tuple[list[str], str | None]:
    rest, hosts = list(words), None
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--hosts" and equals:
            hosts, rest = value, [*words[:position], *words[position + 1 :]]
        elif word == "--hosts" and position + 1 < len(words):
            hosts, rest = words[position + 1], [*words[:position], *words[position + 2 :]]
    return rest, hosts
