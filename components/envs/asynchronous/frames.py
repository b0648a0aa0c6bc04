"""The protocol between an environment's process and its owner.

Each command or reply begins with one byte. Frequent ones have only that byte, because the arrays are in shared memory.
The others continue with a length of four bytes, big-endian, and a msgpack body. Nothing is unpickled.
"""

import os
import socket
from typing import Any

import msgpack
import numpy as np

STEP, RESET, CLOSE = b"s", b"r", b"c"
"""Commands: make a step; start an episode, with options; close the environment and end."""
DONE, RENEWED = b".", b"n"
"""Replies without a body: done; the episode was lost and another has begun."""
INFO, ERROR, REFUSED = b"i", b"e", b"x"
"""Replies with a body: done, and infos; the environment failed; it cannot be made on this system at all."""
BODIES = (INFO, ERROR, REFUSED)
LIMIT = 1 << 26
"""Maximum size of a body, in bytes."""
_ARRAY = 1


def packed(value: Any) -> bytes:
    """Return plain values and arrays as msgpack, after its length in four bytes.

    Raises:
        TypeError: a value is neither.
    """
    data: bytes = msgpack.packb(value, default=_default)
    return len(data).to_bytes(4, "big") + data


def unpacked(body: bytes | bytearray) -> Any:
    """Return the value of a body that `packed` made.

    Raises:
        ValueError: the bytes are not msgpack.
    """
    try:
        return msgpack.unpackb(body, ext_hook=_array, strict_map_key=False)
    except msgpack.UnpackException as error:
        raise ValueError(str(error)) from error


def write(descriptor: int, head: bytes, value: Any) -> None:
    """Write a command or a reply with a body."""
    left = memoryview(head + packed(value))
    while left:
        left = left[os.write(descriptor, left) :]


def read_body(descriptor: int) -> Any:
    """Read the body of a command.

    Raises:
        EOFError: the other end is gone.
    """
    return unpacked(_exactly(descriptor, int.from_bytes(_exactly(descriptor, 4), "big")))


def _exactly(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(descriptor, size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def send_message(channel: socket.socket, value: Any, descriptors: list[int] | None = None) -> None:
    """Send a value and file descriptors over a socket."""
    data = packed(value)
    sent = socket.send_fds(channel, [data], descriptors or [])
    channel.sendall(data[sent:])


def receive_message(channel: socket.socket, most: int = 0) -> tuple[Any, list[int]]:
    """Receive a value and up to `most` file descriptors over a socket.

    Raises:
        EOFError: the other end is gone.
        OSError: the connection fails, the socket times out, or the message is larger than `LIMIT`.
    """
    data, descriptors, _, _ = socket.recv_fds(channel, 4, most)
    try:
        while len(data) < 4:
            data += _received(channel, 4 - len(data))
        size = int.from_bytes(data, "big")
        if size > LIMIT:
            raise OSError(f"a message of {size} bytes")
        body = bytearray()
        while len(body) < size:
            body += _received(channel, size - len(body))
        return unpacked(body), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _received(channel: socket.socket, size: int) -> bytes:
    part = channel.recv(size)
    if not part:
        raise EOFError
    return part


def _default(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcUSmM":
        array = np.asarray(value)
        plain = [array.dtype.str, list(array.shape), array.tobytes(), isinstance(value, np.generic)]
        return msgpack.ExtType(_ARRAY, msgpack.packb(plain))
    raise TypeError(f"{type(value).__name__} {value!r:.80} is neither a plain value nor an array")


def _array(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        raise ValueError(f"no such type: {code}")
    dtype, shape, body, scalar = msgpack.unpackb(data)
    array = np.frombuffer(body, dtype).reshape(shape).copy()
    return array[()] if scalar else array
