"""Where two values part."""

from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Axes, Message, Ref
from orchestra.replay.difference import Difference, fields_as_travelled, first_difference, travelled
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Digest


class ReadingMsg(Message):
    values: Annotated[NDArray[np.float32], Axes("float32", "n")]
    tags: dict[str, tuple[int, ...]]
    to: Ref[Any]


def values(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


def digest(array: NDArray[Any]) -> Digest:
    return Digest(array.dtype, array.shape, digest_of(array))


def test_a_message_travels_as_names_and_plain_values() -> None:
    message = ReadingMsg(values=values(1, 2), tags={"a": (1, 2)}, to=Ref("here/x"))
    fields = fields_as_travelled(message)
    assert list(fields) == ["values", "tags", "to"]
    np.testing.assert_array_equal(fields["values"], values(1, 2))
    assert fields["tags"] == {"a": [1, 2]}
    assert fields["to"] == Ref("here/x")
    assert travelled(7) == 7
    assert travelled(None) is None


@pytest.mark.parametrize(
    ("old", "new", "path", "recorded", "replayed"),
    [
        (1, 2, "", "1", "2"),
        (1, 1.0, "", "1", "1.0"),
        (0.0, -0.0, "", "0.0", "-0.0"),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, "a[1].b", "'x'", "'y'"),
        ({"a": 1}, {"a": 1, "b": 2}, "b", "nothing", "2"),
        ({"a": 1, "b": 2}, {"a": 1}, "b", "2", "nothing"),
        ([1], [1, 2], "", "1 entries: [1]", "2 entries: [1, 2]"),
        (Ref("a/b"), Ref("a/c"), "", "a/b", "a/c"),
        (values(1, 2, 3), values(1, 5, 6), "[1]", "2.0", "5.0  (2 of 3 differ)"),
        (values(1, 2), values(1), "", "float32[2]", "float32[1]"),
        (values(1), np.array([1.0]), "", "float32[1]", "float64[1]"),
        (values(0.0), values(-0.0), "[0]", "0.0", "-0.0  (1 of 1 differ)"),
        (values(1), None, "", "float32[1] [1.]", "None"),
    ],
)
def test_the_first_difference_is_named(old: Any, new: Any, path: str, recorded: str, replayed: str) -> None:
    assert first_difference({"x": old}, {"x": new}) == Difference(
        "x" + ("" if not path or path.startswith("[") else ".") + path, recorded, replayed
    )


@pytest.mark.parametrize("value", [1, 0.5, float("nan"), "x", b"x", None, [1, [2]], {"a": {"b": 1}}, Ref("a/b")])
def test_equal_values_do_not_differ(value: Any) -> None:
    assert first_difference(value, value) is None


def test_arrays_are_equal_byte_for_byte_nan_included() -> None:
    old = values(1, np.nan)
    assert first_difference(old, old.copy()) is None
    assert first_difference(values(), values()) is None
    assert first_difference(np.float32(1).reshape(()), np.float32(1).reshape(())) is None


def test_an_array_recorded_by_digest_is_compared_with_its_values_where_they_are_known() -> None:
    old, new = values(1, 2, 3), values(1, 2, 4)
    assert first_difference(digest(old), old) is None
    blind = first_difference(digest(old), new)
    assert blind is not None
    assert blind.recorded == str(digest(old))
    seeing = first_difference(digest(old), new, values=lambda _: old.view(np.uint8))
    assert seeing == Difference("[2]", "3.0", "4.0  (1 of 3 differ)")


def test_a_tolerance_is_for_floating_point_numbers_only() -> None:
    assert first_difference(1.0, 1.0 + 1e-9) is not None
    assert first_difference(1.0, 1.0 + 1e-9, tolerance=1e-6) is None
    assert first_difference(1.0, 1.1, tolerance=1e-6) is not None
    assert first_difference(values(1, 2), values(1, 2.0001), tolerance=1e-3) is None
    assert first_difference(values(1, 2), values(1, 2.1), tolerance=1e-3) == Difference(
        "[1]", "2.0", "2.0999999046325684  (1 of 2 differ)"
    )
    assert first_difference(1_000_000, 1_000_001, tolerance=1e-3) is not None
    unknown = first_difference(digest(values(1)), values(1.0001), tolerance=1e-3)
    assert unknown is not None
    assert "not recorded" in unknown.recorded
