"""The import names of this distribution, kept apart from a user's own packages of the same names.

`components` and `messages` are common names: PyMARL has a package `components`, many projects have `messages`. The
first on the import path wins without a word, so a mix-up is an error here, before an experiment's file is imported.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from orchestra.errors import UsageError

NAMES = ("messages", "components")
"""The packages beside `orchestra`, in the order in which they import each other."""

_HOME = Path(__file__).resolve().parents[2]
_experiment_folders: set[Path] = set()


def import_folder(folder: Path) -> None:
    """Let an experiment in `folder` import the modules beside it. The folder goes to the end of the import path.

    Raises:
        UsageError: another package has the name of one of ours: it was imported already, it comes first on the import
            path, or it lies in `folder`; or a module beside the experiment has the name of one that lies beside an
            earlier experiment of this process.
    """
    folder = folder.resolve()
    for name in NAMES:
        if (_HOME / name).is_dir():
            _import_ours(name, folder)
    for path in sorted(folder.glob("*.py")):
        _check_not_hidden(path)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    _experiment_folders.add(folder)


def _import_ours(name: str, folder: Path) -> None:
    ours = _HOME / name
    module = sys.modules.get(name)
    if module is not None and _folder_of(module) != ours:
        raise UsageError(_mix_up(name, _folder_of(module), "was imported first"))
    beside = _package_in(folder, name)
    if beside is not None and beside != ours:
        raise UsageError(_mix_up(name, beside, "lies beside the experiment and is hidden"))
    if module is None:
        found = PathFinder.find_spec(name)
        if found is not None and found.origin is not None and Path(found.origin).resolve().parent != ours:
            raise UsageError(_mix_up(name, Path(found.origin), "comes first on the import path"))
        import_module(name)


def _mix_up(name: str, other: Path | None, how: str) -> str:
    return (
        f"two packages are named {name!r}: {str(_HOME / name)!r} belongs to orchestra, and {str(other)!r} {how}. "
        f"Move yours into a package of your own, for example my_project/{name}, and import it as my_project.{name}"
    )


def _folder_of(module: ModuleType) -> Path | None:
    if module.__file__ is not None:
        file = Path(module.__file__).resolve()
        return file.parent if file.name == "__init__.py" else file
    return next((Path(path).resolve() for path in getattr(module, "__path__", ())), None)


def _package_in(folder: Path, name: str) -> Path | None:
    """Return what `import name` would find in `folder`, if it holds Python code."""
    if (folder / f"{name}.py").exists():
        return folder / f"{name}.py"
    return folder / name if any((folder / name).glob("*.py")) else None


def _check_not_hidden(path: Path) -> None:
    module = sys.modules.get(path.stem)
    other = None if module is None else _folder_of(module)
    if other is not None and other != path and other.parent in _experiment_folders:
        raise UsageError(
            f"{str(path)!r} is hidden by {str(other)!r}, which another experiment of this process imported under the "
            f"same name: rename one of them, or run each experiment in a process of its own"
        )
