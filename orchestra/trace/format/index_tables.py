"""The tables of a trace file's index, and the index file; filled while the trace is written, or while it is read."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from orchestra.trace.format.effects import MESSAGE_EFFECTS, MessageType, TimerSet
from orchestra.trace.format.layout import PREAMBLE
from orchestra.trace.format.records import Damage, Kind

MAGIC = b"ORINDEX4"
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
"""One record of an actor. `seconds`: a delivery's wait, or the duration of handling. `number`: of the message, or of an
answer's request. `nbytes`: size of the message. `flag`: true if a timer sent it, or if handling failed."""
SEND = np.dtype(
    [("number", "<u8"), ("row", "<u8"), ("actor", "<u4"), ("recipient", "<u4"), ("type", "<u4"), ("n", "<u4")]
)
"""One message that an actor sent; `row` is the entry of the activation that sent it."""
BLOB = np.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<u8")])
"""One array: the halves of its digest, and the offset of the record with its bytes."""
_TABLES = {"entries": ENTRY, "sends": SEND, "blobs": BLOB}
_MESSAGE_CODES = tuple(kind.code for kind in MESSAGE_EFFECTS)
_COLUMNS: dict[str, np.dtype[Any]] = {"actor": np.dtype("<u4"), "kind": np.dtype("u1")}
"""Fields of the entries that are stored a second time, contiguous, since every query scans them."""
MARK = (PREAMBLE.size, 56)
"""Range of the bytes by which an index identifies its trace file."""


