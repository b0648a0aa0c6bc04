"""An experiment: a Python file whose function `experiment` lays out a run, and whose signature is its configuration.

The file is imported by its path, by every process of a run. What goes wrong in it is the user's to mend, so it is told
as one `UsageError` that names the file and the line.
"""

import functools
import importlib.util
import inspect
import re
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestra.errors import UsageError
from orchestra.runs.flags import Flags
from orchestra.runs.import_names import import_folder
from orchestra.runs.topology import Topology

NAME = "experiment"
_PACKAGE = Path(__file__).resolve().parents[1]
_OUR_EXPERIMENTS = (_PACKAGE / "experiments", _PACKAGE.parent / "experiments")
"""Where the experiments lie that come with orchestra: in an installation, and in a checkout."""


def load_experiment(path: Path) -> Callable[..., Topology]:
    """Import the file at `path` and return its function `experiment`, which no one has called yet.

    A file is imported once in a process: its messages would otherwise be defined twice. Its folder goes to the end of
    the import path, so that an experiment can import the modules beside it.

    Args:
        path: the file; or the name of an experiment that comes with orchestra, such as `qmix_8m`.

    Raises:
        UsageError: no such file, no Python file, one that cannot be imported, one without the function, or a function
            whose parameters cannot be flags.
    """
    path = find_experiment(path)
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory; name the experiment's file")
    if path.suffix != ".py":
        raise UsageError(f"{str(path)!r} is not a Python file (.py)")
    module = _imported(path)
    function = getattr(module, NAME, None)
    if not inspect.isfunction(function):
        others = [
            name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")
        ]
        found = f"; the functions in it are {', '.join(others)}" if others else ""
        raise UsageError(f"{path}: no function {NAME!r}{found}")
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{path}: {NAME}() is async; laying out a run waits for nothing, so write a plain def")
    try:
        Flags.of(function)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return function


def find_experiment(path: Path) -> Path:
    """Return the file of an experiment: `path` itself, or the file of that name that comes with orchestra.

    Raises:
        UsageError: there is neither.
    """
    if path.exists():
        return path
    ours = {file.stem: file for folder in _OUR_EXPERIMENTS for file in folder.glob("[!_]*.py")}
    if path.name in ours and path.parent == Path():
        return ours[path.name]
    known = "" if path.suffix else f"; the experiments that come with orchestra are {', '.join(sorted(ours))}"
    raise UsageError(f"there is no file {str(path)!r}{known}")


def variant(function: Callable[..., Topology], **defaults: object) -> Callable[..., Topology]:
    """Return the same experiment with other defaults: `experiment = variant(qmix_8m, scenario="3m")`.

    Raises:
        UsageError: a default is of no parameter, or is no value that its flag takes.
    """
    flags = {flag.name: flag for flag in Flags.of(function)}
    for name, value in defaults.items():
        if name not in flags:
            raise UsageError(f"there is no parameter {name!r}; the parameters are {', '.join(flags)}")
        defaults[name] = flags[name].validated(value)
    signature = inspect.signature(function)
    parameters = [p.replace(default=defaults.get(p.name, p.default)) for p in signature.parameters.values()]

    @functools.wraps(function)
    def experiment(**values: Any) -> Topology:
        return function(**{**defaults, **values})

    experiment.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    return experiment


def extends(base: Callable[..., Topology]) -> Callable[[Callable[..., Topology]], Callable[..., Topology]]:
    """Make an experiment of a function that changes what `base` lays out. All flags of both are its flags.

        @extends(load_experiment(Path(__file__).with_name("qmix_8m.py")))
        def experiment(topology: Topology, *, every: Annotated[int, Field(ge=1)] = 4) -> Topology: ...

    Raises:
        UsageError: both have a parameter of one name.
    """

    def extend(function: Callable[..., Topology]) -> Callable[..., Topology]:
        _, *own = inspect.signature(function).parameters.values()
        inherited = inspect.signature(base).parameters
        if twice := [parameter.name for parameter in own if parameter.name in inherited]:
            raise UsageError(
                f"{', '.join(twice)}: the experiment that is extended has a parameter of that name already"
            )

        @functools.wraps(function)
        def experiment(**values: Any) -> Topology:
            mine = {parameter.name: values.pop(parameter.name) for parameter in own if parameter.name in values}
            return function(base(**values), **mine)

        signature = inspect.Signature([*inherited.values(), *own], return_annotation=Topology)
        experiment.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
        both = (typing.get_type_hints(function, include_extras=True), typing.get_type_hints(base, include_extras=True))
        experiment.__annotations__ = {**both[0], **both[1]}
        return experiment

    return extend


def build(function: Callable[..., Topology], values: Mapping[str, Any]) -> Topology:
    """Call an experiment with the values of its flags, and return the run that it lays out.

    Raises:
        UsageError: it raised, or returned something else; the text names the line of its file.
    """
    file = inspect.getfile(inspect.unwrap(function))
    try:
        topology = function(**values)
    except (Exception, SystemExit) as error:
        raise UsageError(_told(error, Path(file))) from error
    if not isinstance(topology, Topology):
        returned = "nothing" if topology is None else f"a value of type {type(topology).__name__}"
        raise UsageError(f"{_shown(Path(file))}: {NAME}() returned {returned}; it must return a Topology")
    return topology


def _imported(path: Path) -> ModuleType:
    # Of the file's name alone, so that a process that finds the file in another folder names its messages the same.
    name = f"{NAME}_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    file = path.absolute()
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    import_folder(file.parent)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(_told(error, file)) from error
    return module


def _told(error: BaseException, file: Path) -> str:
    """One line: where in `file` it happened, as deep as the file goes, and what."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return f"{_shown(Path(error.filename))}:{error.lineno}: syntax error: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    where = f"{_shown(file)}:{lines[-1]}" if lines else _shown(file)
    said = " ".join(str(error).split())
    if isinstance(error, UsageError):
        return f"{where}: {said}"  # meant for the user as it is
    return f"{where}: {type(error).__name__}: {said}" if said else f"{where}: {type(error).__name__}"


def _shown(file: Path) -> str:
    """The file as a user would type it here."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
