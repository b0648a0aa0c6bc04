"""Conditions on messages: their meaning, and what they refuse."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import UsageError, ValuesMissing
from orchestra.trace.format.records import Digest
from orchestra.trace.reading.where import Where

VALUES: dict[str, Any] = {
    "version": 121,
    "role": "worker",
    "epsilon": 0.5,
    "versions": np.array([3, 57, 60]),
    "grid": np.arange(6).reshape(2, 3),
    "inner": {"depth": 4, "names": ["a", "b"]},
    "nothing": None,
    "secret": Digest(np.dtype("f4"), (1000,), bytes(16)),
}


CASES = [
    ("version > 120", True),
    ("version>120 and epsilon < 0.5", False),
    ("version > 120 or epsilon < 0.5", True),
    ("not version > 120", False),
    ("100 < version <= 121", True),
    ("version % 11 == 0", True),
    ("version // 2 + 1 == 61", True),
    ("-version == -121", True),
    ("role == 'worker'", True),
    ("'work' in role", True),
    ("role in ('worker', 'proxy')", True),
    ("role not in ['worker']", False),
    ("57 in versions", True),
    ("58 in versions", False),
    ("versions < 4", True),
    ("all(versions < 61)", True),
    ("all(versions < 60)", False),
    ("max(versions) - min(versions) == 57", True),
    ("versions[0] == 3", True),
    ("grid[1][2] == 5", True),
    ("len(versions) == 3", True),
    ("inner.depth == 4", True),
    ("inner.depht == 4", False),
    ("'b' in inner.names", True),
    ("nothing is None", True),
    ("no_such_field > 3", False),
    ("no_such_field > 3 or version == 121", True),
    ("not no_such_field > 3", True),
    ("role > 3", False),
    ("versions[7] == 3", False),
    ("version / 0 > 1", False),
    ("versions.shape == (3,)", True),
    ("versions.size == 3", True),
]
CONDITIONS = [text for text, _ in CASES]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_conditions(text: str, expected: bool) -> None:
    assert Where(text)(VALUES) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os').system('ls')", "open('x')", "version.__class__", "(lambda: 1)()", "[x for x in versions]"),
        *(
            "a = 3",
            "",
            "version >",
            "9 ** 9 ** 9",
            "f'{version}'",
            "versions[0:2]",
            "max(1, 2)",
            "max(versions, key=1)",
        ),
        *("print(version)", "version if role else 3", "{'a': 1}", "*versions", "await version", "x" * 2000),
    ],
)
def test_an_invalid_condition_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--where: .+") as refused:
        Where(text)
    assert "\n" not in str(refused.value)


def test_a_condition_on_an_unrecorded_array_raises_values_missing() -> None:
    with pytest.raises(ValuesMissing, match=r"--where 'secret > 1'.*float32\[1000\] 0+ were not recorded"):
        Where("secret > 1")(VALUES)
    assert not Where("version < 3 and secret > 1")(VALUES)  # it need not be looked at


@settings(deadline=None)
@given(
    text=st.sampled_from(CONDITIONS),
    other=st.sampled_from(CONDITIONS),
    joined=st.sampled_from(["{} and {}", "{} or {}", "not {}", "({} or {}) == True", "not ({} and {})"]),
    absent=st.sets(st.sampled_from(sorted(VALUES))),
)
def test_a_message_without_the_fields_of_a_condition_is_not_read(
    text: str, other: str, joined: str, absent: set[str]
) -> None:
    values = {name: value for name, value in VALUES.items() if name not in absent}
    for where in (Where(text), Where(joined.format(text, other))):
        if not where.may_hold(values):
            assert not where(values)
    assert Where("number == 412 or batch == 412").may_hold(["batch"])
    assert not Where("number == 412 or batch == 412").may_hold(["version"])
    assert not Where("len(versions) > 3 and actor == 'one/sink'").may_hold(["version"])
    assert Where("bytes > 3 and actor == 'one/sink'").may_hold([])
    assert Where("not version > 3").may_hold([])
