"""An experiment's file is imported and called, and whatever is wrong with it is said in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.errors import UsageError
from orchestra.hosts.shape import HostShape, this_machine
from orchestra.runs.experiment import build, load_experiment, variant
from orchestra.runs.flags import Flags

HEAD = "from orchestra.runs.topology import Topology\n"


@pytest.fixture(autouse=True)
def modules_forgotten() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in [name for name in set(sys.modules) - before if name.startswith("experiment_")]:
        del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str, name: str = "qmix.py") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_experiment(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def failure(text: str, **values: object) -> str:
    function = load_experiment(written(text))
    with pytest.raises(UsageError) as caught:
        build(function, values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_experiment_is_read_from_its_file_and_lays_out_a_run(here: Path) -> None:
    path = written(HEAD + "def experiment(*, name: str = 'x') -> Topology:\n    return Topology(name)\n")

    function = load_experiment(path)
    topology = build(function, Flags.of(function).parse(["--name", "qmix"]))

    assert topology.name == "qmix"


def test_a_module_s_name_comes_from_the_file_s_name_alone(here: Path) -> None:
    (here / "other").mkdir()
    names = []
    for name in ("qmix-8m.v2.py", "other/qmix-8m.v2.py"):
        function = load_experiment(written(HEAD + "def experiment() -> Topology: ...\n", name))
        names.append(function.__module__)
        assert sys.modules[function.__module__].__file__ == str(here / name)
    assert names == ["experiment_qmix_8m_v2"] * 2


def test_a_file_is_imported_once_in_a_process(here: Path) -> None:
    path = written(HEAD + "class Mine: ...\ndef experiment() -> Topology: ...\n")
    assert load_experiment(path) is load_experiment(path.absolute())


def test_a_file_may_define_dataclasses_and_write_its_annotations_as_strings(here: Path) -> None:
    path = written(
        "from __future__ import annotations\n"
        + HEAD
        + "from dataclasses import dataclass\n"
        + "@dataclass\nclass Size:\n    width: int = 1\n"
        + "def experiment(*, width: int | None = 1) -> Topology: ...\n"
    )
    assert Flags.of(load_experiment(path)).defaults == {"width": 1}


def test_a_path_that_is_no_python_file_is_refused(here: Path) -> None:
    (here / "experiments").mkdir()
    assert refusal(Path("gone.py")) == "there is no file 'gone.py'"
    assert refusal(Path("experiments")) == "'experiments' is a directory; name the experiment's file"
    assert refusal(written("", "qmix.yaml")) == "'qmix.yaml' is not a Python file (.py)"


def test_a_file_without_an_experiment_says_which_functions_it_has(here: Path) -> None:
    assert refusal(written("", "empty.py")) == "empty.py: no function 'experiment'"
    assert refusal(written("experiment = 3\n", "number.py")) == "number.py: no function 'experiment'"
    text = "def main(): ...\ndef plan(): ...\ndef _helper(): ...\n"
    assert refusal(written(text)) == "qmix.py: no function 'experiment'; the functions in it are main, plan"


def test_an_experiment_that_cannot_have_flags_is_refused(here: Path) -> None:
    assert refusal(written("def experiment(*, workers=1): ...\n", "a.py")) == (
        "a.py: experiment(): parameter 'workers' has no annotation"
    )
    assert refusal(written("def experiment(*, workers: int): ...\n", "b.py")) == (
        "b.py: experiment(): parameter 'workers' has no default"
    )
    assert refusal(written("async def experiment(): ...\n", "c.py")) == (
        "c.py: experiment() is async; it must be a plain def: it has nothing to wait for"
    )


def test_a_syntax_error_is_told_with_its_line(here: Path) -> None:
    assert refusal(written("x = 1\ndef experiment(:\n")) == "qmix.py:2: syntax error: invalid syntax"


def test_an_error_on_import_is_told_with_its_line_in_that_file(here: Path) -> None:
    assert refusal(written("\nimport nowhere_at_all\n", "a.py")) == (
        "a.py:2: ModuleNotFoundError: No module named 'nowhere_at_all'"
    )
    # the error is raised in json, but line 2 is where the user can do something about it
    assert refusal(written("import json\njson.loads('{')\n", "b.py")).startswith("b.py:2: JSONDecodeError: Expecting")
    assert refusal(written("raise ValueError('two\\nlines')\n", "c.py")) == "c.py:1: ValueError: two lines"
    assert refusal(written("raise SystemExit(3)\n", "d.py")) == "d.py:1: SystemExit: 3"
    assert refusal(written("assert False\n", "e.py")) == "e.py:1: AssertionError"


def test_a_file_that_failed_can_be_mended_and_read_again(here: Path) -> None:
    refusal(written("raise ValueError\n"))
    load_experiment(written(HEAD + "def experiment() -> Topology: ...\n#" + "-" * 80))


def test_an_error_in_the_experiment_is_told_with_its_line(here: Path) -> None:
    text = (
        HEAD
        + "def experiment(*, n: int = 0) -> Topology:\n    return check(n)\ndef check(n):\n    raise ValueError(n)\n"
    )
    assert failure(text, n=3) == "qmix.py:5: ValueError: 3"


def test_an_error_that_was_meant_for_the_user_keeps_its_words(here: Path) -> None:
    text = HEAD + "def experiment() -> Topology:\n    return Topology('a/b')\n"
    told = failure(text)
    assert told.startswith("qmix.py:3: ")
    assert "UsageError" not in told
    assert "a/b" in told


@pytest.mark.parametrize(
    ("value", "said"), [("None", "nothing"), ("3", "a value of type int"), ("'x'", "a value of type str")]
)
def test_an_experiment_must_return_a_topology(here: Path, value: str, said: str) -> None:
    text = HEAD + f"def experiment() -> Topology:\n    return {value}\n"
    assert failure(text) == f"qmix.py: experiment() returned {said}; it must return a Topology"


def test_a_file_elsewhere_is_named_in_full(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "qmix.py"
    elsewhere.write_text("1 / 0\n")
    assert refusal(elsewhere) == f"{elsewhere}:1: ZeroDivisionError: division by zero"


BASE = """
def experiment(*, name: str = 'x', size: Annotated[int, Field(ge=1)] = 3) -> Topology:
    if size == 13:
        raise UsageError("13 is bad luck")
    return Topology(f"{name}-{size}")
