"""Experiments: functions that return a run's topology, and whose signature is its configuration.

Every process of a run imports the experiment's file by its path. An error in the file is raised as one `UsageError`
that names the file and the line.
"""

import functools
import importlib.util
import inspect
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from orchestra.errors import UsageError
from orchestra.hosts.bundle import UnpackedCode
from orchestra.hosts.shape import Hosts, HostShape, this_machine
from orchestra.runs.flags import Chosen, Flags
from orchestra.runs.import_names import import_folder
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.specialised import options_of, taker_of
from orchestra.runs.suggestions import did_you_mean
from orchestra.runs.topology import Topology

NAME = "experiment"
"""The function of a file that `orchestra run` calls."""
_DEFINED = re.compile(rf"^(?:def {NAME}\b|{NAME} =)", re.MULTILINE)
importing: ContextVar[Path | None] = ContextVar("importing", default=None)
"""The experiment's file that is being imported, if one is."""
_named: ContextVar[set[Path] | None] = ContextVar("named", default=None)
"""The files that `import_file` has imported for the experiment that is being built."""
_copies: dict[Path, Path] = {}
"""The copies of the files that flags name, if this process runs from the unpacked code of a run."""
_PACKAGE = Path(__file__).resolve().parents[1]
_OUR_EXPERIMENTS = (_PACKAGE / "experiments", _PACKAGE.parent / "experiments")
"""The folders of the experiments that come with orchestra: in an installation, and in a checkout."""


def load_experiment(path: Path, name: str = NAME) -> Callable[..., Topology]:
    """Import the file at `path` and return its function `name`.

    A file is imported once in a process, and again if it has changed. Its folder goes to the end of the import path,
    so that an experiment can import the modules beside it.

    Args:
        path: the file; or the name of an experiment that comes with orchestra: `qmix_8m`, `dmcaf/awl_qmix`.
        name: the function.

    Raises:
        UsageError: there is no such file; it is no Python file, cannot be imported, or lacks the function; or the
            function's parameters cannot be flags.
    """
    path = find_experiment(path)
    if importing.get() is None and _named.get() is None:  # else it is part of another
        _take_code_of(path)
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory; name the experiment's file")
    if path.suffix != ".py":
        raise UsageError(f"{str(path)!r} is not a Python file (.py)")
    module = import_file(path, NAME)
    function = getattr(module, name, None)
    if not inspect.isfunction(function):
        others = [
            other for other, value in vars(module).items() if inspect.isfunction(value) and not other.startswith("_")
        ]
        found = f"; the functions in it are {', '.join(others)}" if others else ""
        raise UsageError(f"{path}: no function {name!r}{found}")
    try:
        experiment_flags(function)
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
    ours = own_experiments()
    if str(path) in ours:
        return ours[str(path)]
    known = f"{did_you_mean(str(path), ours)}; the experiments that come with orchestra are {', '.join(sorted(ours))}"
    raise UsageError(f"there is no file {str(path)!r}{'' if path.suffix else known}")


def own_experiments() -> dict[str, Path]:
    """Return the files of the experiments that come with orchestra, by name: `qmix_8m`, `dmcaf/qmix`."""
    return {
        str(file.relative_to(folder).with_suffix("")): file
        for folder in _OUR_EXPERIMENTS
        for file in folder.rglob("[!_]*.py")
        if _DEFINED.search(file.read_text())  # others are programs of their own
    }


def experiment_flags(function: Callable[..., Topology]) -> Flags:
    """Return the flags of an experiment.

    Raises:
        UsageError: the function is async, or its parameters cannot be flags.
    """
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{function.__name__}() is async; it must be a plain def: it has nothing to wait for")
    return Flags.of(function)


def source_of(function: Callable[..., Topology]) -> tuple[Path, str] | None:
    """Return the file and the name by which another process can import `function`; None if there are none.

    There are none for a function of a notebook, of an interactive session, or within another function.
    """
    while (base := getattr(function, "variant_of", None)) is not None:
        function = base  # its values are passed on in full, so that its defaults do not matter
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, function.__name__, None) is not function:
        return None
    return Path(file), function.__name__


