"""Arrows run one way: between packages, and between the files of each."""

import ast
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("orchestra", "messages", "components", "experiments")
# A front door imports the rooms behind it, and they import each other's files, never the door.
FACES = [path.parent for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py")]


def files(floor: str) -> list[Path]:
    return sorted((ROOT / floor).rglob("*.py"))


def imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    """The modules that a file imports, anywhere in it; `from a import b` is both a and a.b."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    if not for_types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                skipped.update(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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


@pytest.mark.parametrize("floor", FLOORS)
def test_the_files_of_a_package_do_not_import_each_other_in_a_circle(floor: str) -> None:
    modules = {module_of(path): path for path in files(floor)}
    graph = {
        name: {other for other in imports(path, for_types=False) if other in modules and other != name}
        for name, path in modules.items()
    }
    # A package's own door, named by `from package import module`, is not what is imported.
    doors = {module_of(folder / "__init__.py") for folder in FACES}
    graph = {name: {other for other in others if other not in doors} for name, others in graph.items()}
    while leaves := [name for name, others in graph.items() if not others & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="what belongs to the project is what git knows of")
def test_nothing_else_lies_at_the_top() -> None:
    known = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {name.partition("/")[0] for name in known} == {
        *("orchestra", "components", "messages", "experiments", "tests", "docs", "benchmarks", ".ci"),
        *("pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore"),
    }
