"""Names of a package that are imported when they are first used."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, whose stub (`.pyi`) says where each name comes from.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {name: module for module, name in re.findall(r"^from \.(\w+) import (\w+)", stub, flags=re.MULTILINE)}

    def get(name: str) -> Any:
        if name in homes:
            found = getattr(import_module(f"{package}.{homes[name]}"), name)
            vars(sys.modules[package])[name] = found  # so that the next use is no call
            return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(homes), sorted(homes)
