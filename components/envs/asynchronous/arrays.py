"""Arrays with a row for each copy, in memory shared by several processes."""

import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Fields = Mapping[str, tuple[tuple[int, ...], str]]
"""For each array by name: the shape of a row, and the dtype as a numpy string."""
Rows = Mapping[str, NDArray[Any]]
"""The rows of one or more copies, by the names of the arrays."""
_LINE = 64
"""Bytes of a cache line. Rows of an array may share one: a copy writes its rows when no other process reads them."""


def anonymous_file(nbytes: int) -> int:
    """Return the descriptor of a file of `nbytes` without a name, which ends with the last process that has it open."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("orchestra-envs", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


def nbytes_of(fields: Fields, copies: int) -> int:
    """Return the size of the memory of all arrays, in bytes."""
    return max(sum(map(_nbytes, fields.values(), [copies] * len(fields))), 1)


def shared_arrays(descriptor: int, fields: Fields, copies: int) -> dict[str, NDArray[Any]]:
    """Map the file; return the arrays in it by name, each of `copies` rows."""
    memory = mmap.mmap(descriptor, nbytes_of(fields, copies))
    arrays: dict[str, NDArray[Any]] = {}
    begin = 0
    for name, (shape, dtype) in fields.items():
        count = copies * int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(memory, dtype, count, begin).reshape(copies, *shape)
        begin += _nbytes((shape, dtype), copies)
    return arrays


def _nbytes(field: tuple[tuple[int, ...], str], copies: int) -> int:
    shape, dtype = field
    nbytes = copies * int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return -(-nbytes // _LINE) * _LINE
