"""Logs: every line of a node as JSON in a file, and warnings in short form on stderr.

Importing this module and getting a logger have no effect. `configure` sets up the process for its node:

    log.configure(run.logs, node="learner", level="info")
    log.get(actor="learner/trainer").warning("slow update", seconds=3.2)

writes a line of `logs/learner.jsonl` and, on stderr, `12:30:05 WARNING learner/trainer  slow update  seconds=3.2`.
Times are UTC. Lines that other libraries log through `logging` take the same way.
"""

import contextlib
import io
import json
import logging
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
RECORD = "\x1e"
"""Comes before each line of a log that goes to a stream, between other lines (RFC 7464)."""
QUIET = "quiet"
"""Key of a line that goes to the file alone, if there is a file."""
# Keys that a short line shows elsewhere, or leaves to the file.
_NOT_IN_SHORT = {"timestamp", "level", "node", "actor", "event", "exception", "error", "library"}
_LONGEST = 80
_INDENT = " " * len("12:30:05 ")
_warning_lock = threading.RLock()
"""Held while `at_least_warnings` begins or ends. The garbage collector may end an abandoned block while its thread
holds it already."""
_warning_nodes: list[str] = []  # blocks of `at_least_warnings` that need its set-up
_LOCK = threading.RLock()
"""Held while a line is written, to the file and to stderr. What the garbage collector ends meanwhile may log, too."""


