"""Memory for what is kept: ordinary, or mapped from files on a disk and so as large as that."""

import mmap
import os
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def allocate(shape: tuple[int, ...], dtype: DTypeLike, folder: str | Path | None) -> NDArray[Any]:
    """Return an array of that shape and dtype, its numbers arbitrary; on the disk of `folder` if one is given.

    The file has no name, so it is gone with the last that uses it, however that ends. Its place is taken at once: a
    disk that fills up later would kill the process, not raise an error. What is read and written often stays in memory
    as long as the system has some to spare.

    Raises:
        OSError: there is no such folder, or too little space in it; the message says how much is needed.
    """
    if folder is None:
        return np.empty(shape, dtype)
    n_bytes = max(prod(shape) * np.dtype(dtype).itemsize, 1)
    with TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {n_bytes:,} bytes are needed", str(folder)) from error
        mapped = mmap.mmap(file.fileno(), n_bytes)
    return np.frombuffer(mapped, np.uint8)[: prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
