"""The index of a trace file: where each record lies and what it is about, so that no question reads the file whole.

It is built at the first question, kept beside the file (`NAME.trace.index`), and extended when the file has grown. It
holds nothing that the file does not say, and may be deleted at any time.
"""

import json
import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchestra.trace.effects import Asked, Sent, TimerSet
from orchestra.trace.layout import PREFIX
from orchestra.trace.naming import MessageType
from orchestra.trace.reader import Place, TraceFile
from orchestra.trace.records import Damage, Kind, Record

MAGIC = b"ORINDEX1"
CHUNK = 1 << 16
ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("clock", "<u8"),
        ("number", "<u8"),
        ("time", "<f8"),
        ("seconds", "<f8"),
        ("nbytes", "<u8"),
        ("n", "<u4"),
        ("actor", "<u4"),
        ("sender", "<u4"),
        ("type", "<u4"),
        ("incarnation", "<u4"),
        ("kind", "u1"),
        ("flag", "u1"),
        ("pad", "<u2"),
    ]
)
"""A record of an actor. `seconds`: a delivery's wait, or how long handling took. `number`: the message's, or for an
answer the request's. `nbytes`: the message's. `flag`: a timer, or a failure."""
SEND = np.dtype(
    [("number", "<u8"), ("row", "<u8"), ("actor", "<u4"), ("recipient", "<u4"), ("type", "<u4"), ("n", "<u4")]
)
"""A message that an actor sent, and the row of the entry that says so."""
BLOB = np.dtype([("high", "<u8"), ("low", "<u8"), ("begin", "<u8"), ("end", "<u8")])
_TABLES = {"entries": ENTRY, "sends": SEND, "blobs": BLOB}
_SENDING = (Sent.code, Asked.code, TimerSet.code)