class _Output:
    """The outputs of this process: a file, and a stream for people. It is structlog's last processor.

    Thread-safe.
    """

    def __init__(self, file: TextIO | None, node: str, *, quiet: bool = False, before: str = "") -> None:
        self._file = file
        self._before = before
        self._node = node
        self.quiet = quiet
        self._stderr_open = True

    def __call__(self, logger: WrappedLogger, method: str, given: EventDict) -> NoReturn:
        line = {"timestamp": given.pop("timestamp"), "level": given.pop("level"), "node": self._node, **given}
        quiet = line.pop(QUIET, False) and self._file is not None
        with _LOCK:
            self._to_file(line)
            alarming = _LEVELS.get(str(line["level"]), 0) >= logging.WARNING
            if alarming and self._stderr_open and not (quiet or self.quiet):
                stream = sys.stderr  # looked up each time: a live display replaces it by a stream of its own
                try:
                    stream.write(fitted(_short(line, with_file=self._file is not None), stream))
                    stream.flush()
                except OSError as error:
                    # The terminal was closed. The run goes on, and the file has every line.
                    self._stderr_open = False
                    self._to_file({**line, "event": "stderr is closed", "error": repr(error)})
        raise structlog.DropEvent  # the line is written: structlog's own logger prints nothing

    def record(self, line: EventDict) -> Path | None:
        with _LOCK:
            self._to_file({"node": self._node, **line})
        return None if self._file is None or self._before else Path(self._file.name)

    def _to_file(self, line: EventDict) -> None:
        if self._file is None:
            return
        try:
            text = json.dumps(line, default=repr, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            # NaN, a tuple as a key, a list in itself: the line is written with a text in place of the value.
            text = json.dumps({key: value if isinstance(value, str) else repr(value) for key, value in line.items()})
        with contextlib.suppress(OSError):  # the disk is full: the actor that logs must not fail with it
            self._file.write(f"{self._before}{text}\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


class _Discarded(io.StringIO):
    """Discards every text."""

    def write(self, text: str, /) -> int:
        return len(text)


class _FromLogging(logging.Handler):
    """Hands lines of `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(max(record.levelno // 10, 1), 5) * 10  # structlog has five levels, `logging` has any number
        get(library=record.name).log(level, record.getMessage(), exc_info=record.exc_info)


def configure(
    folder: Path | None, *, node: str, level: str | int = "info", quiet: bool = False, stream: TextIO | None = None
) -> None:
    """Append this process's logs to `<folder>/<node>.jsonl`, and print warnings to stderr as well.

    A second call replaces the set-up of the first. Without a folder there is no file, and the lines on stderr include
    tracebacks, which otherwise are in the file alone. A `quiet` process prints no warnings, and its `display_stream`
    discards. With a `stream` the lines go there in place of a file, each after a `RECORD`.

    Raises:
        ValueError: `level` is unknown.
        OSError: the file cannot be written to.
    """
    threshold = _LEVELS.get(level.lower()) if isinstance(level, str) else level
    if threshold is None:
        raise ValueError(f"no such log level: {level!r}; the known ones are {', '.join(_LEVELS)}")
    file = stream
    if file is None and folder is not None:
        file = (folder / f"{node}.jsonl").open("a", encoding="utf-8", errors="backslashreplace")
    close()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _name_the_error,
            structlog.processors.format_exc_info,
            _Output(file, node, quiet=quiet, before=RECORD if stream is not None else ""),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=False,  # a module makes its logger before `configure` is called
    )
    logging.getLogger().addHandler(_FromLogging(max(threshold, logging.WARNING)))


@contextlib.contextmanager
def configured(
    folder: Path | None, *, node: str, level: str | int = "info", quiet: bool = False, stream: TextIO | None = None
) -> Iterator[None]:
    """While the block runs, log as `configure` sets it up; afterwards as before.

    Raises:
        ValueError, OSError: see `configure`.
    """
    before = structlog.get_config() if structlog.is_configured() else None
    configure(folder, node=node, level=level, quiet=quiet, stream=stream)
    try:
        yield
    finally:
        close()
        if before is not None:
            structlog.configure(**before)


@contextlib.contextmanager
def at_least_warnings(node: str) -> Iterator[None]:
    """Print warnings to stderr while the block runs, unless logging is set up already.

    Blocks may overlap, in several threads too: the set-up of the first lasts until the last one ends.
    """
    with _warning_lock:
        warns = bool(_warning_nodes) or not structlog.is_configured()
        if warns:
            _warning_nodes.append(node)  # first, so that a block that ends meanwhile leaves the set-up
            if not structlog.is_configured():
                configure(None, node=node, level="warning")
    try:
        yield
    finally:
        with _warning_lock:
            if warns:
                _warning_nodes.remove(node)
                if not _warning_nodes:
                    close()


def close() -> None:
    """Close the file and undo `configure`. Later lines go to structlog's default output."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _FromLogging):
            root.removeHandler(handler)
    output = _current_output()
    if output is not None:
        structlog.reset_defaults()
        output.close()


def get(**bound: object) -> FilteringBoundLogger:
    """Return a logger that adds `bound` to every line, as in `get(actor="learner/trainer")`."""
    logger: FilteringBoundLogger = structlog.get_logger(**bound)
    return logger


def record(event: str, **fields: object) -> Path | None:
    """Write a line to the file alone, at any level; return the file, or None if there is none."""
    output = _current_output()
    line = {"timestamp": datetime.now(UTC).isoformat(), "level": "info", "event": event, **fields}
    return None if output is None else output.record(line)


def short(line: EventDict) -> str:
    """Return a line of a log in the form that people see, without its end of line."""
    return _short(line, with_file=True).rstrip("\n")


def say(text: str) -> None:
    """Print `text` on the stream of the warnings, and not to the file."""
    with _LOCK:
        print(text, file=sys.stderr, flush=True)


def display_stream() -> TextIO:
    """Return the stream for progress reports: standard output, or one that discards if this process is `quiet`."""
    output = _current_output()
    return _Discarded() if output is not None and output.quiet else sys.stdout


def _current_output() -> _Output | None:
    # structlog's configuration is the only place that holds the output of this process
    last = structlog.get_config()["processors"][-1]
    return last if isinstance(last, _Output) else None


def _name_the_error(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Add the exception as a field of its own, such as `ValueError: no such map`, beside the traceback."""
    exc_info: Any = line.get("exc_info")
    if exc_info is True:
        exc_info = sys.exc_info()
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if isinstance(error, BaseException):
        line.setdefault("error", f"{type(error).__name__}: {error}")
    return line


def _short(line: EventDict, *, with_file: bool) -> str:
    time = f"{datetime.fromisoformat(line['timestamp']).astimezone(UTC):%H:%M:%S}"
    parts = [f"{time} {str(line['level']).upper()} {line.get('actor') or line.get('library') or line['node']}"]
    parts.append(_one_line(line["event"]))
    for key, value in line.items():
        text = f"{key}={value}"
        # A long value is for the file.
        if key not in _NOT_IN_SHORT and len(text) <= _LONGEST and "\n" not in text:
            parts.append(text)
    if "error" in line:
        parts.append(_one_line(line["error"]))
    text = "  ".join(parts) + "\n"
    if not with_file and "exception" in line:
        text += f"{line['exception']}\n"
    return text


def fitted(text: str, stream: TextIO) -> str:
    """Wrap lines to the width of the terminal behind `stream`; return them unchanged where it is no terminal."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, width, subsequent_indent=_INDENT, break_on_hyphens=False) or [""]
    ]
    return "\n".join(lines) + "\n"


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
