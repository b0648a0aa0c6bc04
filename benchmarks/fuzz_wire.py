"""Fuzzing of the wire: broken frames may end connections, and have no other effect.

    python benchmarks/fuzz_wire.py --frames 1000000 --seed 1

- handshake: byte streams to a listener, mutated from those of honest dialers, some of which know the secret.
- streams:   byte streams to a link of a peer that has proved itself.
- contents:  frames whose header is mutated as msgpack: values replaced, added, left out.

Requirements: only `WireError` ends a connection; the process does not grow; an honest peer is answered afterwards. A
million frames take about half a minute of one core.

With `--atheris` (`pip install atheris`; it has wheels for some versions of Python on Linux) the coverage of the codec
guides the mutations:

    python benchmarks/fuzz_wire.py --atheris --seconds 60
"""

import argparse
import asyncio
import hashlib
import hmac
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Annotated, Any

import msgpack
import numpy as np
import psutil
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Request, log, on
from orchestra.actors import codec
from orchestra.actors.codec import Buffer
from orchestra.actors.message import REGISTRY
from orchestra.errors import WireError
from orchestra.runs.runner import run_loop
from orchestra.wire.arena import NAME_BYTES, PAGE, Arena
from orchestra.wire.frames import CHUNK, Frame, Kind, PayloadPool, frame_bytes, frame_prefix
from orchestra.wire.handshake import Handshake, Hello
from orchestra.wire.link import Link
from orchestra.wire.shared_memory import PLACE
from orchestra.wire.transports.endpoint import Endpoint

GROWTH = (48 << 20) + PayloadPool.MOST_BYTES
"""Bytes by which the process may grow after the first tenth: memory kept by the allocator and for later payloads."""
SECRET = b"a secret of this run".ljust(32)


class NumberMsg(Message):
    """A small message."""

    n: int
    text: str = ""


class ArrayMsg(Message):
    """A message with an array."""

    x: Annotated[NDArray[np.float32], Axes("float32", "rows")]


class SquareMsg(Request[int]):
    """A request for the square of a number."""

    n: int


class Target(Actor[NumberMsg | ArrayMsg | SquareMsg]):
    """Handles every message, and answers."""

    @on(NumberMsg)
    def number(self, msg: NumberMsg) -> None: ...

    @on(ArrayMsg)
    def array(self, msg: ArrayMsg) -> None: ...

    @on(SquareMsg)
    def square(self, msg: SquareMsg) -> int:
        return msg.n**2


class Pipe(Endpoint):
    """A connection without a peer: sent frames are dropped, and `come` simulates arriving bytes."""

    def __init__(self) -> None:
        super().__init__("the fuzzer")
        self.local = True
        self.sent: list[Buffer] = []

    def send(self, pieces: list[Buffer], *, at_once: bool = False) -> None:
        self.sent[:] = pieces

    def close(self) -> None:
        self._deaf = True
        self._lose(None)

    def abort(self, error: Exception | None = None) -> None:
        self._deaf = True
        if error is not None and not isinstance(error, WireError):
            raise error
        self._lose(error)

    def come(self, data: bytes) -> None:
        """Simulate the arrival of `data`."""
        rest = memoryview(data)
        while rest and not self._deaf:
            buffer = self._reader.get_buffer()
            count = min(len(buffer), len(rest), CHUNK)
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self.buffer_updated(count)


