"""Imports run one way: between packages, between the rooms of orchestra, and between modules.

Imports for types count everywhere: a module that cannot be read without another one depends on it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("orchestra", "messages", "components", "experiments")
ROOMS = (
    {"errors", "clock", "log"},
    {"actors"},
    {"wire", "trace"},
    {"nodes"},
    {"hosts"},
    {"launch"},
    {"runs"},
    {"replay", "monitoring", "simulation"},
    {"dashboard"},
    {"cli", "testing"},
)
"""The rooms of orchestra, from the bottom. A module imports its own room and those below, not one beside it.
`orchestra/__init__.py` and `orchestra/__main__.py` may import any room."""
SIMULATOR = ROOT / "components" / "envs" / "skirmish"
"""A package of its own that can be installed without the rest."""
MODULES_AT_THE_TOP = 10
LONGEST = 450
"""Lines of a module."""
# A package's `__init__` imports its modules, and they import each other, never the `__init__`.
FACES = [path.parent for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py")]


def files(floor: str) -> list[Path]:
    return sorted((ROOT / floor).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it; `from a import b` is both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parts[: -node.level]
                module = ".".join((*package, module) if module else package)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("floor", FLOORS)
def test_no_package_imports_one_above_it(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    wrong = [(module_of(path), name) for path in files(floor) for name in imports(path) if name.split(".")[0] in above]
    assert wrong == []


@pytest.mark.parametrize("floor", ["orchestra", "messages"])
def test_torch_stays_in_components(floor: str) -> None:
    wrong = [module_of(path) for path in files(floor) if "torch" in {name.split(".")[0] for name in imports(path)}]
    assert wrong == []


def graph(floors: tuple[str, ...]) -> dict[str, set[str]]:
    """Return what each module imports of the others, without the `__init__` of packages."""
    modules = {module_of(path): path for floor in floors for path in files(floor)}
    inits = {module_of(folder / "__init__.py") for folder in FACES}
    return {name: modules.keys() & set(imports(path)) - inits - {name} for name, path in modules.items()}


def test_the_simulator_alone_imports_relatively_and_imports_nothing_of_the_rest() -> None:
    outside: dict[str, set[str]] = {}
    for path in [path for floor in FLOORS for path in files(floor)]:
        within = path.is_relative_to(SIMULATOR)
        for node in ast.walk(ast.parse(path.read_text())):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            assert within or not relative, f"{path} imports relatively"
            if within and not relative and isinstance(node, ast.Import | ast.ImportFrom):
                absolute = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                tops = {name.partition(".")[0] for name in absolute} - set(sys.stdlib_module_names)
                outside.setdefault(path.name, set()).update(tops)
    interfaces = {"gymnasium.py": {"gymnasium", "numpy"}, "pettingzoo.py": {"gymnasium", "numpy", "pettingzoo"}}
    assert {name: outside.pop(name) for name in interfaces} == interfaces
    # numba is built on llvmlite, and requires one version of it.
    assert set().union(*outside.values()) == {"numpy", "numba", "llvmlite"}


def floor_of(module: str) -> int:
    room = module.split(".")[1]
    return next(level for level, rooms in enumerate(ROOMS) if room in rooms)


def test_every_module_of_orchestra_is_in_a_room() -> None:
    rooms = {module.split(".")[1] for module in map(module_of, files("orchestra")) if module != "orchestra"}
    assert rooms == set().union(*ROOMS) | {"__main__"}


def test_the_rooms_of_orchestra_import_only_those_below() -> None:
    wrong = set()
    for name, others in graph(("orchestra",)).items():
        if name in ("orchestra", "orchestra.__main__"):
            continue
        wrong |= {
            f"{name} > {other}"
            for other in others
            if name.split(".")[1] != other.split(".")[1] and floor_of(other) >= floor_of(name)
        }
    assert wrong == set(), "an import runs upward or sideways"


def test_the_parts_of_a_trace_import_only_those_below() -> None:
    parts = ("format", "recording", "reading", "analysis")
    wrong = {
        f"{name} > {other}"
        for name, others in graph(("orchestra",)).items()
        for other in others
        if name.startswith("orchestra.trace.") and other.startswith("orchestra.trace.")
        if parts.index(other.split(".")[2]) > parts.index(name.split(".")[2])
    }
    assert wrong == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    rest = graph(FLOORS)
    while free := [name for name, others in rest.items() if not others & rest.keys()]:
        for name in free:
            del rest[name]
    while free := [name for name in rest if not any(name in others for others in rest.values())]:
        for name in free:  # it leads into a cycle, and is in none
            del rest[name]
    circular = {name: sorted(others & rest.keys()) for name, others in rest.items()}
    assert circular == {}, "a cycle of imports"


def test_few_modules_lie_directly_in_orchestra() -> None:
    assert len(list((ROOT / "orchestra").glob("*.py"))) <= MODULES_AT_THE_TOP


def test_no_module_is_long() -> None:
    long = {module_of(path) for floor in FLOORS for path in files(floor) if path.read_text().count("\n") > LONGEST}
    assert long == set(), f"more than {LONGEST} lines"


@pytest.mark.parametrize("floor", FLOORS[:3])
def test_the_files_of_a_package_do_not_import_names_from_its_door(floor: str) -> None:
    modules = {module_of(path) for path in files(floor)}
    wrong = []
    for path in files(floor):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == floor:
                wrong += [(module_of(path), a.name) for a in node.names if f"{floor}.{a.name}" not in modules]
    assert wrong == []


@pytest.mark.parametrize("folder", FACES, ids=lambda folder: module_of(folder / "__init__.py"))
def test_a_face_hands_out_what_it_names(folder: Path) -> None:
    module = import_module(module_of(folder / "__init__.py"))
    for name in getattr(module, "__all__", ()):  # ruff keeps them sorted
        assert getattr(module, name) is not None


PUBLIC = {"orchestra", "orchestra.log", "orchestra.testing", "orchestra.trace", "orchestra.wire.transports"}


def test_packages_above_orchestra_import_it_from_public_modules_alone() -> None:
    above = [path for floor in FLOORS[1:] for path in files(floor)] + sorted((ROOT / "docs" / "examples").glob("*.py"))
    wrong = []
    for path in above:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "orchestra":
                wrong += [(str(path), node.module)] if node.module not in PUBLIC else []
            elif isinstance(node, ast.Import):
                wrong += [(str(path), a.name) for a in node.names if a.name.startswith("orchestra.")]
    assert wrong == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="what belongs to the project is what git knows of")
def test_nothing_else_lies_at_the_top() -> None:
    known = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {name.partition("/")[0] for name in known} == {
        *("orchestra", "components", "messages", "experiments", "tests", "docs", "benchmarks", ".ci"),
        *("pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore"),
        *("CITATION.cff", ".github"),  # nobody looks for them anywhere else
    }
