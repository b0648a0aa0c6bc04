"""The table by which the processes of a host write each array of a run once.

A message passes through several processes, each of which records it. The first process that has written an array notes
its place in the table, and the others refer to that place. No process waits: two may write an array at the same time.

The table is a file beside the trace files. A place is noted only once the record is in the file of a process, where it
stays if the process is killed. The table's name has the system's boot id, since a power cut may take the end of a file
away: nothing is referred to that was written before it. Other hosts, also on a file system in common, have another id.
"""

import mmap
import os
from pathlib import Path

import xxhash

from orchestra.trace.format.array_records import ArrayPlace
from orchestra.trace.format.layout import DIGEST_BYTES
from orchestra.trace.format.records import TABLE

SHARE_FROM = 4 << 10
"""Bytes of an array from which on it is shared."""
SLOTS = 1 << 13
"""Places in the table. An array is needed again within seconds; a newer one may then take its place."""
SLOT_BYTES = 128
_NAME_BYTES = SLOT_BYTES - DIGEST_BYTES - 8 - 8
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SharedArrays:
    """The table in one folder of trace files. Errors of the disk raise nothing: arrays are then written again.

    Args:
        folder: of the trace files.
        remove: whether `close` removes the table. The process that ends last removes it; others still work without it.
    """

    def __init__(self, folder: Path, *, remove: bool = False) -> None:
        self._folder = folder
        self._remove = remove
        self._file: int | None = None
        self._memory: mmap.mmap | None = None
        """The table. Places are read here, and written to the file: without room on the disk that fails cleanly."""
        self._given_up = False
        self._names: set[str] = set()
        """Files that are known to exist."""

    def find(self, digest: bytes) -> ArrayPlace | None:
        """Return where an array has been written, or None where that is unknown."""
        if self._opened() is None or self._memory is None:
            return None
        begin = self._offset(digest)
        slot = self._memory[begin : begin + SLOT_BYTES]
        # Two processes may have written to the slot at once: the hash tells whether it is whole.
        if slot[:DIGEST_BYTES] != digest or slot[-8:] != xxhash.xxh3_64_digest(slot[:-8]):
            return None
        offset = int.from_bytes(slot[DIGEST_BYTES : DIGEST_BYTES + 8], "little")
        name = slot[DIGEST_BYTES + 8 : -8].rstrip(b"\0").decode()
        if name not in self._names:
            if not (self._folder / name).is_file():
                return None  # it was deleted before this process began
            self._names.add(name)
        return ArrayPlace(name, offset)

    def note(self, digest: bytes, place: ArrayPlace) -> None:
        """Note where an array has been written; the record must be in its file."""
        name = place.file.encode()
        file = self._opened()
        if file is None or len(name) > _NAME_BYTES:
            return
        slot = digest + place.offset.to_bytes(8, "little") + name.ljust(_NAME_BYTES, b"\0")
        try:
            os.pwrite(file, slot + xxhash.xxh3_64_digest(slot), self._offset(digest))
        except OSError:
            self.close()  # no space: the others write what they need

    def close(self) -> None:
        """Close the table. Afterwards nothing is found or noted."""
        self._given_up = True
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if self._remove:
                self._path(self._boot()).unlink(missing_ok=True)

    def _opened(self) -> int | None:
        if self._file is None and not self._given_up:
            boot = self._boot()
            try:
                if boot:
                    self._file = os.open(self._path(boot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                    if os.fstat(self._file).st_size < SLOTS * SLOT_BYTES:
                        os.truncate(self._file, SLOTS * SLOT_BYTES)
                    self._memory = mmap.mmap(self._file, SLOTS * SLOT_BYTES, access=mmap.ACCESS_READ)
            except OSError:
                self.close()  # a folder without room or permission: each process writes all arrays
            self._given_up = self._file is None
        return self._file

    def _path(self, boot: str) -> Path:
        return self._folder / f"arrays-{boot}{TABLE}"

    def _boot(self) -> str:
        """The first part of the system's boot id; empty where there is none, and nothing is shared."""
        try:
            return BOOT_ID.read_text().strip().partition("-")[0]
        except OSError:
            return ""

    def _offset(self, digest: bytes) -> int:
        return int.from_bytes(digest[:8], "little") % SLOTS * SLOT_BYTES