class TraceIndex:
    """The index of one file. `TraceIndex.of` finds or builds it."""

    def __init__(self, file: TraceFile) -> None:
        self.file = file
        self.addresses: list[str] = []
        """Actors, senders and recipients; the tables name them by their place in this list."""
        self.entries: NDArray[Any] = np.empty(0, ENTRY)
        self.sends: NDArray[Any] = np.empty(0, SEND)
        self.gaps: list[int] = []
        """Where records say that others were not written."""
        self._blobs: NDArray[Any] = np.empty(0, BLOB)
        self._numbers: dict[str, int] = {}
        self._scanned = 0

    @classmethod
    def of(cls, file: TraceFile) -> Self:
        """Return the index of `file`, from beside it if it is there, and up to date with it."""
        index = cls(file)
        index._load(_beside(file.path))
        index.refresh()
        return index

    def refresh(self) -> bool:
        """Take in what was added to the file since; return whether there was something."""
        if self.file.nbytes <= self._scanned:
            return False
        before = self._scanned
        self._scan()
        if self._scanned > before:
            self._save(_beside(self.file.path))
        return self._scanned > before

    def address(self, text: str) -> int | None:
        """Return the number of an address, or None if it does not occur."""
        return self._numbers.get(text)

    def rows(self, kind: Kind, actor: str | None = None) -> NDArray[np.int64]:
        """Return the rows of the entries of a kind, of all actors or of one, in order."""
        chosen = self.entries["kind"] == kind
        if actor is not None:
            number = self._numbers.get(actor)
            if number is None:
                return np.empty(0, np.int64)
            chosen &= self.entries["actor"] == number
        return np.flatnonzero(chosen)

    def record(self, row: int, *, resolve: bool = True) -> Record:
        """Return the record of a row; without `resolve`, every large array in it is a `Digest`."""
        return self.file.record_at(self.file.place_at(int(self.entries["offset"][row])), resolve=resolve)

    # Inside

    def _number(self, address: str) -> int:
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = len(self.addresses)
            self.addresses.append(address)
        return number

    def _scan(self) -> None:
        file = self.file
        entries: list[tuple[Any, ...]] = []
        sends: list[tuple[Any, ...]] = []
        blobs: list[tuple[Any, ...]] = []
        tables = {"entries": [self.entries], "sends": [self.sends], "blobs": [self._blobs]}
        row = len(self.entries)
        end = self._scanned

        def pack() -> None:
            for name, rows in (("entries", entries), ("sends", sends), ("blobs", blobs)):
                tables[name].append(np.array(rows, _TABLES[name]))
                rows.clear()

        for place in file.places(self._scanned):
            end = place.end
            match place.kind:
                case Kind.GAP:
                    self.gaps.append(place.offset)
                    continue
                case Kind.HEADER | Kind.TYPE | Kind.CLOSE:
                    continue
                case Kind.BLOB:
                    begin = place.offset + PREFIX.size + 16
                    blobs.append((*_halves(file.bytes_at(begin - 16, begin)), begin, place.end))
                    continue
            entries.append(self._entry(place, file.header_at(place), row, sends))
            row += 1
            if len(entries) >= CHUNK:
                pack()
        pack()
        self.entries, self.sends = np.concatenate(tables["entries"]), np.concatenate(tables["sends"])
        joined = np.concatenate(tables["blobs"])
        self._blobs = joined[np.argsort(joined["high"], kind="stable")]
        self._scanned = end
        file.find_blob = self._find_blob
        file.forget_blobs()

    def _entry(self, place: Place, header: list[Any], row: int, sends: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        offset, kind = place.offset, place.kind
        actor, incarnation = self._number(header[0]), header[1]
        if kind is Kind.DELIVERY:
            _, _, n, clock, time, waited, sender, number, type_number, _, nbytes, timer, _ = header
            told = (clock, number, time, waited, nbytes, n, actor, self._number(sender), type_number)
            return (offset, *told, incarnation, kind, timer, 0)
        if kind in (Kind.BIRTH, Kind.END):
            clock, time = header[2], header[3]
            return (offset, clock, 0, time, 0.0, 0, 0, actor, actor, 0, incarnation, kind, 0, 0)
        if kind is Kind.ANSWER:
            _, _, n, clock, time, number, type_number, _ = header
            told = (clock, number, time, 0.0, place.length, n, actor, actor, type_number)
            return (offset, *told, incarnation, kind, 0, 0)
        if kind is Kind.SNAPSHOT:
            _, _, n, clock, time, _, _ = header
            return (offset, clock, 0, time, 0.0, place.length, n, actor, actor, 0, incarnation, kind, 0, 0)
        seconds, failed = 0.0, 0
        if kind is Kind.HANDLED:
            _, _, n, _, clock, time, seconds, effects, failure = header
            failed = failure is not None
        else:
            _, _, n, clock, time, effects = header
        for code, _, *rest in effects:
            if code in _SENDING:
                number = rest[0]
                recipient = actor if code == TimerSet.code else self._number(rest[1])
                sends.append((number, row, actor, recipient, rest[2], n))
        return (offset, clock, 0, time, seconds, place.length, n, actor, actor, 0, incarnation, kind, failed, 0)

    def _find_blob(self, digest: bytes) -> tuple[int, int] | None:
        high, low = _halves(digest)
        row = int(np.searchsorted(self._blobs["high"], np.uint64(high)))
        while row < len(self._blobs) and int(self._blobs["high"][row]) == high:
            if int(self._blobs["low"][row]) == low:
                return int(self._blobs["begin"][row]), int(self._blobs["end"][row])
            row += 1
        return None

    def _load(self, path: Path) -> None:
        try:
            content = path.read_bytes() if path.stat().st_size < (1 << 20) else None
            memory: Any = np.frombuffer(content, np.uint8) if content else np.memmap(path, np.uint8, mode="r")
        except OSError:
            return  # there is none yet
        try:
            if memory[:8].tobytes() != MAGIC:
                return
            length = int(memory[8:16].view("<u8")[0])
            told = json.loads(memory[20 : 20 + length].tobytes())
            if zlib.crc32(memory[20 : 20 + length].tobytes()) != int(memory[16:20].view("<u4")[0]):
                return
            position = -(-(20 + length) // 16) * 16
            tables: dict[str, Any] = {}
            for name, dtype in _TABLES.items():
                nbytes = told["rows"][name] * dtype.itemsize
                tables[name] = memory[position : position + nbytes].view(dtype)
                position += nbytes
        except (ValueError, IndexError, KeyError, TypeError):
            return  # not ours, or half written: it is built anew
        if told["scanned"] > self.file.nbytes or told["mark"] != self.file.bytes_at(16, 56).hex():
            return  # of another file
        self.entries, self.sends, self._blobs = tables["entries"], tables["sends"], tables["blobs"]
        self.addresses, self.gaps = told["addresses"], told["gaps"]
        self._numbers = {address: number for number, address in enumerate(self.addresses)}
        self._scanned = told["scanned"]
        types = {
            int(number): MessageType(tag, bytes.fromhex(fingerprint), tuple(fields), request)
            for number, (tag, fingerprint, fields, request) in told["types"].items()
        }
        self.file.adopt(types, [Damage(*damage) for damage in told["damages"]], closed=told["closed"])
        self.file.find_blob = self._find_blob

    def _save(self, path: Path) -> None:
        found = [damage for damage in self.file.damages if damage.offset < self._scanned]
        damages = [[damage.offset, damage.length, damage.what] for damage in found]
        told: dict[str, Any] = {
            "scanned": self._scanned,
            "mark": self.file.bytes_at(16, 56).hex(),
            "closed": self.file.closed,
            "addresses": self.addresses,
            "gaps": self.gaps,
            "damages": damages,
            "types": {
                number: [kind.tag, kind.fingerprint.hex(), kind.fields, kind.request]
                for number, kind in self.file.types.items()
            },
            "rows": {"entries": len(self.entries), "sends": len(self.sends), "blobs": len(self._blobs)},
        }
        text = json.dumps(told).encode()
        begins = MAGIC + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little") + text
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(begins + bytes(-len(begins) % 16))
                for table in (self.entries, self.sends, self._blobs):
                    file.write(np.ascontiguousarray(table).tobytes())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # a folder that cannot be written to: it is built each time


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".index")


def _halves(digest: bytes) -> tuple[int, int]:
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