def recorded_experiment(run: RunDirectory) -> tuple[Path, str, dict[str, Any]]:
    """Return the file and the function of a run's experiment, and the values that its flags had.

    Raises:
        UsageError: the run's config is damaged, or its experiment stands in no file.
    """
    config = run.config()
    try:
        written, values = config["experiment"], dict(config["flags"])
        if written is None:
            raise UsageError(f"{str(run.path)!r}: its experiment stands in no file, so that it cannot be built again")
        return Path(written["absolute"]), str(written["function"]), values
    except (KeyError, TypeError) as error:
        raise UsageError(f"{str(run.path)!r}: its config.json lacks {error}") from error


def recorded_hosts(run: RunDirectory) -> Hosts | None:
    """Return the hosts of a run, for which its topology was built; None if its config does not say.

    Raises:
        UsageError: the run's config is damaged.
    """
    try:
        hosts = Hosts([HostShape(**host) for host in run.config().get("hosts", ())])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{str(run.path)!r}: its config.json is damaged: hosts: {error}") from error
    return hosts or None


def recorded_options(run: RunDirectory, options: Flags) -> dict[str, Any]:
    """Return the values that a run had for the options of every run, of the types of their flags.

    Raises:
        UsageError: the run's config is damaged.
    """
    recorded = run.config().get("options")
    if not isinstance(recorded, dict):
        raise UsageError(f"{str(run.path)!r}: its config.json lacks 'options'")
    try:
        return {name: options.validated({name: value})[name] for name, value in recorded.items()}
    except UsageError as error:
        raise UsageError(f"{str(run.path)!r}: its config.json is damaged: {error}") from error


def variant(function: Callable[..., Topology], **defaults: object) -> Callable[..., Topology]:
    """Return the same experiment with other defaults: `experiment = variant(qmix_8m, scenario="3m")`.

    Where the defaults choose an algorithm with options of its own, they may be options of it, too:
    `variant(train, algorithm="ppo", clip=0.1)`.

    Raises:
        UsageError: there is no such parameter or option, or its flag does not allow the value.
    """
    flags = {flag.name: flag for flag in Flags.of(function)}
    options = {flag.name: flag for flag in options_of(function, defaults)}
    known = flags | options
    for name in defaults:
        if name not in known:
            raise UsageError(f"there is no parameter {name!r}; the parameters are {', '.join(known)}")
    given = {name: flag.validated(defaults[name]) for name, flag in options.items() if name in defaults}
    of_chosen = {**getattr(function, "option_defaults", {}), **given}  # of a variant of a variant, both
    own = {name: known[name].validated(value) for name, value in defaults.items() if name not in options}
    signature = inspect.signature(function)
    parameters = [p.replace(default=own.get(p.name, p.default)) for p in signature.parameters.values()]
    taker = taker_of(function)

    @functools.wraps(function)
    def experiment(**values: Any) -> Topology:
        values = {**own, **values}
        if taker is not None and taker not in values:  # it is called as it is, without the flags of what it chooses
            names = [flag.name for flag in options_of(function, values)]
            values[taker] = Chosen({name: value for name, value in of_chosen.items() if name in names})
        return function(**values)

    experiment.option_defaults = of_chosen  # type: ignore[attr-defined]  # read by specialised
    experiment.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    experiment.variant_of = function  # type: ignore[attr-defined]  # read by source_of
    return experiment


def extends(base: Callable[..., Topology]) -> Callable[[Callable[..., Topology]], Callable[..., Topology]]:
    """Return a decorator that makes an experiment of a function that changes the topology of `base`.

    The experiment has the flags of both. If both declare `hosts: Hosts`, both get the hosts of the run.

        @extends(load_experiment(Path(__file__).with_name("qmix_8m.py")))
        def experiment(topology: Topology, *, every: Annotated[int, Field(ge=1)] = 4) -> Topology: ...

    Raises:
        UsageError: both have a parameter of the same name.
    """

    def extend(function: Callable[..., Topology]) -> Callable[..., Topology]:
        _, *own = inspect.signature(function).parameters.values()
        inherited = inspect.signature(base).parameters
        shared = {name for name in hosts_parameters(function) if name in hosts_parameters(base)}
        if twice := [one.name for one in own if one.name in inherited and one.name not in shared]:
            raise UsageError(
                f"{', '.join(twice)}: the experiment that is extended has a parameter of that name already"
            )

        @functools.wraps(function)
        def experiment(**values: Any) -> Topology:
            mine = {parameter.name: values[parameter.name] for parameter in own if parameter.name in values}
            theirs = {name: value for name, value in values.items() if name in inherited or name not in mine}
            return function(base(**theirs), **mine)

        own_alone = [parameter for parameter in own if parameter.name not in shared]
        signature = inspect.Signature([*inherited.values(), *own_alone], return_annotation=Topology)
        experiment.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
        both = (typing.get_type_hints(function, include_extras=True), typing.get_type_hints(base, include_extras=True))
        experiment.__annotations__ = {**both[0], **both[1]}
        return experiment

    return extend


