"""Public names and their signatures are those of `public_api.txt`.

`python tests/test_public_api.py` writes the file anew, for a change that is meant.
"""

import difflib
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

RECORD = Path(__file__).with_name("public_api.txt")
MODULES = (
    "components",
    "components.cluster_env",
    "components.envs",
    "components.policies",
    "components.replay_buffers",
    "messages",
    "orchestra",
    "orchestra.testing",
)
OURS = ("components", "messages", "orchestra")
DERIVED = ("handlers", "wire")  # which each class computes from its handlers or its fields


def public_names(module: ModuleType) -> list[str]:
    exported = getattr(module, "__all__", None)
    if exported is not None:
        return sorted(exported)
    return sorted(
        n
        for n, value in vars(module).items()
        if not n.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__)
    )


def signature(value: Any) -> str:
    """Names, kinds and defaults of the parameters. mypy checks their types, which each Python prints differently.

    A call of an enumeration looks a member up; its signature is Python's own and differs between versions.
    """
    if isinstance(value, enum.EnumMeta):
        return ""
    try:
        whole = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in whole.parameters.values()]
    text = str(whole.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    text = text.replace(repr(sys.executable), "'python'")
    return re.sub(r"<(?:class|function|object)? ?'?([\w.]+)[^>]*>", r"\1", text)


def methods(kind: type, public: set[type]) -> Iterator[str]:
    """What a class adds to its public base classes."""
    own = [c for c in kind.__mro__ if c is kind or (c not in public and c.__module__.split(".")[0] in OURS)]
    for name in sorted({n for c in own for n in vars(c) if not n.startswith(("_", "model_")) and n not in DERIVED}):
        value = inspect.getattr_static(kind, name)
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        yield f"{name}{signature(inner)}" if inspect.isfunction(inner) else name


def described() -> str:
    exported = {}
    for path in MODULES:
        module = importlib.import_module(path)
        for name in public_names(module):
            value = getattr(module, name)
            if not inspect.ismodule(value) and getattr(value, "__module__", path).split(".")[0] in OURS:
                exported[f"{path}.{name}"] = value
    public = {value for value in exported.values() if inspect.isclass(value)}
    lines = []
    for name, value in exported.items():
        lines.append(f"{name}{signature(value) if callable(value) else ''}")
        if inspect.isclass(value):
            lines += [f"{name}.{method}" for method in methods(value, public)]
    return "\n".join(lines) + "\n"


def test_public_names_and_signatures_are_the_recorded_ones() -> None:
    difference = list(difflib.unified_diff(RECORD.read_text().splitlines(), described().splitlines(), lineterm="", n=0))
    assert not difference, "`python tests/test_public_api.py` records what is meant:\n" + "\n".join(difference)


if __name__ == "__main__":
    RECORD.write_text(described())
