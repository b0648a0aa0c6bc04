"""ZeroMQ's side of `wire.py`: the same messages by blocking sockets of pyzmq, checked by pydantic at both ends.

It uses PAIR sockets over TCP, msgpack, and a pydantic model on each side. Nothing else is done: no mailbox, no
supervision, no flow control beyond the high-water mark.
"""

import statistics
import subprocess
import sys
import time
from typing import Any

import msgpack
import numpy as np
import zmq
from pydantic import BaseModel

MARK = 4096
"""Largest number of waiting messages at each end, as in a link's window."""
END, STEP, ARRAY, ASK = b"e", b"s", b"a", b"?"
"""The first byte of a message. A small one is a single frame, which pyzmq copies; an array is a frame of its own."""
_pack = msgpack.Packer().pack


class Step(BaseModel):
    """The message of six plain fields."""

    agent_id: str
    step: int
    reward: float
    done: bool
    policy: str
    ts: float


def _pair(context: "zmq.Context[Any]") -> "zmq.Socket[bytes]":
    sock: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    sock.setsockopt(zmq.SNDHWM, MARK)
    sock.setsockopt(zmq.RCVHWM, MARK)
    sock.setsockopt(zmq.LINGER, 0)
    return sock


def _packed(n: int) -> bytes:
    step = Step(agent_id="agent-3", step=n, reward=0.5, done=False, policy="qmix", ts=1e9 + n)
    packed: bytes = _pack(step.model_dump())
    return packed


def _unpacked(data: Any) -> Step:
    return Step.model_validate(msgpack.unpackb(data))


class ZmqPeer:
    """This process's end, and the process at the other end, which lives until `close`."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._sock = _pair(self._context)
        port = self._sock.bind_to_random_port("tcp://127.0.0.1")
        self._child = subprocess.Popen([sys.executable, __file__, str(port)])
        self.asks(1)

    def tells(self, count: int) -> float:
        """Return messages per second until all were handled."""
        since = time.perf_counter()
        for n in range(count):
            self._sock.send(STEP + _packed(n))
        self._ask(0)
        return count / (time.perf_counter() - since)

    def asks(self, count: int) -> float:
        """Return the median seconds of a request and its answer."""
        seconds = []
        for n in range(count):
            since = time.perf_counter()
            self._ask(n)
            seconds.append(time.perf_counter() - since)
        return statistics.median(seconds)

    def asks_at_once(self, count: int) -> float:
        """Return requests per second with 100 of them in flight."""
        since = time.perf_counter()
        for n in range(count + 100):
            if n < count:
                self._sock.send(ASK + _packed(n))
            if n >= 100:
                _unpacked(self._sock.recv())
        return count / (time.perf_counter() - since)

    def arrays(self, count: int, nbytes: int) -> float:
        """Return GB per second of arrays, which neither end copies."""
        x = np.ones(nbytes // 4, np.float32)
        since = time.perf_counter()
        for _ in range(count):
            self._sock.send(ARRAY, zmq.SNDMORE)
            self._sock.send(x.data, copy=False)
        self._ask(0)
        return count * nbytes / (time.perf_counter() - since) / 1e9

    def close(self) -> None:
        """End the other process."""
        self._sock.send(END)
        self._child.wait()
        self._context.destroy()

    def _ask(self, n: int) -> None:
        self._sock.send(ASK + _packed(n))
        _unpacked(self._sock.recv())


def serve(port: int) -> None:
    """Handle messages, and answer requests, until the other end sends `END`."""
    sock = _pair(zmq.Context())
    sock.connect(f"tcp://127.0.0.1:{port}")
    while True:
        data = sock.recv()
        match data[:1]:
            case b"s":
                _unpacked(memoryview(data)[1:])
            case b"a":
                np.frombuffer(sock.recv(copy=False).buffer, np.float32)
            case b"?":
                sock.send(_pack(_unpacked(memoryview(data)[1:]).model_dump()))
            case _:
                return


if __name__ == "__main__":
    serve(int(sys.argv[1]))
