"""Recorded values compared, and values and effects in words."""

import dataclasses
import json
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Axes, Message, Ref
from orchestra.trace.analysis.values import (
    ValueDifference,
    as_json,
    effect_text,
    exact_text,
    recorded_fields,
    recorded_form,
    value_difference,
    value_text,
)
from orchestra.trace.format.effects import (
    EFFECTS,
    AnswerGiven,
    AskRaised,
    Effect,
    MessageId,
    MessageType,
    MonotonicRead,
    NowRead,
    Offloaded,
    Sent,
    StopRequested,
    TimerSet,
    Withdrawn,
)
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Digest

COUNT = MessageType("toys.CountMsg", b"12345678", ("count",), request=False)


class ReadingMsg(Message):
    values: Annotated[NDArray[np.float32], Axes("float32", "n")]
    tags: dict[str, tuple[int, ...]]
    to: Ref[Any]


def values(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


def digest(array: NDArray[Any]) -> Digest:
    return Digest(array.dtype, array.shape, digest_of(array))


def test_the_recorded_form_of_a_message_is_plain_values_by_field_name() -> None:
    message = ReadingMsg(values=values(1, 2), tags={"a": (1, 2)}, to=Ref("here/x"))
    fields = recorded_fields(message)
    assert list(fields) == ["values", "tags", "to"]
    np.testing.assert_array_equal(fields["values"], values(1, 2))
    assert fields["tags"] == {"a": [1, 2]}
    assert fields["to"] == Ref("here/x")
    assert recorded_form(7) == 7
    assert recorded_form(None) is None


@pytest.mark.parametrize(
    ("left", "right", "path", "first", "second"),
    [
        (1, 2, "", "1", "2"),
        (1, 1.0, "", "1", "1.0"),
        (1, True, "", "1", "True"),
        (0.0, -0.0, "", "0.0", "-0.0"),
        (0.1, 0.1 + 2e-17, "", "0.1", "0.10000000000000002"),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, "a[1].b", "'x'", "'y'"),
        ({"a": 1}, {"a": 1, "b": 2}, "b", "nothing", "2"),
        ({"a": 1, "b": 2}, {"a": 1}, "b", "2", "nothing"),
        ([1], [1, 2], "", "1 entries: [1]", "2 entries: [1, 2]"),
        (Ref("a/b"), Ref("a/c"), "", "<a/b>", "<a/c>"),
        (values(1, 2, 3), values(1, 5, 6), "[1]", "2.0", "5.0  (2 of 3 differ)"),
        (values(1, 2), values(1), "", "float32[2]", "float32[1]"),
        (values(1), np.array([1.0]), "", "float32[1]", "float64[1]"),
        (values(0.0), values(-0.0), "[0]", "0.0", "-0.0  (1 of 1 differ)"),
        (values(1), None, "", "float32[1] 1.0", "None"),
    ],
)
def test_the_first_difference_is_named(left: Any, right: Any, path: str, first: str, second: str) -> None:
    assert value_difference({"x": left}, {"x": right}) == ValueDifference(
        "x" + ("" if not path or path.startswith("[") else ".") + path, first, second
    )


@pytest.mark.parametrize("value", [1, 0.5, float("nan"), "x", b"x", None, [1, [2]], {"a": {"b": 1}}, Ref("a/b")])
def test_equal_values_do_not_differ(value: Any) -> None:
    assert value_difference(value, value) is None


def test_arrays_are_equal_byte_for_byte_nan_included() -> None:
    array = values(1, np.nan)
    assert value_difference(array, array.copy()) is None
    assert value_difference(values(), values()) is None
    assert value_difference(np.float32(1).reshape(()), np.float32(1).reshape(())) is None
    grid = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert value_difference(grid.T, np.ascontiguousarray(grid.T)) is None
    assert value_difference(grid, grid + (grid == 4)) == ValueDifference("[1][1]", "4", "5  (1 of 6 differ)")


