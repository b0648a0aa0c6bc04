"""Lazy imports: names of a package are imported at their first use."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package. Its stub (`.pyi`) lists the module of each name.

    Args:
        package: the package's `__name__`.
        file: the package's `__file__`.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {name: module for module, name in re.findall(r"^from \.(\w+) import (\w+)", stub, flags=re.MULTILINE)}

    def get(name: str) -> Any:
        if name in homes:
            found = getattr(import_module(f"{package}.{homes[name]}"), name)
            vars(sys.modules[package])[name] = found  # so that the next use does not call `get`
            return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(homes), sorted(homes)
