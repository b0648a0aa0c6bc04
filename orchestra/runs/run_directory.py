"""The directory of a run: `runs/<experiment>/<YYYYmmdd-HHMMSS>-seed<k>/`, times in UTC.

Its files, by the attributes that give their paths:

    config.json      config_path    what was started: file, flags, options, hosts, command line, versions of the code
    metrics.jsonl    metrics        one record a line, written during the run
    tensorboard/     tensorboard    the same figures as TensorBoard events
    logs/            logs           one file of JSON lines for each node
    checkpoints/     checkpoints    parameters
    state/           state          what the actors saved, for `--resume`
    traces/          traces         recorded messages
    message_counts.json  message_counts  how often each actor sent each type of message to each other actor
    curve.png        curve          the learning curve
    summary.json     summary        how the run ended
    join.json        join           where it can be joined: only during the run, and readable by its owner alone
    replicas.json    replicas       the numbers of replicas, if `orchestra scale` has changed them
    code.zip         code           the code of the run, from which other hosts run, and a replay
    hosts.json       hosts          the hosts of a run over several, what they have played, and which came and went
    lock.json        lock           host and process id of the run that goes on here: only during the run

No secret stays in it. The environment is not recorded; of a flag that is named after a secret only the name is; and
`join.json`, which holds the run's own secret, is removed at the end.
"""

import contextlib
import hashlib
import itertools
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from orchestra.clock import Clock
from orchestra.errors import CannotWrite, UsageError
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.shape import HostShape
from orchestra.runs.whole_files import read_records, replacing, write_json

