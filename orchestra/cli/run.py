"""`orchestra run`: run an experiment to its end."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.filesize import decimal

from orchestra.cli.exit_codes import FINISHED, of_error, of_run
from orchestra.errors import UsageError
from orchestra.runs.api import carry_out
from orchestra.runs.experiment import load_experiment, recorded_experiment
from orchestra.runs.flags import FlagParser, Flags
from orchestra.runs.plan import OPTIONS, plan
from orchestra.runs.result import RunFailed
from orchestra.runs.run_directory import RunDirectory

_HELP = """Run an experiment: a Python file with a function `experiment` that returns a topology.

The parameters of that function are flags too; `orchestra run FILE --help` lists them.
Ctrl-C once saves and ends, twice aborts; SIGTERM and SIGHUP save and end.

Exit codes: 0 finished, 1 failed, 2 usage error, 69 hosts missing, 74 cannot write, 75 stopped by SIGTERM or SIGHUP and
resumable, 130 interrupted."""


def command(arguments: list[str]) -> int:
    """Run an experiment."""
    parser = FlagParser(prog="orchestra run", description=_HELP, usage="orchestra run FILE [flags]")
    parser.add_argument("--dry-run", action="store_true", help="print the topology and stop")
    OPTIONS.add_to(parser, "flags of every run")
    file, words = _file_and_flags(parser, arguments)
    if file is None and not any(word.partition("=")[0] == "--resume" for word in words):
        parser.parse_strictly(words)  # prints the help, or says which flag is wrong
        raise UsageError("orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py")
    flags = _experiment_flags(file, words)
    flags.add_to(parser)
    given = parser.parse_strictly(words)
    planned = plan(file, **OPTIONS.collect(given), **flags.collect(given))
    if given.dry_run:
        print(planned.topology.describe())
        return FINISHED
    try:
        result = carry_out(replace(planned, command=["orchestra", "run", *arguments]))
    except RunFailed as failed:
        result, code = failed.result, of_error(failed)
        print(f"orchestra: {failed}", file=sys.stderr)
    else:
        code = of_run(result.state, resumable=result.directory.resume_command is not None)
    if code != FINISHED and (resume := result.directory.resume_command):
        print(f"continue with: {resume}")
    _say_where_the_trace_is(result.directory)
    return code


def _file_and_flags(parser: FlagParser, arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the experiment's file, and all other arguments.

    It is the first argument, or stands behind flags. The flags of the experiment are not known yet: behind one of
    them, a word may be its value or the file, and the file is the first word that ends in `.py`.
    """
    takes_value = {flag.option for flag in OPTIONS if flag.base is not bool}
    known = set(parser._option_string_actions) | {"-h", "--help"}
    candidates = []
    previous = ""
    for index, word in enumerate(arguments):
        if not word.startswith("-") and previous not in takes_value:
            unsure = previous.startswith("--") and "=" not in previous and previous not in known
            candidates.append((not word.endswith(".py"), unsure, index))
        previous = word
    if any(word.partition("=")[0] == "--resume" for word in arguments):
        candidates = [candidate for candidate in candidates if not candidate[1]]  # no file is expected
    if not candidates:
        return None, list(arguments)
    *_, place = min(candidates)
    return Path(arguments[place]), [*arguments[:place], *arguments[place + 1 :]]


def _experiment_flags(file: Path | None, words: Sequence[str]) -> Flags:
    if file is not None:
        return Flags.of(load_experiment(file))
    parser = FlagParser(add_help=False)
    OPTIONS.add_to(parser)
    resume = OPTIONS.collect(parser.parse_known_args(words)[0])["resume"]
    path, function, _ = recorded_experiment(RunDirectory.open(resume))
    return Flags.of(load_experiment(path, function))


def _say_where_the_trace_is(run: RunDirectory) -> None:
    files = list(run.traces.glob("*.trace"))
    if files:
        nbytes = sum(file.stat().st_size for file in files)
        print(f"trace: {decimal(nbytes)} in {run.traces}; orchestra trace ls {run.path}")
