"""Whole lines that have been appended to a file since the last look."""

from pathlib import Path


class AppendedLines:
    """Reads a file that another process appends to. A file that is not there yet has no lines.

    Args:
        path: the file.
        most: bytes that one look reads; of more, the newest.
    """

    def __init__(self, path: Path, *, most: int | None = None) -> None:
        self._path = path
        self._most = most
        self._read = 0
        self.replaced = False
        """True if the last look found a shorter file than the one before, and began at its first line."""

    def new(self) -> list[str]:
        """Return the lines that are complete and were not returned before."""
        self.replaced = False
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._read:
                    self._read, self.replaced = 0, True
                cut = self._most is not None and size - self._read > self._most
                file.seek(size - self._most if cut and self._most is not None else self._read)
                data = file.read()
                begin = file.tell() - len(data)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read = begin + len(whole)
        lines = whole.decode(errors="replace").split("\n")[:-1]
        return lines[1:] if cut else lines  # the first one of a cut is a part