_SECRET = re.compile(r"(^|[-_])(secret|token|password|passphrase|api[-_]key)$", re.IGNORECASE)
HIDDEN = "(not recorded)"
"""The text in `config.json` in place of a secret."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in a file. A notebook displays it."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


class RunDirectory:
    """The directory of one run. `create` makes it, `open` checks that it is one; the constructor touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.state = path / "state"
        """The saved states of the actors, one folder for each checkpoint. An `.unfinished` folder is incomplete."""
        self.traces = path / "traces"
        self.message_counts = path / "message_counts.json"
        self.curve = path / "curve.png"
        self.summary = path / "summary.json"
        self.join = path / "join.json"
        self.code = path / "code.zip"
        self.lock = path / "lock.json"
        self.replicas = path / "replicas.json"
        self.hosts = path / "hosts.json"

    @classmethod
    def create(cls, runs_dir: Path, experiment_name: str, seed: int, *, clock: Clock, name: str | None = None) -> Self:
        """Make the directory of a run that starts now. Two runs that start in the same second get one each.

        Args:
            runs_dir: the folder of all runs.
            experiment_name: the folder in it.
            seed: part of the name.
            clock: gives the time in the name.
            name: replaces time and seed.

        Raises:
            UsageError: the name cannot be that of a folder, or `runs_dir` is none.
            CannotWrite: `runs_dir` cannot be written to.
        """
        if not re.fullmatch(r"\w[\w.-]*", experiment_name):
            raise UsageError(f"an experiment's name becomes a folder, and {experiment_name!r} cannot be one")
        parent = runs_dir / experiment_name
        stem = name or f"{clock.now():%Y%m%d-%H%M%S}-seed{seed}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for count in itertools.count(1):
                run = cls(parent / (stem if count == 1 else f"{stem}-{count}"))
                with contextlib.suppress(*([FileExistsError] if name is None else [])):
                    run.path.mkdir()  # of two runs that try, one succeeds
                    break
            for folder in (run.checkpoints, run.logs, run.tensorboard, run.traces):
                folder.mkdir()
        except OSError as error:
            misused = isinstance(error, NotADirectoryError | FileExistsError)
            text = f"cannot make a run directory in {str(runs_dir)!r}: {error.strerror}"
            raise (UsageError if misused else CannotWrite)(text) from error
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the directory of an earlier run.

        Raises:
            UsageError: `path` is no run directory.
        """
        run = cls(path)
        if not path.exists():
            raise UsageError(f"there is no run directory {str(path)!r}")
        if not path.is_dir():
            raise UsageError(f"{str(path)!r} is a file, not a run directory")
        run.config()
        return run

    @classmethod
    def newest(cls, runs_dir: Path) -> Self:
        """Return the directory of the run in `runs_dir` that was started last.

        Raises:
            UsageError: there is no run.
        """
        configs = [(path.stat().st_mtime_ns, path) for path in runs_dir.glob("*/*/config.json")]
        if not configs:
            raise UsageError(f"there is no run in {str(runs_dir)!r}; name a run's directory, or --runs-dir")
        return cls.open(max(configs)[1].parent)

    def __repr__(self) -> str:
        return f"<RunDirectory {self.path}>"

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the records of `metrics`, in order; none if there is no such file.

        Raises:
            UsageError: a line of the file is no record.
        """
        try:
            return read_records(self.metrics)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise UsageError(str(error)) from error

    def newest_checkpoint(self) -> Path | None:
        """Return the checkpoint that was written last, or None if there is none."""
        found = self.checkpoints.glob("[!.]*")
        return max(found, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)

    def newest_state(self) -> Path:
        """Return the folder of the newest complete state.

        Raises:
            UsageError: no state was saved.
        """
        whole = [path for path in self.state.glob("*") if path.is_dir() and path.suffix != ".unfinished"]
        if not whole:
            raise UsageError(f"{str(self.path)!r} has saved nothing yet to go on from")
        return max(whole, key=lambda path: path.name)

    @property
    def resume_command(self) -> str | None:
        """The command that continues the run; None if the run has saved no state."""
        try:
            self.newest_state()
        except UsageError:
            return None
        return shlex.join(["orchestra", "run", "--resume", str(self.path)])

    def write_ending(self, state: str, reason: str | None) -> None:
        """Write into the summary how the run ended, beside the figures that the run itself has written there.

        Args:
            state: `done`, `interrupted`, `stopped` or `failed`.
            reason: of a failed run, the error; of an aborted one, `aborted`; else None.

        Raises:
            OSError: the file cannot be written.
        """
        resume = None if state == "done" else self.resume_command
        write_json(self.summary, self.ending() | {"state": state, "reason": reason, "resume": resume})

    def ending(self) -> dict[str, Any]:
        """Return the summary: how the run ended, and its figures; empty if it goes on, or was killed."""
        try:
            summary = json.loads(self.summary.read_bytes())
        except (OSError, ValueError):
            return {}
        return summary if isinstance(summary, dict) else {}

    def plot(self) -> Picture:
        """Return the learning curve as it was drawn last.

        Raises:
            UsageError: the run has drawn none.
        """
        if not self.curve.exists():
            raise UsageError(f"the run in {str(self.path)!r} has drawn no curve (yet); its metrics() have the figures")
        return Picture(self.curve)

    def write_code(self, bundle: Bundle) -> None:
        """Write the code of the run. A resumed run keeps that of its earlier parts under the names of their digests.

        Raises:
            CannotWrite: the file cannot be written.
        """
        try:
            if self.code.exists():
                earlier = Bundle.read(self.code.read_bytes())
                if earlier.digest == bundle.digest:
                    return
                self.code.replace(self.code.with_name(f"code-{earlier.digest[:16]}.zip"))
            with replacing(self.code) as file:
                file.write(bundle.data)
        except OSError as error:
            raise CannotWrite(f"cannot write {str(self.code)!r}: {error.strerror or error}") from error

    def read_code(self, digest: str) -> Bundle | None:
        """Return the code of this digest; None if the run has not kept it.

        Raises:
            UsageError: the file is damaged.
        """
        for path in (self.code.with_name(f"code-{digest[:16]}.zip"), self.code):
            if path.exists() and (found := Bundle.read(path.read_bytes())).digest == digest:
                return found
        return None

    def write_replicas(self, replicas: Mapping[str, Sequence[int]]) -> None:
        """Write, by group, how many replicas its experiment planned and how many there are now.

        Raises:
            OSError: the file cannot be written.
        """
        write_json(self.replicas, replicas)

    def read_replicas(self) -> dict[str, tuple[int, int]]:
        """Return what `write_replicas` wrote; nothing if the run was not scaled.

        Raises:
            UsageError: the file is damaged.
        """
        try:
            written = json.loads(self.replicas.read_bytes())
            return {str(name): (int(planned), int(now)) for name, (planned, now) in written.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"cannot read {str(self.replicas)!r}: {error}") from error

    def config(self) -> dict[str, Any]:
        """Return what `write_config` wrote.

        Raises:
            UsageError: there is no config, or it cannot be read.
        """
        try:
            config = json.loads(self.config_path.read_bytes())
        except FileNotFoundError as error:
            raise UsageError(f"{str(self.path)!r} is not a run directory: it has no config.json") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{str(self.path)!r}: cannot read its config.json: {error}") from error
        if not isinstance(config, dict):
            raise UsageError(f"{str(self.path)!r}: its config.json is no JSON object")
        return config

    def write_hosts(self, hosts: Sequence[HostShape], placement: Mapping[str, int]) -> None:
        """Write into the config the hosts that have come, and the slot of each node.

        Raises:
            UsageError: the config cannot be read.
            OSError: it cannot be written.
        """
        placed = {"hosts": [asdict(host) for host in hosts], "placement": dict(placement)}
        write_json(self.config_path, self.config() | placed)

    def write_config(
        self,
        *,
        experiment: Path | None,
        function: str = "experiment",
        flags: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        seed: int,
        argv: Sequence[str],
        clock: Clock,
        hosts: Sequence[HostShape] = (),
        placement: Mapping[str, int] | None = None,
    ) -> None:
        """Write what was started: enough to start it again, and to identify the code.

        Args:
            experiment: the experiment's file; None for one that stands in no file.
            function: the function of the file that was called.
            flags: the value of every parameter of the experiment.
            options: the value of every option of the run.
            seed: the seed of the whole run.
            argv: the command line, the program's name included.
            clock: gives the start time.
            hosts: of the run, for which its topology was built.
            placement: the slot of each node.
        """
        source = None
        if experiment is not None:
            source = {
                "file": str(experiment),
                "absolute": str(experiment.absolute()),
                "function": function,
                "sha256": hashlib.sha256(experiment.read_bytes()).hexdigest(),
            }
        write_json(
            self.config_path,
            {
                "experiment": source,
                "flags": {name: HIDDEN if value and _SECRET.search(name) else value for name, value in flags.items()},
                "options": dict(options or {}),
                "seed": seed,
                "hosts": [asdict(host) for host in hosts],
                "placement": dict(placement or {}),
                "command": without_secrets(argv),
                "started": clock.now().isoformat(),
                "git": None if experiment is None else git_state(experiment.absolute().parent),
                # From the installed packages' metadata: asking torch itself would import it into every process.
                "versions": {
                    "orchestra": _version("orchestra-rl"),
                    "python": platform.python_version(),
                    "numpy": _version("numpy"),
                    "torch": _version("torch"),
                },
                "platform": platform.platform(),
                "machine": platform.machine(),
                "host": platform.node(),
                "cpus": os.cpu_count(),
            },
        )


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the checkout `folder`, and whether tracked files differ from it; None outside a checkout."""
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # must not block a commit that is in progress
    try:
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10, env=environment)  # noqa: S603 (a fixed program, no shell)
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or no checkout
    lines = told.stdout.splitlines()
    commit = lines[0].removeprefix("# branch.oid ")
    changed = any(not line.startswith("#") for line in lines)
    return None if commit == "(initial)" else {"commit": commit, "dirty": changed}


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return a command line without the values of flags that are named after a secret."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        secret = flag.startswith("--") and _SECRET.search(flag) is not None
        shown.append(HIDDEN if hide_next else f"{flag}={HIDDEN}" if secret and equals else word)
        hide_next = secret and not equals
    return shown


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None  # run from a source tree, or without that library