def test_an_array_recorded_by_digest_is_compared_by_value_where_the_values_are_known() -> None:
    left, right = values(1, 2, 3), values(1, 2, 4)
    arrays = {digest_of(each): each.view(np.uint8) for each in (left, right)}
    expected = ValueDifference("[2]", "3.0", "4.0  (1 of 3 differ)")
    for one, other in ((digest(left), right), (left, digest(right)), (digest(left), digest(right))):
        assert value_difference(one, left if other is right else digest(left)) is None
        assert value_difference(one, other, find_array=lambda each: arrays[each.digest]) == expected
        blind = value_difference(one, other)
        assert blind is not None
        assert (blind.left, blind.right) == (value_text(digest(left)), value_text(digest(right)))


def test_a_tolerance_applies_to_floating_point_numbers_only() -> None:
    assert value_difference(1.0, 1.0 + 1e-9) is not None
    assert value_difference(1.0, 1.0 + 1e-9, tolerance=1e-6) is None
    assert value_difference(1.0, 1.1, tolerance=1e-6) is not None
    assert value_difference(values(1, 2), values(1, 2.0001), tolerance=1e-3) is None
    assert value_difference(values(1, 2), values(1, 2.1), tolerance=1e-3) == ValueDifference(
        "[1]", "2.0", "2.0999999046325684  (1 of 2 differ)"
    )
    assert value_difference(1_000_000, 1_000_001, tolerance=1e-3) is not None
    unknown = value_difference(digest(values(1)), values(1.0001), tolerance=1e-3)
    assert unknown is not None
    assert "not recorded" in unknown.left


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 / 3, "0.333333"),
        (values(0.5, 1 / 3), "float32[2] 0.5 0.333333"),
        (np.arange(24, dtype=np.float32).reshape(8, 3), "float32[8, 3] 0 … 23"),
        (np.arange(9) < 4, "bool[9] 4 true"),
        (np.zeros(9, np.complex64), "complex64[9]"),
        (values(), "float32[0]"),
        ({"a": [1, Ref("x/y")]}, "{a=[1, <x/y>]}"),
    ],
)
def test_a_value_in_short(value: Any, text: str) -> None:
    assert value_text(value) == text


def test_an_exact_text_has_every_digit_and_is_cut() -> None:
    assert exact_text(1 / 3) == repr(1 / 3)
    assert len(exact_text(list(range(1000)))) == 120


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (Sent(0.0, 3, "far/x", COUNT, {"count": 4}, nowait=False), "told far/x CountMsg(count=4)"),
        (Sent(0.0, 3, "far/x", COUNT, None, nowait=False), "told far/x CountMsg(…)"),
        (TimerSet(0.0, 3, 1.5, COUNT, {"count": 4}), "set a timer of 1.5 s for itself CountMsg(count=4)"),
        (AskRaised(0.0, 3, "TimeoutError", "late"), "its ask raised TimeoutError: late"),
        (AnswerGiven(0.0, MessageId("far/x", 7), 1, [1]), "answered far/x#7: [1]"),
        (Withdrawn(0.0, MessageId("far/x", 7), 1), "far/x#7 was withdrawn"),
        (MonotonicRead(0.0, 2.5), "read the monotonic clock: 2.5 s"),
        (NowRead(0.0, 1_500_000), "read the wall clock: 1970-01-01 00:00:01.500000+00:00"),
        (Offloaded(0.0, 1, ""), "offloaded call 1 returned"),
        (StopRequested(0.0, graceful=False), "requested an abort"),
    ],
)
def test_an_effect_in_words(effect: Effect, text: str) -> None:
    assert effect_text(effect) == text


def test_every_effect_has_words() -> None:
    for kind in EFFECTS.values():
        fields = {"recipient": "a/b", "type": COUNT, "fields": {}, "request": MessageId("a/b", 1), "microseconds": 1}
        effect = kind(**{field.name: fields.get(field.name, 0) for field in dataclasses.fields(kind)})
        assert effect_text(effect)
        assert json.dumps(as_json(effect)).startswith('{"effect": "')