class Fuzzer:
    """Generates broken frames and passes them to a node."""

    def __init__(self, node: Node, seed: int) -> None:
        self.frames = 0
        self.refused = 0
        self._node = node
        self._rng = random.Random(seed)
        self._arena = Arena(64 * PAGE, bytes(NAME_BYTES))
        self._numbers = {tag: number for number, tag in enumerate(sorted(REGISTRY))}
        self._sound = self._sound_frames()
        self._link: Link | None = None

    def handshakes(self, count: int) -> None:
        """Begin `count` handshakes, most of them broken."""
        rng = self._rng
        for _ in range(count):
            pipe = Pipe()
            handshake = Handshake(self._node.peers._settings, pipe, admit=self._node.peers._admit, over=lambda *_: None)
            nonce = rng.randbytes(32)
            first = frame_bytes(Kind.HANDSHAKE, nonce)
            pipe.come(self._broken(first) if rng.random() < 0.3 else first)
            self.frames += 1
            if not handshake.done.done() and pipe.sent:
                theirs = bytes(pipe.sent[0])[16:48]
                proof = hmac.new(SECRET, b"dialer" + nonce + theirs, hashlib.sha256).digest()
                second = frame_bytes(Kind.HANDSHAKE, proof)
                pipe.come(self._broken(second) if rng.random() < 0.3 else second)
                self.frames += 1
                hello = msgpack.packb(self._mutated(self._hello(), 0))
                pipe.come(self._broken(frame_bytes(Kind.HELLO, hello)))
                self.frames += 1
            handshake.abort(WireError("over"))
            self.refused += handshake.done.exception() is not None

    def streams(self, count: int) -> None:
        """Simulate the arrival of `count` broken frames as bytes, over a new connection after each close."""
        rng = self._rng
        pipe: Pipe | None = None
        for _ in range(count):
            if pipe is None or pipe._lost:
                pipe = Pipe()
                self._begin(pipe)
            kind, header, payload = rng.choice(self._sound)
            frame = frame_prefix(kind, len(header), len(payload)) + header + payload
            pipe.come(frame if rng.random() < 0.2 else self._broken(frame))
            self.frames += 1

    def contents(self, count: int) -> None:
        """Pass `count` frames with wrong values in their headers to a link."""
        rng = self._rng
        for _ in range(count):
            if self._link is None or self._link.ended:
                self._begin(Pipe())
            assert self._link is not None
            kind, header, payload = rng.choice(self._sound)
            if kind in (Kind.ACKNOWLEDGE, Kind.PING, Kind.PONG):  # their headers are not msgpack
                packed = rng.randbytes(rng.randrange(10))
            elif kind is Kind.SHM_DATA:
                numbers = (rng.choice((0, 1, 4, PAGE, 63 * PAGE, 2**64 - PAGE, rng.randrange(2**64))) for _ in range(2))
                packed = PLACE.pack(rng.choice((3, 4, 9, 16)), rng.choice((0, 1, 1, 2)), *numbers)
                packed += msgpack.packb(self._mutated(msgpack.unpackb(header[PLACE.size :]), 0))
            else:
                packed = msgpack.packb(self._mutated(msgpack.unpackb(header), 0))
            array = np.frombuffer(payload, np.uint8) if payload else None
            self._link.frame_received(Frame(kind, packed, array))
            self.refused += self._link.ended
            self.frames += 1

    # Inside

    def _begin(self, pipe: Pipe) -> None:
        if self._link is not None:
            self._link.end(None)
        hello = Hello(**self._hello())
        link = self._node.peers._admit(hello)
        assert isinstance(link, Link)
        self._link = link
        pipe.limits = self._node.peers._settings.limits
        link.begin(pipe, hello)

    def _hello(self) -> dict[str, Any]:
        return {
            "node": "fuzzer",
            "listening": "",
            "host": "",
            "root": "",
            "joins": False,
            "incarnation": self._rng.randbytes(8),
            "session": self._rng.randbytes(16),
            "attempt": 1,
            "resumes": False,
            "received": 0,
            "after": b"",
            "types": [[tag, kind.wire.fingerprint] for tag, kind in sorted(REGISTRY.items())],
        }

    def _sound_frames(self) -> list[tuple[Kind, bytes, bytes]]:
        number, array, square = (self._numbers[kind.wire.tag] for kind in (NumberMsg, ArrayMsg, SquareMsg))
        floats = msgpack.ExtType(1, bytes([11]) + (16).to_bytes(8, "little"))
        head = ["target/target", "fuzzer/x"]
        contents: list[tuple[Kind, Any, bytes]] = [
            (Kind.MESSAGE, [*head, 0, [], 0, 0, number, [1, "text"]], b""),
            (Kind.MESSAGE, [*head, 0, [], 0, 0, array, [floats]], bytes(64)),
            (Kind.MESSAGE, [*head, 7, ["fuzzer/x"], 0, 0, square, [3]], b""),
            (Kind.BATCH, [[5, *reversed(head), number, 1], [[1, "text", 2, 3]], 5, [[1, "text", 4, 5]] * 3], b""),
            (Kind.BATCH, [[0, *reversed(head), number, 0], [[1, "text"]] * 5], b""),
            (Kind.BATCH, [[1, *reversed(head), square, 2], [[3, 7, ["fuzzer/x"], 0, 0]] * 2, -1, [[1, 0, 2]]], b""),
            (Kind.ANSWER, [1, 0, 2], b""),
            (Kind.FAILURE, [1, 0, "AskFailed", "text"], b""),
            (Kind.CANCEL, [7], b""),
            (Kind.CREDIT, ["fuzzer/x", 0, 0], b""),
            (Kind.TAKEN, ["fuzzer/x", "fuzzed/x", "orchestra.StopMsg"], b""),
            (Kind.SHM_OFFER, [1, os.getpid(), self._arena.descriptor, self._arena.name, 64 * PAGE], b""),
            (Kind.SHM_ACCEPT, [1, ""], b""),
            (Kind.SHM_RELEASE, [[[1, 0, 1, False]]], b""),
            (Kind.SHM_RETIRE, [1], b""),
        ]
        frames = [(kind, msgpack.packb(content), payload) for kind, content, payload in contents]
        placed = PLACE.pack(Kind.MESSAGE, 1, PAGE, 64) + frames[1][1]
        frames += [(Kind.SHM_DATA, placed, b"")] * 3
        frames += [(Kind.ACKNOWLEDGE, bytes(8), b""), (Kind.PING, b"", b""), (Kind.PONG, b"", b"")]
        return frames

    def _broken(self, data: bytes) -> bytes:
        rng = self._rng
        changed = bytearray(data)
        match rng.randrange(4):
            case 0:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            case 1:
                at = rng.randrange(len(changed))
                changed[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
            case 2:
                del changed[rng.randrange(len(changed)) :]
            case 3:
                changed[4:16] = rng.randbytes(rng.choice((1, 2, 4))).ljust(12, b"\0")  # the length fields
        return bytes(changed)

    def _mutated(self, value: Any, depth: int) -> Any:
        rng = self._rng
        if depth and rng.random() < 0.15:
            return self._odd()
        match value:
            case list():
                changed = [self._mutated(entry, depth + 1) for entry in value] if len(value) < 20 else list(value)
                if rng.random() < 0.1:
                    changed.insert(rng.randrange(len(changed) + 1), self._odd())
                if changed and rng.random() < 0.1:
                    del changed[rng.randrange(len(changed))]
                return changed
            case dict():
                return {key: self._mutated(entry, depth + 1) for key, entry in value.items() if rng.random() < 0.98}
        return value

    def _odd(self) -> Any:
        rng = self._rng
        odd: tuple[Callable[[], Any], ...] = (
            lambda: rng.choice((None, True, False, -1, 0, 1, 2**63, 2**64 - 1, -(2**63), float("nan"), 1e308)),
            lambda: rng.randbytes(rng.randrange(12)),
            lambda: f"target/{rng.randrange(10**6)}",
            lambda: "\ud7ff" * rng.randrange(4),
            lambda: msgpack.ExtType(rng.randrange(4), rng.randbytes(rng.randrange(20))),
            lambda: msgpack.ExtType(1, bytes([rng.randrange(20)]) + rng.randbytes(8 * rng.randrange(4))),
            lambda: [[[[]]]] * rng.randrange(3),
            lambda: {rng.randrange(3): "x"},
            lambda: rng.randrange(2**32),
        )
        return rng.choice(odd)()


async def fuzz(frames: int, seed: int) -> int:
    """Fuzz a node; return the number of frames.

    Raises:
        AssertionError: its memory grew, or it no longer answers an honest peer.
    """
    process = psutil.Process()
    async with Node("target", listen=f"memory://fuzz-{os.getpid()}", secret=SECRET).running() as node:
        node.spawn("target", Target)
        fuzzer = Fuzzer(node, seed)
        small = 0
        since = time.perf_counter()
        while fuzzer.frames < frames:
            fuzzer.handshakes(100)
            fuzzer.streams(1000)
            fuzzer.contents(1000)
            for _ in range(3):
                await asyncio.sleep(0)  # actors handle what came through
            if not small and fuzzer.frames > frames // 10:
                small = process.memory_info().rss
        grown = process.memory_info().rss - small
        assert grown < GROWTH, f"the process grew by {grown:,} bytes over {fuzzer.frames:,} frames"
        assert fuzzer.refused > 1000
        async with Node("honest", join=node.listening, secret=SECRET).running() as honest:
            assert await honest.ref("target/target").ask(SquareMsg(n=5)) == 25
        seconds = time.perf_counter() - since
        print(f"{fuzzer.frames:,} frames in {seconds:.0f} s, {fuzzer.refused:,} refusals, {grown / 1e6:+.1f} MB")
        return fuzzer.frames


def with_atheris(seed: int, seconds: int) -> None:
    """Fuzz the codec, guided by its coverage, for `seconds`. Ends the process."""
    try:
        atheris: Any = import_module("atheris")
    except ImportError:
        sys.exit(
            "fuzz_wire.py: --atheris needs the package atheris (pip install atheris), which is not installed; "
            "without the flag, mutations are random"
        )

    def decode(data: bytes) -> None:
        cut = data[0] % len(data) if data else 0
        try:
            value = codec.decode(data[1 + cut :], np.frombuffer(data[1 : 1 + cut], np.uint8))
            for kind in (NumberMsg, ArrayMsg, SquareMsg):
                codec.build(kind, value)
        except WireError:
            return

    for function in _functions_of(codec):
        atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], f"-seed={seed + 1}", f"-max_total_time={seconds}"], decode)  # 0: a random seed
    atheris.Fuzz()


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of a module and of its classes."""
    for holder in (module, *(entry for entry in vars(module).values() if isinstance(entry, type))):
        if holder is module or holder.__module__ == module.__name__:
            yield from (entry for entry in vars(holder).values() if isinstance(entry, FunctionType))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=1_000_000, help="number of frames (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=0, help="repeats a failure")
    parser.add_argument("--atheris", action="store_true", help="fuzz the codec only, guided by its coverage")
    parser.add_argument("--seconds", type=int, default=60, help="how long, with --atheris (default: 60)")
    options = parser.parse_args()
    log.configure(None, node="fuzz", level="critical")  # every refusal is a warning
    if options.atheris:
        with_atheris(options.seed, options.seconds)
    else:
        run_loop(fuzz(options.frames, options.seed))


if __name__ == "__main__":
    main()
