"""One of the two processes that a check of determinism compares: it replays an actor, and reports what it did.

The process reads requests from its standard input and writes an answer to each: `step` runs the next activation, and
`output`, `leaves` and `leaf` ask for what it did and for the state afterwards.
"""

import os
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import xxhash

from orchestra.actors import codec
from orchestra.errors import CannotReplay, OrchestraError
from orchestra.replay.effects import ReplayedActivation
from orchestra.replay.event_loop import QuietLoop
from orchestra.replay.replay import Options, Replay
from orchestra.replay.state import state_leaves, without_unwritten

LARGE_ARRAYS_EVERY = 256
"""Activations between two comparisons of the large arrays of the state. The last activation compares them as well."""
_SIZES = struct.Struct("<QQ")
_BLOCKS = 64
"""Objects of each size whose addresses are reversed before an activation."""
_LARGEST_BLOCK = 512
"""Bytes of an object above which Python allocates it elsewhere."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one process, on which an actor must not depend."""

    hash_seed: int
    """PYTHONHASHSEED, which decides the order of sets of texts."""
    reverse: bool
    """True if sets of tasks, and sets of new objects, have another order."""
    fill: int
    """The byte that fills uninitialised numpy arrays."""


class Replica:
    """A process that replays an actor under some conditions. A context manager that ends the process.

    Args:
        path: the run, as of `Replay`.
        actor: the actor's address.
        conditions: those of the process.
        options: of `Replay`; all but `factory`, which cannot be given to another process.
    """

    def __init__(self, path: Path, actor: str, conditions: Conditions, options: Options) -> None:
        self.conditions = conditions
        self._temporary = tempfile.TemporaryDirectory(prefix="replay-", ignore_cleanup_errors=True)
        environment = {
            "PYTHONHASHSEED": str(conditions.hash_seed),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            # The process is killed, and cannot remove its temporary files itself.
            "TMPDIR": self._temporary.name,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orchestra.replay.replica"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        texts = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
        self.ask(str(path), actor, asdict(conditions), texts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._temporary.cleanup()

    def ask(self, *request: Any) -> None:
        """Send a request, whose answer `answer` returns."""
        with suppress(BrokenPipeError):  # `answer` says how the process ended
            _write(self._stdin, request)

    def answer(self) -> Any:
        """Return the answer to the oldest request.

        Raises:
            CannotReplay: the process could not replay the actor, or has ended.
        """
        try:
            failure, value = _read(self._stdout)
        except EOFError:
            raise CannotReplay(f"a replaying process ended with exit code {self._process.wait()}") from None
        if failure:
            raise CannotReplay(failure)
        return value


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the run printed the actor's output already
    requests = sys.stdin.buffer
    path, actor, conditions, options = _read(requests)
    if options.get("experiment") is not None:
        options["experiment"] = Path(options["experiment"])
    told = Conditions(**conditions)
    QuietLoop.reverse = told.reverse
    try:
        with _filled_memory(told.fill), Replay(Path(path), actor, **{**options, "strict": False}) as replay:
            _write(answers, ["", replay.address])
            replaying = _Replaying(replay, told)
            while True:
                name, *arguments = _read(requests)
                _write(answers, ["", getattr(replaying, name)(*arguments)])
    except OrchestraError as error:
        _write(answers, [str(error), None])
    except EOFError:
        return


class _Replaying:
    """The replay in this process; its methods are the requests."""

    def __init__(self, replay: Replay[Any], conditions: Conditions) -> None:
        self._replay = replay
        self._conditions = conditions
        self._blocks: list[bytes] = []
        self._count = 0
        self._large = False
        self._replayed: ReplayedActivation | None = None

    def step(self, until: int | None) -> dict[str, Any] | None:
        """Run the next activation. Return its number, and digests of its outputs and of the state; None at the end."""
        replay = self._replay
        if replay.activation is None or (until is not None and replay.activation.n >= until):
            return None
        if self._conditions.reverse:
            self._blocks = _reverse_addresses()
        self._replayed = replayed = replay.step()
        assert replayed is not None
        self._count += 1
        self._large = replay.activation is None or self._count % LARGE_ARRAYS_EVERY == 0
        error = "" if replayed.error is None else self._portable(repr(replayed.error))
        return {
            "n": replayed.activation.n,
            "outputs": [[*output.key, _digest(output.fields)] for output in replayed.outputs],
            "error": error,
            "state": "" if error else _digest([[path, digest] for path, _, digest in self.leaves()]),
        }

    def output(self, index: int) -> list[Any]:
        """Return an output of the last activation: as text, and its fields."""
        assert self._replayed is not None
        output = self._replayed.outputs[index]
        return [str(output), output.fields]

    def leaves(self) -> list[tuple[str, str, str]]:
        """Return the leaves of the state: the place, and digests of what is there, with and without unwritten elements.

        The place of a leaf that the other process may lack ends with its text.
        """
        found = []
        for path, value in state_leaves(self._replay.actor, large=self._large):
            if isinstance(value, str):
                digest = _digest(self._portable(value))
                found.append((path, digest, digest))
            else:
                written, never = without_unwritten(value, self._conditions.fill)
                kind = [str(value.dtype), list(value.shape)]
                exact = _digest([kind, value])
                found.append((path, exact, _digest([kind, written, np.packbits(never)]) if never.any() else exact))
        return found

    def leaf(self, index: int) -> Any:
        """Return the value of a leaf: an array, or a text."""
        for number, (_, value) in enumerate(state_leaves(self._replay.actor, large=self._large)):
            if number == index:
                return self._portable(value) if isinstance(value, str) else value
        return None

    def _portable(self, text: str) -> str:
        """Return `text` with the run's folder in the place of the scratch folder."""
        return self._replay.portable(text)


@contextmanager
def _filled_memory(byte: int) -> Iterator[None]:
    """While the block runs, fill new uninitialised numpy arrays with `byte`."""
    empty, empty_like = np.empty, np.empty_like

    def filling(make: Any) -> Any:
        @wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            array = make(*args, **kwargs)
            if array.dtype.kind in "biufc" and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8)[...] = byte
            return array

        return made

    numpy: Any = np
    numpy.empty, numpy.empty_like = filling(empty), filling(empty_like)
    try:
        yield
    finally:
        numpy.empty, numpy.empty_like = empty, empty_like


def _reverse_addresses() -> list[bytes]:
    """Have the next objects get descending addresses, so that their order in a set is another one.

    The memory that is freed last is used first.

    Returns:
        Objects to keep meanwhile. Memory in which nothing is left would be used in ascending order again.
    """
    kept = []
    for size in range(16, _LARGEST_BLOCK - sys.getsizeof(b"") + 1, 16):
        blocks = deque(bytes(size) for _ in range(_BLOCKS))
        while blocks:
            block = blocks.popleft()
            if len(blocks) % 16 == 0:
                kept.append(block)
    return kept


def _digest(value: Any) -> str:
    header, arrays = codec.Encoder().encode(value)
    found = xxhash.xxh3_128(header)
    for array in arrays:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _write(file: IO[bytes], value: Any) -> None:
    header, arrays = codec.Encoder().encode(value)
    payload = codec.payload_bytes(arrays)
    file.write(_SIZES.pack(len(header), len(payload)) + header + payload)
    file.flush()


def _read(file: IO[bytes]) -> Any:
    sizes = file.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        raise EOFError
    header, payload = (file.read(size) for size in _SIZES.unpack(sizes))
    return codec.decode(header, np.frombuffer(payload, np.uint8) if payload else None)


if __name__ == "__main__":
    main()
