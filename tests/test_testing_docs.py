"""The page about testing shows whole examples that pass, and names only existing functions."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.testing import Process, Simulation, each_seed

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "testing.md").read_text()
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("testing_*.py"))


def found_in(path: Path) -> list[Callable[[], None]]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return [test for name, test in vars(module).items() if name.startswith("test_")]


@pytest.mark.parametrize("test", [test for path in EXAMPLES for test in found_in(path)], ids=lambda test: test.__name__)
def test_the_tests_in_the_examples_pass(test: Callable[[], None]) -> None:
    test()


def test_the_page_shows_the_examples_and_nothing_else() -> None:
    assert re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL) == [
        (ROOT / "docs" / "examples" / f"testing_{name}.py").read_text()
        for name in ("reminder", "transport", "simulation")
    ]


@pytest.mark.parametrize(("kind", "owner"), [(Simulation, "sim"), (Process, "process")])
def test_what_the_page_lists_exists(kind: type[object], owner: str) -> None:
    named = set(re.findall(rf"`(?:await |async with )?{owner}\.([a-z_]+)\(", PAGE))
    assert named
    assert [name for name in named if not callable(getattr(kind, name, None))] == []


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", PAGE))
def test_every_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


def test_a_failure_looks_as_the_page_shows_it() -> None:
    example = sys.modules["testing_simulation"]
    with pytest.raises(AssertionError) as caught:
        each_seed(example.bookings(example.with_a_new_ledger), 50)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    found = f"AssertionError: {caught.value}\n{caught.value.__notes__[0]}\n"
    # Which seed it is, and which seats, changes with whatever changes a schedule.
    assert re.sub(r"\d+(, \d+)*", "N", found) == re.sub(r"\d+(, \d+)*", "N", shown)