class IndexTables:
    """The index of one trace file, up to the byte `scanned`."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        """Actors, senders and recipients; the tables hold positions in this list."""
        self.gaps: list[int] = []
        """Offsets of the GAP records."""
        self.numbers: dict[str, int] = {}
        """Position of each address."""
        self.scanned = 0
        self.types: Mapping[int, MessageType] = {}
        self.damages: Sequence[Damage] = ()
        self.closed = False
        """True if the file ends with a CLOSE."""
        self._count = 0
        self._columns: dict[str, NDArray[Any]] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
        self._tables: dict[str, list[NDArray[Any]]] = {name: [np.empty(0, dtype)] for name, dtype in _TABLES.items()}

    def add(self, offset: int, kind: Kind, length: int, row: Sequence[Any]) -> None:
        """Add a record of an actor by its offset, the length of its body, and its header, whose values are not read."""
        self._rows["entries"].append(self._entry(offset, kind, length, row))
        self._count += 1
        if len(self._rows["entries"]) >= CHUNK:
            self._pack()

    def add_blob(self, offset: int, digest: bytes) -> None:
        """Add an array record by its offset."""
        self._rows["blobs"].append((*halves(digest), offset))

    def table(self, name: str) -> NDArray[Any]:
        """Return the table `entries`, `sends`, or `blobs`, which is sorted by digest."""
        self._pack()
        found = self._tables[name]
        if len(found) > 1:
            joined = np.concatenate(found)
            if name == "blobs":
                joined = joined[np.argsort(joined["high"], kind="stable")]
            found[:] = [joined]
        return found[0]

    def column(self, name: str) -> NDArray[Any]:
        """Return the field `actor` or `kind` of all entries, contiguous."""
        found = self._columns.get(name)
        if found is None or len(found) < self._count:
            found = self._columns[name] = np.ascontiguousarray(self.table("entries")[name])
        return found

    def save(self, trace: Path, mark: bytes) -> None:
        """Write the index file beside a trace file; does nothing where the folder is not writable.

        Args:
            trace: the trace file.
            mark: its bytes at `MARK`.
        """
        tables = [self.table(name) for name in _TABLES]
        content: dict[str, Any] = {
            "scanned": self.scanned,
            "mark": mark.hex(),
            "closed": self.closed,
            "addresses": self.addresses,
            "gaps": self.gaps,
            "damages": [damage for damage in self.damages if damage.offset < self.scanned],
            "types": {
                number: [kind.tag, kind.fingerprint.hex(), kind.fields, kind.request]
                for number, kind in self.types.items()
            },
            "rows": dict(zip(_TABLES, map(len, tables), strict=True)),
        }
        text = json.dumps(content).encode()
        begins = MAGIC + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little") + text
        path = beside(trace)
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(begins + bytes(-len(begins) % 16))
                for table in (*tables, *map(self.column, _COLUMNS)):
                    file.write(np.ascontiguousarray(table).data)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # the folder is not writable: the index is built at each query

    @classmethod
    def load(cls, trace: Path, mark: bytes, nbytes: int) -> Self | None:
        """Return the index that was saved beside a trace file; None where there is none, or not one of this file.

        Args:
            trace: the file.
            mark: its bytes at `MARK`.
            nbytes: its size.
        """
        path = beside(trace)
        try:
            small = path.read_bytes() if path.stat().st_size < (1 << 20) else None
            # A plain array: access to an element of a memmap takes a microsecond longer.
            memory: Any = np.frombuffer(small or np.memmap(path, np.uint8, mode="r"), np.uint8)
        except (OSError, ValueError):
            return None  # not written yet
        try:
            length = int(memory[8:16].view("<u8")[0])
            text = memory[20 : 20 + length].tobytes()
            if memory[:8].tobytes() != MAGIC or zlib.crc32(text) != int(memory[16:20].view("<u4")[0]):
                return None
            content = json.loads(text)
            position = -(-(20 + length) // 16) * 16
            made = cls()
            parts: dict[str, NDArray[Any]] = {}
            for name, dtype in (_TABLES | _COLUMNS).items():
                size = content["rows"].get(name, content["rows"]["entries"]) * dtype.itemsize
                parts[name] = memory[position : position + size].view(dtype)
                position += size
            if position != len(memory) or content["scanned"] > nbytes or content["mark"] != mark.hex():
                return None  # written halfway, or of another file
            made._tables = {name: [parts[name]] for name in _TABLES}
            made._columns = {name: parts[name] for name in _COLUMNS}
            made.types = {
                int(number): MessageType(tag, bytes.fromhex(fingerprint), tuple(fields), request)
                for number, (tag, fingerprint, fields, request) in content["types"].items()
            }
        except (ValueError, IndexError, KeyError, TypeError):
            return None  # another format, or written halfway: the index is rebuilt
        made.addresses, made.gaps, made.scanned = content["addresses"], content["gaps"], content["scanned"]
        made.numbers = {address: number for number, address in enumerate(made.addresses)}
        made.damages, made.closed = [Damage(*damage) for damage in content["damages"]], content["closed"]
        made._count = content["rows"]["entries"]
        return made

    # Inside

    def _pack(self) -> None:
        for name, rows in self._rows.items():
            if rows:
                self._tables[name].append(np.array(rows, _TABLES[name]))
                rows.clear()

    def _number(self, address: str) -> int:
        number = self.numbers.get(address)
        if number is None:
            number = self.numbers[address] = len(self.addresses)
            self.addresses.append(address)
        return number

    def _entry(self, offset: int, kind: Kind, length: int, header: Sequence[Any]) -> tuple[Any, ...]:
        actor = sender = self._number(header[0])
        number = type_number = flag = 0
        seconds, nbytes = 0.0, length
        if kind is Kind.BIRTH or kind is Kind.END:
            _, incarnation, clock, time, *_ = header
            n = nbytes = 0
        elif kind is Kind.HANDLED:
            _, incarnation, n, _, clock, time, seconds, effects, failure = header
            flag = failure is not None
            self._add_sends(actor, n, effects)
        else:
            _, incarnation, n, clock, time, *rest = header
            if kind is Kind.DELIVERY:
                seconds, name, number, type_number, _, nbytes, flag, _ = rest
                sender = self._number(name)
            elif kind is Kind.ANSWER:
                number, type_number, _ = rest
            elif kind is Kind.LATE:
                self._add_sends(actor, n, rest[0])
        head = (offset, clock, number, time, seconds, nbytes, n, actor, sender, type_number)
        return (*head, incarnation, kind, flag, 0)

    def _add_sends(self, actor: int, n: int, effects: Sequence[Any]) -> None:
        for code, _, *fields in effects:
            if code in _MESSAGE_CODES:
                recipient = actor if code == TimerSet.code else self._number(fields[1])
                self._rows["sends"].append((fields[0], self._count, actor, recipient, fields[2], n))


def beside(trace: Path) -> Path:
    """Return the path of a trace file's index."""
    return trace.with_name(trace.name + ".index")


def halves(digest: bytes) -> tuple[int, int]:
    """Return the two 64-bit halves of a digest."""
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
