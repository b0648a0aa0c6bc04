"""`orchestra run`: run an experiment to its end."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.filesize import decimal

from orchestra.cli.exit_codes import FINISHED, HOSTS_MISSING, MISUSED, of_run
from orchestra.errors import UsageError
from orchestra.launch.engine import AskedHosts, HeadJob
from orchestra.launch.engines import ENGINES
from orchestra.runs.api import carry_out
from orchestra.runs.dry_run import described
from orchestra.runs.experiment import load_experiment, own_experiments, recorded_experiment
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.flags import Flags
from orchestra.runs.hosts_options import HOST_FLAGS, HostsOptions
from orchestra.runs.plan import OPTIONS, OWN_OPTIONS, PlannedRun, plan
from orchestra.runs.result import RunFailed
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.specialised import flags_of

_HELP = """Run an experiment: a Python file with a function `experiment` that returns a topology.

The parameters of that function are flags too; `orchestra run FILE --help` lists them.
Ctrl-C once saves and ends, twice aborts; SIGTERM and SIGHUP save and end.

Exit codes: 0 finished, 1 failed, 2 usage error, 69 hosts missing, 74 cannot write, 75 stopped by SIGTERM or SIGHUP and
resumable, 130 interrupted."""

_NO_FILE = "orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py"


def command(arguments: list[str]) -> int:
    """Run an experiment."""
    if any(word.partition("=")[0] == "--head" for word in arguments):
        return _on_another_host(arguments)
    file, words, flags = _file_and_flags(arguments)
    parser = _parser(flags)
    given = parser.parse_strictly(words)
    planned = plan(file, **OPTIONS.collect(given), **flags.collect(given))
    if planned.hosts is not None and planned.hosts.head_elsewhere:
        job = _head_job(planned, planned.hosts, [*([] if file is None else [str(file)]), *words], flags)
        return _submitted(planned, planned.hosts, job, dry_run=given.dry_run)
    if given.dry_run:
        print(described(planned))
        return FINISHED
    try:
        result = carry_out(replace(planned, command=["orchestra", "run", *arguments]))
        code = of_run(result)
    except RunFailed as failed:
        result, code = failed.result, of_run(failed)
        print(f"orchestra: {failed}", file=sys.stderr)
    with contextlib.suppress(BrokenPipeError):  # the exit code tells how the run ended
        if code not in (FINISHED, MISUSED) and (resume := result.directory.resume_command):
            print(f"continue with: {resume}")
        _say_where_the_trace_is(result.directory)
    if result.state == "stopped" and planned.hosts is not None and (planned.name or planned.resumed):
        said = ENGINES[planned.hosts.engine].stopped(planned.hosts.settings)  # a process that may be ended by that
        sys.stderr.write(f"orchestra: {said}\n" if said else "")
    return code


def _submitted(planned: PlannedRun, hosts: HostsOptions, job: HeadJob, *, dry_run: bool) -> int:
    """Have an engine start the head of a run, or show what would be asked of it."""
    submitter = ENGINES[hosts.engine].submitter(hosts.settings)
    assert submitter is not None
    submission = submitter.submission(job)
    if dry_run:
        print(submission)
        print(planned.topology.describe(planned.shapes))
        return FINISHED
    return submitter.submit(job, submission)


def _head_job(planned: PlannedRun, hosts: HostsOptions, words: Sequence[str], flags: Flags) -> HeadJob:
    """Return the run as its engine is to start it. `words` are all of its command line."""
    parser = _parser(flags)
    submit_flags = ENGINES[hosts.engine].submit_flags
    of_file = {"--hosts"} if hosts.file_words else set()
    dropped = {"--as", "--dry-run", *of_file, *("--" + name.replace("_", "-") for name in submit_flags)}

    def check(further: Sequence[str]) -> None:
        given = parser.parse_strictly(further)
        OPTIONS.collect(given)
        flags.collect(given)

    return HeadJob(
        experiment=planned.topology.name,
        words=(*parser.without(words, dropped), *hosts.file_words),
        name=planned.name,
        resumes=planned.resumed is not None,
        folder=str(planned.runs_dir / planned.topology.name),
        hosts=AskedHosts(hosts.hosts, hosts.here if hosts.head_plays else None, head_elsewhere=True),
        settings=hosts.settings,
        grace=hosts.grace,
        check=check,
    )


def _on_another_host(arguments: Sequence[str]) -> int:
    """Run the command on the host that `--head` names, which has the experiment in a folder of the same path."""
    from orchestra.hosts.settings import HostSettings
    from orchestra.launch.ssh_head import run_there

    parser = FlagParser(prog="orchestra run")
    HOST_FLAGS.add_to(parser)
    given = parser.parse_partly(arguments)[0]
    settings = HOST_FLAGS.collect(given)
    try:
        host = HostSettings.parse(settings["head"], slot=0)
    except UsageError as error:
        raise UsageError(f"--head: {error}") from None
    host = host.with_defaults(python=settings.get("python") or "", setup=settings.get("setup") or "")
    of_head = {"--head"} if "hosts" in settings else {"--head", "--ssh", "--python", "--setup"}
    words = [word for place, word in enumerate(arguments) if not _belongs_to(of_head, arguments, place)]
    code = run_there(host, ["run", *words], ssh=settings.get("ssh") or "ssh")
    if code is None:
        print(f"orchestra: the head on {settings['head']} cannot be reached by ssh any more", file=sys.stderr)
    return HOSTS_MISSING if code is None else code


def _belongs_to(options: set[str], arguments: Sequence[str], place: int) -> bool:
    """Return whether a word is one of `options`, such as `--head` or `--head=HOST`, or its value."""
    return arguments[place].partition("=")[0] in options or (place > 0 and arguments[place - 1] in options)


def _parser(flags: Flags | None = None) -> FlagParser:
    """Return the parser of all flags: those of every run, and those of an experiment if it is known."""
    parser = FlagParser(prog="orchestra run", description=_HELP, usage="orchestra run FILE [flags]")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be started, sent and listened at, and stop"
    )
    OWN_OPTIONS.add_to(parser, "flags of every run")
    HOST_FLAGS.add_to(parser, "flags of a run over several hosts")
    if flags is not None:
        flags.add_to(parser)
    return parser


def _file_and_flags(arguments: Sequence[str]) -> tuple[Path | None, list[str], Flags]:
    """Return the experiment's file, None for a resumed run, all other arguments, and the flags of the experiment.

    The file may stand behind flags, and only its own flags tell whether the word behind one of them is a value. So the
    words that may be the file are tried: Python files first, and words behind a flag last.

    Raises:
        UsageError: there is no file, or it is no experiment.
    """
    parser = _parser()
    if any(word.partition("=")[0] == "--resume" for word in arguments):
        resume = OPTIONS.collect(parser.parse_partly(arguments)[0])["resume"]
        path, function, values = recorded_experiment(RunDirectory.open(resume))
        _, flags = flags_of(load_experiment(path, function), values)
        places = _parser(flags).positions(arguments)
    else:
        places = sorted(
            parser.positions(arguments),
            key=lambda place: (not arguments[place].endswith(".py"), _follows_flag(arguments, place)),
        )
        if not places:
            parser.parse_strictly(arguments)  # prints the help, or says which flag is wrong
            raise UsageError(_NO_FILE)
        places = [next((place for place in places if _is_no_value(arguments, place)), places[0])]
        word = arguments[places[0]]
        if _follows_flag(arguments, places[0]) and not Path(word).exists() and word not in own_experiments():
            raise UsageError(f"{_NO_FILE}; there is no file {word!r}")
        _, flags = flags_of(load_experiment(Path(arguments[places[0]])), arguments)
    if not places:
        return None, list(arguments), flags
    place = places[0]
    return Path(arguments[place]), [*arguments[:place], *arguments[place + 1 :]], flags


def _follows_flag(arguments: Sequence[str], place: int) -> bool:
    return place > 0 and arguments[place - 1].startswith("-") and "=" not in arguments[place - 1]


def _is_no_value(arguments: Sequence[str], place: int) -> bool:
    """Return whether a word can be the experiment: by the flags of that experiment, it is no value of a flag."""
    if not _follows_flag(arguments, place):
        return True  # whatever it names
    try:
        flags = Flags.of(load_experiment(Path(arguments[place])))
    except UsageError:
        return False
    return place in _parser(flags).positions(arguments)


def _say_where_the_trace_is(run: RunDirectory) -> None:
    files = list(run.traces.glob("*.trace"))
    if files:
        nbytes = sum(file.stat().st_size for file in files)
        print(f"trace: {decimal(nbytes)} in {run.traces}; orchestra trace ls {run.path}")
