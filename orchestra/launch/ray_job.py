"""Submits a run to Ray as a job whose entry point becomes the head."""

import json
import math
import shlex
import subprocess
from pathlib import Path
from typing import Any

from orchestra.errors import UsageError
from orchestra.launch.engine import HeadJob, Settings
from orchestra.launch.protocol import Submission

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""The variable of a job that says how many seconds it has between SIGTERM and SIGKILL; 3 by default."""


class RaySubmitter:
    """Submits a job to Ray whose entry point becomes the head. Implements `Submitter`.

    Args:
        address: of the cluster's dashboard.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def submission(self, job: HeadJob) -> Submission:
        """Return the command `ray job submit`. The folder of the runs has the same path on the machine of the head."""
        settings = job.settings
        cores, gpus = settings.get("head_cores", 1), settings.get("head_gpus", 0)
        environment = runtime_env_of(settings) or {}
        variables = {STOP_WAIT: str(math.ceil(job.grace)), **environment.get("env_vars", {})}
        environment = {**environment, "env_vars": variables}
        runs = Path(job.folder).parent.absolute()
        if runs.is_relative_to(Path.cwd()) and runs != Path.cwd():  # else each job would send the runs before it
            environment["excludes"] = [*environment.get("excludes", ()), f"/{runs.relative_to(Path.cwd())}/"]
        words = [*job.words, "--runs-dir", str(runs)]
        if job.name is not None:
            words += ["--as", job.name]
        threads = f"OMP_NUM_THREADS={cores}"  # Ray sets it to 1 whatever the job asks for
        entry = ["env", threads, settings.get("python", "python"), "-m", "orchestra", "run", *words]
        command = [
            *("ray", "job", "submit", "--address", self._address, "--working-dir", "."),
            *("--entrypoint-num-cpus", str(cores), *(["--entrypoint-num-gpus", str(gpus)] if gpus else [])),
            *("--runtime-env-json", json.dumps(environment), *(["--no-wait"] if settings.get("detach") else [])),
        ]
        return Submission({}, ((*command, "--", *entry),))

    def submit(self, job: HeadJob, submission: Submission) -> int:
        """Submit the job, and show what it prints until it is over, or Ctrl-C."""
        (command,) = submission.commands
        print(shlex.join(command), flush=True)
        try:
            return subprocess.run(command, check=False).returncode  # noqa: S603 (a list, for no shell)
        except FileNotFoundError:
            raise UsageError("--launch ray: there is no command ray here: pip install 'orchestra-rl[ray]'") from None
        except KeyboardInterrupt:
            print("the job goes on, and is not followed any more", flush=True)
            return 0


def runtime_env_of(settings: Settings) -> dict[str, Any] | None:
    """Return what Ray is to prepare for the processes of the run, or None.

    Raises:
        UsageError: it is no JSON object.
    """
    text = settings.get("runtime_env_json")
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--runtime-env-json is no JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("env_vars", {}), dict):
        raise UsageError('--runtime-env-json must be an object, such as {"pip": ["orchestra-rl"]}')
    return found
