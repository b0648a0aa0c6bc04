"""The figures of runs as one table: CSV or Parquet."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra import RunDirectory, UsageError, read_records, replacing

Row = dict[str, Any]


def rows_of(runs: Sequence[RunDirectory]) -> list[Row]:
    """Return a row for each record of the runs' metrics, with the columns `run` and `seed` before them.

    Raises:
        UsageError: a run has no metrics, or they are damaged.
    """
    rows: list[Row] = []
    for run in runs:
        try:
            records = read_records(run.metrics)
        except FileNotFoundError as error:
            raise UsageError(f"{str(run.path)!r} has no metrics") from error
        except ValueError as error:
            raise UsageError(str(error)) from error
        own = {"run": f"{run.path.resolve().parent.name}/{run.path.resolve().name}", "seed": run.config().get("seed")}
        rows += [own | record for record in records]
    return rows


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of all columns, in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as CSV; a missing figure is empty.

    Raises:
        OSError: the file cannot be written.
    """
    with replacing(path) as file:
        text = _Encoded(file)
        writer = csv.DictWriter(text, columns_of(rows), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as Parquet; a missing figure is null, and a column of nulls alone has the type double.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: pa.array([row.get(name) for row in rows]) for name in columns_of(rows)}
    empty = pa.null()
    typed = {name: array.cast(pa.float64()) if array.type == empty else array for name, array in columns.items()}
    with replacing(path) as file:
        parquet.write_table(pa.table(typed), file)


class _Encoded:
    """Writes text into a file of bytes, as UTF-8."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(text.encode())
        return len(text)
