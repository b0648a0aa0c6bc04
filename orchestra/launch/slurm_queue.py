"""Submits a run to SLURM as a job whose script becomes the head, and shows its progress."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestra.errors import OrchestraError, UsageError
from orchestra.launch.engine import HeadJob
from orchestra.launch.protocol import Submission
from orchestra.launch.slurm_job import HOPELESS, JobState, asked
from orchestra.launch.slurm_script import SlurmConfig, job_script, sweep_of

SCRIPT = "job.sbatch"
ASK_S = 5.0
"""Seconds between two questions about a job."""


class SlurmSubmitter:
    """Submits a job whose script becomes the head. Implements `Submitter`."""

    def submission(self, job: HeadJob) -> Submission:
        """Return the script, which is the input of sbatch.

        Raises:
            UsageError: a setting is not allowed.
        """
        config = config_of(job)
        sweep, parallel = sweep_of(job.settings.get("sweep", ())), job.settings.get("sweep_parallel", 0)
        if sweep and job.resumes:
            raise UsageError("--sweep: a run that is resumed is one run")
        for words in sweep:
            job.check(words)
        return Submission({SCRIPT: job_script(config, job, sweep, parallel)}, (("sbatch", "--parsable"),))

    def submit(self, job: HeadJob, submission: Submission) -> int:
        """Submit the job, and show what becomes of it until it is over, or Ctrl-C."""
        script, sweep = submission.files[SCRIPT], bool(job.settings.get("sweep"))
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)  # sbatch makes no folder for the job's output
        try:
            number = asked(*submission.commands[0], text=script).strip().partition(";")[0]
        except UsageError:
            raise
        except OrchestraError as error:
            raise UsageError(f"--launch slurm: sbatch does not take the job: {error}") from None
        (folder / f"slurm-{number}.sbatch").write_text(script)
        output = None if sweep else folder / f"slurm-{number}.log"
        shown = folder / f"slurm-{number}-*.log" if output is None else output
        _say(f"job {number}: submitted; its output is in {shown}")
        _say(f"look at it: srun --jobid={number} --overlap --pty orchestra top; end it: scancel {number}")
        if job.settings.get("detach"):
            return 0
        try:
            return follow(number, output, _say)
        except KeyboardInterrupt:
            _say(f"job {number}: it goes on, and is not followed any more")
            return 0


def _say(text: str) -> None:
    print(text, flush=True)


def config_of(job: HeadJob) -> SlurmConfig:
    """Return what a run asks of SLURM.

    Raises:
        UsageError: a setting is not allowed.
    """
    name, nodes = f"orchestra-{job.experiment}", 1 + len(job.hosts.hosts)
    return SlurmConfig.of(job.settings, job_name=name, nodes=nodes, grace=job.grace)


class Following:
    """Turns the answers of SLURM about a submitted job into lines to show.

    Args:
        job: its number.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._said = ""

    def heard(self, text: str) -> str:
        """Return the line that says what is new in the answer of `squeue -h -o '%T %r'`; empty if nothing is."""
        counts = Counter(line.strip() for line in text.splitlines() if line.strip())
        said = ", ".join(
            f"{count} {_state(line)}" if len(counts) > 1 or count > 1 else _state(line)
            for line, count in counts.items()
        )
        if said == self._said:
            return ""
        self._said = said
        hopeless = any(line.partition(" ")[2] in HOPELESS for line in counts)
        end = f": will never start; scancel {self._job} removes it" if hopeless else ""
        return f"job {self._job}: {said}{end}" if said else ""


def _state(line: str) -> str:
    state, _, reason = line.partition(" ")
    return f"{state} ({reason})" if reason not in ("", "None") else state


def follow(
    job: str,
    log: Path | None,
    say: Callable[[str], None],
    *,
    ask: Callable[..., str] = asked,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Show what becomes of a job until it is over; return its exit code.

    Args:
        job: its number.
        log: its output, which is shown as well; None for none.
        say: shows a line.
        ask: carries out a command of SLURM.
        pause: waits for a number of seconds.
    """
    following, shown = Following(job), 0
    while True:
        try:
            answer = ask("squeue", "-h", "-j", job, "-o", "%T %r")
        except UsageError:
            raise
        except OrchestraError as error:
            if "Invalid job id" not in str(error):
                say(f"job {job}: SLURM does not answer: {error}")
                pause(ASK_S)
                continue
            answer = ""
        if line := following.heard(answer):
            say(line)
        if log is not None:
            shown = _show(log, shown)
        if not answer.strip():
            break
        pause(ASK_S)
    return _conclude(job, say, ask)


def _show(log: Path, shown: int) -> int:
    """Print what was added to a file behind its first `shown` bytes; return how many bytes were printed in all."""
    try:
        with log.open("rb") as file:
            file.seek(shown)
            added = file.read()
    except OSError:
        return shown
    sys.stdout.write(added.decode(errors="replace"))
    sys.stdout.flush()
    return shown + len(added)


def _conclude(job: str, say: Callable[[str], None], ask: Callable[..., str]) -> int:
    try:
        states = [
            JobState.parse(line) for line in ask("scontrol", "show", "job", job, "-o").splitlines() if line.strip()
        ]
    except OrchestraError as error:
        say(f"job {job}: over; how is not known: {error}")
        return 1
    for state, count in Counter((each.state, each.code) for each in states).items():
        many = f"{count} jobs " if len(states) > 1 else ""
        say(f"job {job}: {many}{state[0]}, exit code {state[1]}")
    failed: Sequence[JobState] = [each for each in states if each.state != "COMPLETED"]
    return next((each.code for each in failed if each.code), 1 if failed else 0)
