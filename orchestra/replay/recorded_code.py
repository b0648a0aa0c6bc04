"""The code that a run was made with: its `code.zip`, which a replay uses once the checkout has changed."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.hosts.bundle import MANIFEST, PROJECT, Bundle, UnpackedCode
from orchestra.hosts.collected_code import our_files
from orchestra.runs.experiment import recorded_experiment
from orchestra.runs.run_directory import RunDirectory
from orchestra.trace.format.records import Experiment

_temporary: list[tempfile.TemporaryDirectory[str]] = []
"""Folders of this process, which last as long as it does."""


def run_of(trace: Path) -> RunDirectory | None:
    """Return the run directory that a trace lies in, given as it, its folder of traces or a file; None for others."""
    for folder in (trace, *trace.absolute().parents[:2]):
        if (run := RunDirectory(folder)).config_path.exists():
            return run
    return None


def checkout_file(trace: Path, experiment: Experiment) -> Path:
    """Return the file of an experiment on this machine. A process of another host has recorded where its copy lay."""
    run = run_of(trace)
    if run is not None and experiment.code:
        with suppress(UsageError):  # a damaged run directory
            return recorded_experiment(run)[0]
    return Path(experiment.file)


def unpacked_file(trace: Path, experiment: Experiment) -> Path | None:
    """Return the file of an experiment in the unpacked `code.zip` of its run; None if the run has kept none."""
    if (bundle := _kept(trace, experiment)) is None:
        return None
    code = _unpacked(bundle.digest, bundle.data)
    code.append_import_paths()
    return code.experiment


def changed(trace: Path, experiment: Experiment) -> Bundle | None:
    """Return the code of a run if this process would not import the same; None if it would, or if none was kept."""
    if (bundle := _kept(trace, experiment)) is None:
        return None
    contents, ours = bundle.contents(), our_files()
    roots = _roots_of(bundle, checkout_file(trace, experiment))
    for name, content in contents.items():
        above = next((folder for folder in roots if name.startswith(f"{folder}/")), None)
        path = ours.get(name) if above is None else roots[above] / name.removeprefix(f"{above}/")
        if name != MANIFEST and (path is None or not path.is_file() or path.read_bytes() != content):
            return bundle
    return None


def carry_out(bundle: Bundle, command: Sequence[str], arguments: Sequence[str]) -> int:
    """Carry out a command of `orchestra` in a process that imports the code of a run; return its exit code.

    Args:
        bundle: the code.
        command: the words of the command.
        arguments: its arguments, to which `--experiment` with the file in that code is added.
    """
    code = _unpacked(bundle.digest, bundle.data)
    words = [sys.executable, "-m", "orchestra", *command, *arguments, "--experiment", str(code.experiment)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the other process, which may be a debugger
    try:
        return subprocess.run(words, env=code.environment(os.environ), check=False, preexec_fn=_obey_ctrl_c).returncode  # noqa: S603 (a fixed program)
    finally:
        signal.signal(signal.SIGINT, before)


def _obey_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _kept(trace: Path, experiment: Experiment) -> Bundle | None:
    run = run_of(trace)
    return None if run is None or not experiment.code else run.read_code(experiment.code)


def _roots_of(bundle: Bundle, file: Path) -> dict[str, Path]:
    """Return the project roots by their folders in a bundle: that in which an experiment's file lies, and others."""
    code = _unpacked(bundle.digest, bundle.data)
    depth = len(Path(code.experiment_name).parts)
    return {PROJECT: file.parents[depth - 1], **code.elsewhere}


@functools.cache
def _unpacked(digest: str, data: bytes) -> UnpackedCode:
    folder = tempfile.TemporaryDirectory(prefix="code-")
    _temporary.append(folder)
    return Bundle.read(data).unpack(Path(folder.name) / digest[:16], Path(folder.name))
