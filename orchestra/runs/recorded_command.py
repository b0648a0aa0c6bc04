"""The command line that repeats a run, from what its directory records."""

from pathlib import Path
from typing import Any

from orchestra.errors import UsageError
from orchestra.runs.experiment import load_experiment, own_experiments, recorded_experiment, recorded_options
from orchestra.runs.flags import Flags
from orchestra.runs.plan import OPTIONS, shared_memory_bytes
from orchestra.runs.run_directory import HIDDEN, RunDirectory
from orchestra.runs.specialised import flags_of
from orchestra.trace.recording.settings import MIB


def recorded_command(run: RunDirectory, *, defaults: bool = False) -> tuple[list[str], list[str]]:
    """Return the words of `orchestra run FILE …` that begin a run with the settings of `run`, and remarks about them.

    Args:
        run: a run, which may have ended.
        defaults: also write flags that have their default.

    Raises:
        UsageError: the run's config is damaged, its experiment stands in no file, or that file cannot be loaded.
    """
    file, function, values = recorded_experiment(run)
    _, flags = flags_of(load_experiment(file, function), values)
    known = flags.defaults
    said = [
        f"{file} has no parameter {name!r} any more, which was {value!r}"
        for name, value in values.items()
        if name not in known
    ]
    hidden = [name for name, value in values.items() if value == HIDDEN and name in known]
    said += [f"{name!r} is a secret, which the run does not record" for name in hidden]
    own = {name: value for name, value in values.items() if name in known and name not in hidden}
    options = recorded_options(run, OPTIONS)
    usual = OPTIONS.defaults | {"shared_memory": shared_memory_bytes(None) // MIB}
    words = [
        *_words(flags, flags.validated(own), {} if defaults else known, own),
        *_words(OPTIONS, options, usual, options),
    ]
    return ["orchestra", "run", _name(file), *words], said


def _name(file: Path) -> str:
    """Return the name of an experiment that comes with orchestra, wherever it is installed; else the path."""
    own = (name for name, path in own_experiments().items() if path.resolve() == file.resolve())
    return next(own, str(file))


def _words(flags: Flags, values: dict[str, Any], usual: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    shown = {name: value for name, value in values.items() if name in recorded}
    try:
        return flags.to_argv({n: v for n, v in shown.items() if n not in usual or v != usual[n]})
    except ValueError as error:
        raise UsageError(f"the config of the run is damaged: {error}") from error
