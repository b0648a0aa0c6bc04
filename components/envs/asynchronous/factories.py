"""Factories of environments as plain values, so that another process can rebuild them without unpickling."""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestra import UsageError

_PLAIN = (bool, int, float, str, bytes)


def described(value: Any) -> Any:
    """Return a factory, or an argument of one, as lists, strings and numbers.

    A factory is a function or class that can be imported, or a `functools.partial` of one with plain arguments: None,
    numbers, strings, bytes, lists, tuples, dicts, or factories again.

    Raises:
        UsageError: the value is something else, such as a lambda.
    """
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Path):
        return ["path", str(value)]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", [described(each) for each in value]]
    if isinstance(value, dict):
        return ["dict", [[described(key), described(each)] for key, each in value.items()]]
    if isinstance(value, functools.partial):
        return ["partial", described(value.func), described(value.args), described(value.keywords)]
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if callable(value) and module in sys.modules and "<" not in name:
        if _found(sys.modules[module], name) != value:
            raise UsageError(f"{value!r} cannot be imported in another process: {module}.{name} is something else")
        return ["import", module, _file_of(module), name]
    raise UsageError(
        f"{value!r} cannot be made in another process: a factory of environments is a function or class that can be "
        "imported, or a functools.partial of one with plain arguments; not a lambda, and not a function in a function"
    )


def built(description: Any) -> Any:
    """Return the value that was given to `described`; functions and classes are imported.

    Raises:
        UsageError: a function or class cannot be found.
    """
    if not isinstance(description, list):
        return description
    kind, *parts = description
    if kind == "path":
        return Path(parts[0])
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(built(each) for each in parts[0])
    if kind == "dict":
        return {built(key): built(value) for key, value in parts[0]}
    if kind == "partial":
        function, arguments, keywords = map(built, parts)
        return functools.partial(function, *arguments, **keywords)
    module, file, name = parts
    found = _found(_imported(module, file), name)
    if found is None:
        raise UsageError(f"{module} has no {name!r}")
    return found


def _found(module: Any, name: str) -> Callable[..., Any] | None:
    for part in name.split("."):
        module = getattr(module, part, None)
    found: Callable[..., Any] | None = module
    return found


def _file_of(module: str) -> str:
    """Return the file of a module that cannot be imported by name (the program itself, an experiment), or empty."""
    if module != "__main__" and importlib.util.find_spec(module) is not None:
        return ""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        raise UsageError(
            f"a function of {module} cannot be made in another process, since {module} has no file: move it to a file"
        )
    return str(Path(file).absolute())


def _imported(name: str, file: str) -> Any:
    if not file:
        return importlib.import_module(name)
    # Not as __main__: the code under `if __name__ == "__main__"` must not run again.
    name = "__orchestra_main__" if name == "__main__" else name
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise UsageError(f"{file!r} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