"""
OTHER = """
from pathlib import Path
from orchestra.runs.experiment import load_experiment, variant
experiment = variant(load_experiment(Path(__file__).with_name("base.py")), size=5)
"""


@pytest.fixture
def other(here: Path) -> Path:
    written(
        HEAD + "from typing import Annotated\nfrom pydantic import Field\nfrom orchestra import UsageError\n" + BASE,
        "base.py",
    )
    return written(OTHER, "other.py")


def test_a_variant_is_the_same_experiment_with_other_defaults(other: Path) -> None:
    function = load_experiment(other)
    flags = Flags.of(function)
    assert {flag.name: flag.default for flag in flags} == {"name": "x", "size": 5}
    assert build(function, flags.parse([])).name == "x-5"
    assert build(function, flags.parse(["--size", "7", "--name", "y"])).name == "y-7"
    assert function().name == "x-5"


def test_the_original_keeps_its_defaults(other: Path) -> None:
    load_experiment(other)
    assert {flag.name: flag.default for flag in Flags.of(load_experiment(Path("base.py")))} == {"name": "x", "size": 3}


def test_a_variant_that_fails_names_the_line_of_the_original(other: Path) -> None:
    with pytest.raises(UsageError, match=r"^base\.py:\d+: 13 is bad luck$"):
        build(load_experiment(other), {"size": 13})


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"colour": 1}, "there is no parameter 'colour'; the parameters are name, size"),
        ({"size": 0}, "--size: 0 is not allowed"),
    ],
)
def test_a_default_that_no_flag_would_take_is_refused(other: Path, defaults: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        variant(load_experiment(Path("base.py")), **defaults)


SPREADING = """
from orchestra import Hosts, extends, variant
def experiment(*, hosts: Hosts, name: str = 'x') -> Topology:
    return Topology(f"{name}-{len(hosts)}-{hosts[-1].cores}")
sized = variant(experiment, name="y")
@extends(sized)
def extended(topology: Topology, *, hosts: Hosts, more: int = 1) -> Topology:
    return Topology(f"{topology.name}-{more}-{len(hosts)}")
@extends(sized)
def plain(topology: Topology, *, more: int = 1) -> Topology:
    return Topology(f"{topology.name}-{more}")
"""


@pytest.mark.parametrize(
    ("name", "flags", "built"),
    [
        ("experiment", ["name"], "x-2-7"),
        ("sized", ["name"], "y-2-7"),
        ("extended", ["name", "more"], "y-2-7-1-2"),
        ("plain", ["name", "more"], "y-2-7-1"),
    ],
)
def test_an_experiment_that_spreads_gets_the_hosts_and_no_flag_for_them(
    here: Path, name: str, flags: list[str], built: str
) -> None:
    function = load_experiment(written(HEAD + SPREADING, "spreading.py"), name)
    assert [flag.name for flag in Flags.of(function)] == flags
    hosts = [HostShape(1, "far", 7), HostShape(0, "here", 2)]
    assert build(function, Flags.of(function).defaults, hosts).name == built
    alone = build(function, Flags.of(function).defaults).name
    assert alone.startswith(f"{built[0]}-1-{this_machine().cores}")


def test_extending_does_not_hide_a_parameter_that_neither_has(here: Path) -> None:
    function = load_experiment(written(HEAD + SPREADING, "spreading.py"), "plain")
    with pytest.raises(UsageError, match="unexpected keyword argument 'les'"):
        build(function, {"les": 1})
