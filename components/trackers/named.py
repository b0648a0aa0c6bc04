"""Trackers by name: the values of `--track`."""

import importlib.util
import pkgutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from components.trackers.logger import Logger, LoggerFactory
from orchestra import RunDirectory, UsageError, code_file, import_file

TRACKERS = {
    "wandb": ("wandb", "components.trackers.wandb_logger:WandbLogger"),
    "mlflow": ("mlflow", "components.trackers.mlflow_logger:MlflowLogger"),
    "prometheus": ("prometheus_client", "components.trackers.prometheus_logger:PrometheusLogger"),
}
"""For each tracker: the module that it needs, and its logger."""
FORMS = "wandb[:PROJECT], mlflow[:EXPERIMENT], prometheus[:[HOST:]PORT], or FILE.py:CLASS, a Logger"


def named(values: object) -> tuple[str, ...]:
    """Return values of `--track` as a run records them: files with their whole paths.

    Raises:
        ValueError: a value has none of `FORMS`, or occurs twice.
    """
    texts = (values,) if isinstance(values, str) else tuple(cast("Sequence[str]", values))
    found: list[str] = []
    for text in texts:
        name, _, argument = str(text).partition(":")
        file, colon, kind = str(text).rpartition(":")
        if name in TRACKERS:
            found.append(str(text))
            if name == "prometheus" and argument:
                address_of(argument)
        elif colon and file.endswith(".py") and kind.isidentifier():
            found.append(f"{Path(file).absolute()}:{kind}")
        else:
            raise ValueError(f"it must be {FORMS}")
    if len(set(found)) < len(found):
        raise ValueError("a tracker is named twice")
    return tuple(found)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `PORT` or `HOST:PORT`; the host is this one by default.

    Raises:
        ValueError: there is no port from 0 to 65535.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} ends in no port from 0 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def check(texts: Sequence[str]) -> None:
    """Check that the trackers of a run can be made on this machine.

    Raises:
        UsageError: a package or a file is missing, or a class is not a logger.
    """
    for text in texts:
        name = text.partition(":")[0]
        if name not in TRACKERS:
            _class_of(text)
        elif importlib.util.find_spec(TRACKERS[name][0]) is None:
            raise UsageError(f"--track {name}: a package is missing: pip install 'orchestra-rl[{name}]'")


def factories(texts: Sequence[str], *, offline: bool) -> dict[str, LoggerFactory]:
    """Return the factory of the logger for each value of `--track`; imports happen only when it is called."""
    return {text: partial(_logger, text, offline=offline) for text in texts}


def _logger(text: str, run: RunDirectory, resumes_at: int | None, *, offline: bool) -> Logger:
    name, _, argument = text.partition(":")
    if name not in TRACKERS:
        return _class_of(text)(run, resumes_at)
    kind = pkgutil.resolve_name(TRACKERS[name][1])
    return cast("Logger", kind(run, resumes_at, argument=argument, offline=offline))


def _class_of(text: str) -> LoggerFactory:
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not code_file(path).exists():
        raise UsageError(f"--track: there is no file {file!r}")
    kind = getattr(import_file(path, "logger"), name, None)
    if not isinstance(kind, type) or not all(callable(getattr(kind, method, None)) for method in ("write", "close")):
        raise UsageError(f"--track: {file}: {name!r} is no class in this file with the methods write and close")
    return cast("LoggerFactory", kind)
