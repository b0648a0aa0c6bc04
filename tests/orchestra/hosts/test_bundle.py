"""The bundle holds the code of a run, and unpacks below one folder alone."""

import io
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestra.errors import UsageError
from orchestra.hosts import bundle
from orchestra.hosts.bundle import Bundle, UnpackedCode
from orchestra.hosts.collected_code import make
from orchestra.runs.experiment import build, code_file, load_experiment

EXPERIMENT = """
from orchestra import Topology
import {name}_one
import {second}

def experiment() -> Topology:
    from {name}_lazily.imported import VALUE
    return Topology("bundled")
"""


def project(folder: Path, name: str, second: str = "") -> Path:
    """A project with modules beside the experiment, a package that only a function imports, and other files.

    The names of its modules begin with `name`: one process cannot import two that are equal.
    """
    for path, text in {
        "pyproject.toml": "",
        f"study/{name}.py": EXPERIMENT.format(name=name, second=second or f"{name}_two"),
        f"study/{name}_one.py": "ONE = 1",
        f"study/{name}_two.py": "TWO = 2",
        "study/unrelated.py": "UNRELATED = 3",
        f"study/{name}_lazily/__init__.py": "",
        f"study/{name}_lazily/imported.py": f"from {name}_lazily.further import VALUE",
        f"study/{name}_lazily/further.py": "VALUE = 4",
        f"study/{name}_lazily/unused.py": "",
        "study/maps/one.map": "#.#",
        "data.bin": "not asked for",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "study" / f"{name}.py"


def in_project(made: Bundle) -> set[str]:
    return {name.removeprefix("project/") for name in made.sizes if name.startswith("project/")}


def hostile(*entries: tuple[str, int]) -> bytes:
    """A zip with a manifest and these names, of these permissions."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("bundle.json", "{}")
        for name, mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename, info.external_attr = name, mode << 16
            archive.writestr(info, b"/etc/passwd")
    return buffer.getvalue()


def test_the_bundle_holds_the_experiment_and_what_it_imports_even_in_a_function(tmp_path: Path) -> None:
    file = project(tmp_path, "bundled_closure")
    load_experiment(file)
    expected = {".py", "_one.py", "_two.py", "_lazily/__init__.py", "_lazily/imported.py", "_lazily/further.py"}
    made = make(file)
    assert in_project(made) == {f"study/bundled_closure{name}" for name in expected}
    assert "packages/orchestra/hosts/bundle.py" in made.sizes
    assert "packages/components/envs/skirmish/units.toml" in made.sizes
    assert not [name for name in made.sizes if "pycache" in name]


def test_our_packages_are_left_out_where_the_hosts_use_their_installed_ones(tmp_path: Path) -> None:
    made = make(project(tmp_path, "bundled_installed"), installed=True)
    assert {name.partition("/")[0] for name in made.sizes} == {"project", "bundle.json"}


def test_shipped_files_and_folders_are_in_the_bundle(tmp_path: Path) -> None:
    file = project(tmp_path, "bundled_ships")
    made = make(file, [tmp_path / "study" / "maps", tmp_path / "data.bin"], installed=True)
    assert {"study/maps/one.map", "data.bin"} <= in_project(made)


def test_a_shipped_file_outside_of_the_project_root_is_refused(tmp_path: Path) -> None:
    file = project(tmp_path / "project", "bundled_outside")
    outside = tmp_path / "outside.map"
    outside.write_text("#")
    with pytest.raises(UsageError, match=r"--ship: '.*outside.map' lies outside of the project root '.*project'"):
        make(file, [outside])
    with pytest.raises(UsageError, match=r"--ship: there is no file '.*missing.map'"):
        make(file, [tmp_path / "missing.map"])


def test_a_module_outside_of_the_project_root_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "bundled_elsewhere.py").write_text("THREE = 3")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    file = project(tmp_path / "project", "bundled_root", second="bundled_elsewhere")
    load_experiment(file)
    assert not [name for name in make(file).sizes if "elsewhere" in name]


def test_equal_contents_have_equal_digests_whatever_was_imported_first(tmp_path: Path) -> None:
    digests = []
    for number, order in enumerate(["bundled_twice_one, bundled_twice_two", "bundled_twice_two, bundled_twice_one"]):
        file = project(tmp_path / str(number), "bundled_twice")
        script = (
            "import sys; from pathlib import Path; sys.path.append(str(Path(sys.argv[1]).parent));"
            f"import {order}; from orchestra.hosts.collected_code import make; print(make(Path(sys.argv[1])).digest)"
        )
        digests.append(subprocess.check_output([sys.executable, "-c", script, str(file)], text=True))
    assert digests[0] == digests[1]
    file.with_name("bundled_twice_one.py").write_text("ONE = 11")
    assert make(file).digest != make(tmp_path / "0" / "study" / "bundled_twice.py").digest


def test_the_digest_survives_the_zip(tmp_path: Path) -> None:
    made = make(project(tmp_path, "bundled_zip"))
    assert Bundle.read(made.data) == made


def test_a_bundle_that_is_too_large_names_its_five_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(tmp_path, "bundled_large")
    for number in range(7):
        (tmp_path / "study" / "maps" / f"{number}.map").write_bytes(bytes(1000 * (number + 1)))
    monkeypatch.setattr(bundle, "MOST_BYTES", 1024)
    with pytest.raises(UsageError, match=r"6\.map .*5\.map .*4\.map .*3\.map .*2\.map [^,]*$"):
        make(file, [tmp_path / "study" / "maps"], installed=True)


def test_sixty_five_mib_are_refused(tmp_path: Path) -> None:
    file = project(tmp_path, "bundled_65_mib")
    with (tmp_path / "study" / "maps" / "hole.map").open("wb") as hole:
        hole.truncate(65 << 20)
    with pytest.raises(UsageError, match=r"68\.2 MB, and 64 MiB are allowed.*hole\.map \(68\.2 MB\)"):
        make(file, [tmp_path / "study" / "maps"], installed=True)


def test_a_zip_that_would_unpack_to_too_much_is_refused_unread() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bundle.json", "{}")
        archive.writestr("project/zeros", bytes(65 << 20))
    assert len(buffer.getvalue()) < 1 << 20
    with pytest.raises(UsageError, match="64 MiB are allowed"):
        Bundle.read(buffer.getvalue())


@pytest.mark.parametrize(
    ("name", "mode", "wrong"),
    [
        ("/etc/orchestra", 0o644, "is absolute"),
        ("../escaped", 0o644, "is no plain relative name"),
        ("project/../../escaped", 0o644, "is no plain relative name"),
        ("project//double", 0o644, "is no plain relative name"),
        ("project\\escaped", 0o644, "is no plain relative name"),
        ("project/link", stat.S_IFLNK | 0o777, "is a link"),
        ("project/pipe", stat.S_IFIFO | 0o644, "is no plain file"),
    ],
)
def test_hostile_names_are_refused_by_name_and_nothing_is_written(
    tmp_path: Path, name: str, mode: int, wrong: str
) -> None:
    data = hostile(("project/innocent", 0o644), (name, mode))
    with pytest.raises(UsageError, match=wrong) as error:
        Bundle(data, "0" * 64, {}).unpack(tmp_path / "code", tmp_path)
    assert repr(name) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_bundle_is_refused() -> None:
    with pytest.raises(UsageError, match="is no zip"):
        Bundle.read(b"PK\x05\x06 and nothing else")
    with pytest.raises(UsageError, match="two files of one name"), pytest.warns(UserWarning, match="Duplicate"):
        Bundle.read(hostile(("project/a", 0o644), ("project/a", 0o644)))


def test_a_process_runs_from_the_unpacked_bundle_alone(tmp_path: Path) -> None:
    file = project(tmp_path / "checkout", "bundled_runs")
    load_experiment(file)
    code = make(file).unpack(tmp_path / "code", tmp_path)
    for changed in (file, file.with_name("bundled_runs_one.py")):
        changed.write_text("raise RuntimeError('the checkout was edited')")
    script = (
        "import orchestra, sys; from pathlib import Path; from orchestra.runs.experiment import load_experiment;"
        "load_experiment(Path(sys.argv[1]))(); import bundled_runs_one as one; print(orchestra.__file__, one.__file__)"
    )
    printed = subprocess.check_output(
        [sys.executable, "-c", script, str(code.experiment)], text=True, cwd=tmp_path, env=code.environment({})
    )
    assert all(Path(word).is_relative_to(code.folder) for word in printed.split())


def test_two_unpackings_of_one_bundle_leave_one_whole_folder(tmp_path: Path) -> None:
    made = make(project(tmp_path / "checkout", "bundled_race"), installed=True)
    for staging in ("one", "two"):
        (tmp_path / staging).mkdir()
        code = made.unpack(tmp_path / "code", tmp_path / staging)
        assert code == UnpackedCode.open(tmp_path / "code")
        assert list((tmp_path / staging).iterdir()) == []


def test_an_experiment_knows_the_bundle_that_it_lies_in(tmp_path: Path) -> None:
    file = project(tmp_path / "checkout", "bundled_holding")
    code = make(file, installed=True).unpack(tmp_path / "code", tmp_path)
    assert UnpackedCode.holding(code.experiment) == code
    assert UnpackedCode.holding(file) is None


NAMING = """
from pathlib import Path
from orchestra import Topology, code_file, import_file

def experiment(*, file: str = "none") -> Topology:
    return Topology(import_file(Path(file), "part").NAME)
"""


def test_a_file_that_a_flag_names_is_in_the_bundle_with_what_it_imports_and_is_found_in_it(tmp_path: Path) -> None:
    study, mine = tmp_path / "study", tmp_path / "mine"
    for path, text in {
        study / "naming.py": NAMING,
        mine / "named_by_a_flag.py": "from beside_it import NAME",
        mine / "beside_it.py": "NAME = 'as_it_was'",
        mine / "unrelated.py": "",
    }.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    file, named = study / "naming.py", mine / "named_by_a_flag.py"
    topology = build(load_experiment(file), {"file": str(named)})
    assert topology.named_files == (named,)
    made = make(file, named=topology.named_files)
    assert {name for name in made.sizes if name.startswith("elsewhere/")} == {
        "elsewhere/0/named_by_a_flag.py",
        "elsewhere/0/beside_it.py",
    }
    code = made.unpack(tmp_path / "code", tmp_path)
    assert code.elsewhere == {"elsewhere/0": mine}
    shutil.rmtree(mine)
    script = (
        "import sys; from pathlib import Path; from orchestra import build, load_experiment;"
        "print(build(load_experiment(Path(sys.argv[1])), {'file': sys.argv[2]}).name)"
    )
    words = [sys.executable, "-c", script, str(code.experiment), str(named)]
    assert subprocess.check_output(words, text=True, cwd=tmp_path, env=code.environment({})) == "as_it_was\n"
    load_experiment(code.experiment)
    assert code_file(named) == code.folder / "elsewhere/0/named_by_a_flag.py"
    load_experiment(file)
    assert code_file(named) == named


def test_a_file_that_a_flag_names_below_the_project_is_found_at_a_host(tmp_path: Path) -> None:
    file = project(tmp_path, "bundled_naming")
    named = file.with_name("bundled_naming_named.py")
    named.write_text("")
    made = make(file, named=[named], installed=True)
    assert "project/study/bundled_naming_named.py" in made.sizes
    code = made.unpack(tmp_path / "code", tmp_path)
    assert code.named == {named: code.project / "study" / "bundled_naming_named.py"}
    assert code.elsewhere == {}


def test_a_folder_with_a_file_of_the_name_of_the_manifest_is_no_bundle(tmp_path: Path) -> None:
    file = project(tmp_path, "bundled_manifest")
    (tmp_path / "bundle.json").write_text("[]")
    assert UnpackedCode.holding(file) is None
