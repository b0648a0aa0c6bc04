"""The digest of an array is that of its bytes, is computed once, and is forgotten with the array."""

from typing import Any

import numpy as np
import pytest

from orchestra.trace.format import array_digests
from orchestra.trace.format.array_digests import ArrayDigests
from orchestra.trace.format.layout import digest_of


def pixels(value: int) -> np.ndarray[Any, Any]:
    array = np.full(1000, value, np.uint8)
    array.flags.writeable = False
    return array


def test_the_bytes_of_an_array_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(array_digests, "digest_of", lambda array: read.append(int(array[0])) or digest_of(array))
    digests, first, second = ArrayDigests(), pixels(1), pixels(2)
    for array in (first, second, first, first, second):
        assert digests.of(array) == digest_of(array)
    assert read == [1, 2]
    assert digests.of(first.copy()) == digest_of(first)
    assert read == [1, 2, 1]


def test_a_new_array_in_the_place_of_another_has_its_own_digest() -> None:
    digests = ArrayDigests()
    for n in range(200):
        array = pixels(n)
        assert digests.of(array) == digest_of(array)
        del array  # the next one has the same id
        assert len(digests) == 0
