"""A user's packages and modules are never mixed up with ours: what would be hidden is an error that names both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAD = "from orchestra import Topology\n"
PLAN = "def experiment() -> Topology:\n    return Topology(NAME)\n"
LOAD = """
import sys
from pathlib import Path
from orchestra.errors import UsageError
from orchestra.runs.experiment import build, load_experiment

for file in sys.argv[1:]:
    try:
        print(build(load_experiment(Path(file)), {}).name)
    except UsageError as error:
        print(f"refused: {error}")
"""


def loaded(*files: Path, before: str = "", path: Path | None = None, cwd: Path | None = None) -> list[str]:
    """Return a line for each file: the name of its plan, or why it was refused.

    `path` comes first on the import path.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [path, ROOT] if path else [ROOT]))}
    command = [sys.executable, "-c", before + LOAD, *map(str, files)]
    done = subprocess.run(
        command, env=environment, cwd=cwd or Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "plan.py"
    path.parent.mkdir()
    path.write_text(HEAD + "NAME = 'mine'\n" + PLAN)
    return path


def package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    return folder / name


def test_an_experiment_imports_the_modules_beside_it(file: Path) -> None:
    file.with_name("names.py").write_text("NAME = 'from-beside'\n")
    file.write_text(HEAD + "from names import NAME\n" + PLAN)
    assert loaded(file) == ["from-beside"]


def test_a_module_beside_an_experiment_hides_no_installed_one(file: Path) -> None:
    file.with_name("json.py").write_text("raise RuntimeError('this is not json')\n")
    file.write_text(HEAD + "import json\nNAME = json.loads('\"the-standard-one\"')\n" + PLAN)
    assert loaded(file) == ["the-standard-one"]


@pytest.mark.parametrize("name", ["components", "messages"])
def test_a_package_beside_the_experiment_that_ours_hides_is_refused(file: Path, name: str) -> None:
    theirs = package(file.parent, name)
    (line,) = loaded(file)
    assert line == (
        f"refused: two packages are named {name!r}: {str(ROOT / name)!r} belongs to orchestra, and {str(theirs)!r} "
        f"lies beside the experiment and is hidden. Move yours into a package of your own, for example "
        f"my_project/{name}, and import it as my_project.{name}"
    )


def test_a_single_file_and_a_folder_without_init_are_refused_too(file: Path) -> None:
    file.with_name("components.py").write_text("")
    assert "lies beside the experiment and is hidden" in loaded(file)[0]
    file.with_name("components.py").unlink()
    (file.parent / "messages").mkdir()
    assert loaded(file) == ["mine"]  # a folder without Python code is no package
    (file.parent / "messages" / "hello.py").write_text("")
    assert "lies beside the experiment and is hidden" in loaded(file)[0]


def test_a_package_that_was_imported_first_is_refused(file: Path, tmp_path: Path) -> None:
    theirs = package(tmp_path / "pymarl", "components")
    (line,) = loaded(file, before="import components\n", path=theirs.parent)
    assert f"{str(theirs)!r} was imported first" in line


def test_a_package_that_comes_first_on_the_import_path_is_refused(file: Path, tmp_path: Path) -> None:
    theirs = package(tmp_path / "pymarl", "components")
    (line,) = loaded(file, path=theirs.parent)
    assert f"{str(theirs / '__init__.py')!r} comes first on the import path" in line
    (line,) = loaded(file, cwd=theirs.parent)  # as `python -c` and a notebook put the current folder first
    assert "comes first on the import path" in line


def test_a_package_of_ones_own_around_it_is_the_remedy(file: Path) -> None:
    package(file.parent / "my_project", "components")
    (file.parent / "my_project" / "components" / "__init__.py").write_text("NAME = 'nested'\n")
    file.write_text(HEAD + "from my_project.components import NAME\n" + PLAN)
    assert loaded(file) == ["nested"]


def test_two_experiments_whose_modules_hide_each_other_are_not_loaded_in_one_process(
    file: Path, tmp_path: Path
) -> None:
    files = [file, tmp_path / "other" / "next.py"]
    files[1].parent.mkdir()
    for path in files:
        path.with_name("names.py").write_text(f"NAME = {path.stem!r}\n")
        path.write_text(HEAD + "from names import NAME\n" + PLAN)
    first, second = loaded(*files)
    assert first == "plan"
    assert second.startswith(f"refused: {str(files[1].with_name('names.py'))!r} is hidden by ")
    assert str(file.with_name("names.py")) in second
    assert loaded(files[1]) == ["next"]


def test_our_experiments_are_found_by_name_and_others_are_not() -> None:
    named, within, unknown, file = loaded(Path("qmix_3m"), Path("dmcaf/qmix"), Path("qmix_9m"), Path("qmix_9m.py"))
    assert (named, within) == ("qmix_3m", "qmix_3m")
    assert unknown.startswith(
        "refused: there is no file 'qmix_9m' (did you mean qmix_8m?); the experiments that come with orchestra are "
        "dmcaf/aw_qmix, "
    )
    assert unknown.endswith("qplex_3m, train")
    assert ", lunar_lander" not in unknown  # a program of its own, which makes many runs
    assert file == "refused: there is no file 'qmix_9m.py'"