def hosts_parameters(function: Callable[..., Topology]) -> list[str]:
    """Return the parameters of an experiment that take the hosts of its run: those of type `Hosts`."""
    hints = typing.get_type_hints(function)
    return [name for name in inspect.signature(function).parameters if hints.get(name) is Hosts]


def build(
    function: Callable[..., Topology], values: Mapping[str, Any], hosts: Sequence[HostShape] | None = None
) -> Topology:
    """Call an experiment with the values of its flags, and return its topology.

    Args:
        function: the experiment.
        values: of its flags.
        hosts: of the run; by default this machine alone. An experiment that declares no parameter of type `Hosts` does
            not get them.

    Raises:
        UsageError: it raised, or returned something else. The text names the line of its file.
    """
    file = inspect.getfile(inspect.unwrap(function))
    shapes = Hosts([this_machine()] if hosts is None else hosts)
    named: set[Path] = set()
    token = _named.set(named)
    try:
        topology = function(**values, **dict.fromkeys(hosts_parameters(function), shapes))
    except (Exception, SystemExit) as error:
        raise UsageError(_located(error, Path(file))) from error
    finally:
        _named.reset(token)
    if not isinstance(topology, Topology):
        returned = "nothing" if topology is None else f"a value of type {type(topology).__name__}"
        raise UsageError(f"{_shown(Path(file))}: {function.__name__}() returned {returned}; it must return a Topology")
    topology.named_files = tuple(sorted(named))
    return topology


def code_file(path: Path) -> Path:
    """Return the absolute path at which this process finds a Python file that a flag names.

    It is `path` itself, unless the process runs from the unpacked code of a run, which has a copy: a process of another
    host, or the replay of a run whose code has changed since.
    """
    file = Path(os.path.abspath(path))
    return _copies.get(file, file)


def _take_code_of(experiment: Path) -> None:
    """Let `code_file` find the copies that lie in one unpacked bundle with an experiment; none if it lies in none."""
    code = UnpackedCode.holding(Path(os.path.abspath(experiment)))
    _copies.clear()
    _copies.update({} if code is None else code.named)


def import_file(path: Path, prefix: str) -> ModuleType:
    """Import a Python file as the module `PREFIX_STEM`, and return it; a file that has changed is imported again.

    A file that is imported while an experiment is built belongs to the code of its run. `code_file` says where it is.

    Raises:
        UsageError: it cannot be imported. The text names the line.
    """
    # From the file's name alone, so that a process that finds the file in another folder names its messages the same.
    name = f"{prefix}_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    if (named := _named.get()) is not None:
        named.add(path.absolute())
    file = code_file(path)
    try:
        changed = file.stat().st_mtime_ns
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be imported: {error.strerror or error}") from error
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file) and known.__dict__.get("__changed__") == changed:
        return known
    import_folder(file.parent)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__changed__"] = changed
    sys.modules[name] = module  # before it runs: dataclasses and type hints look their module up by name
    token = importing.set(file)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(_located(error, file)) from error
    finally:
        importing.reset(token)
    return module


def _located(error: BaseException, file: Path) -> str:
    """Return the error in one line, with the innermost line of `file` that it came through."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return f"{_shown(Path(error.filename))}:{error.lineno}: syntax error: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    where = f"{_shown(file)}:{lines[-1]}" if lines else _shown(file)
    said = " ".join(str(error).split())
    if isinstance(error, UsageError) and said.startswith("--"):
        return said  # a flag is wrong, and not the file
    if isinstance(error, UsageError):
        return f"{where}: {said}"  # written for the user
    return f"{where}: {type(error).__name__}: {said}" if said else f"{where}: {type(error).__name__}"


def _shown(file: Path) -> str:
    """Return the path as a user would type it here."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
