"""Policy checkpoints (`.pt`), loaded with weights only and never unpickled.

A checkpoint holds the parameters that acting needs and, but for the best evaluated ones, all that learning needs.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.run_state import checkpoint_name
from components.policies.acting import ActingPolicy
from components.policies.base import Policy
from orchestra import UsageError, replacing

FORMAT = 1
BEST = "best.pt"
"""Name of the checkpoint of the best evaluated parameters."""


def save_checkpoint(path: Path, policy: Policy, version: int, env_steps: int) -> None:
    """Write everything that learning and acting need; a reader finds either no file or the whole one.

    Raises:
        OSError: the file cannot be written.
    """
    acting = as_tensors(policy.params())
    _save(path, {"policy": policy.state_dict(), "params": acting, "version": version, "env_steps": env_steps})


def save_params(path: Path, params: NDArray[np.float32], version: int, env_steps: int) -> None:
    """Write parameters of acting, from `ActingPolicy.params`; a reader finds either no file or the whole one.

    Raises:
        OSError: the file cannot be written.
    """
    _save(path, {"params": as_tensors(params), "version": version, "env_steps": env_steps})


def _save(path: Path, saved: dict[str, Any]) -> None:
    import torch  # slow to import, and planning a run does without

    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()  # torch's own writer hides the error of a full disk
    torch.save({"format": FORMAT, **saved}, content)
    with replacing(path) as file:
        file.write(content.getbuffer())


def load_checkpoint(path: Path, policy: ActingPolicy) -> dict[str, Any]:
    """Load a policy checkpoint into `policy`; return its `version` and `env_steps`.

    A policy that loaded only parameters of acting can act, but cannot continue the learning that produced them.

    Raises:
        UsageError: the file is missing, no checkpoint, damaged, of another format, or of another policy.
    """
    import torch  # slow to import, and planning a run does without

    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UsageError(f"there is no checkpoint {str(path)!r}") from error
    except Exception as error:
        # A damaged file may raise any error of torch's parser: RuntimeError, EOFError, UnpicklingError, …
        raise UsageError(f"{str(path)!r} is no checkpoint, or damaged ({type(error).__name__})") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        found = saved.get("format") if isinstance(saved, dict) else type(saved).__name__
        raise UsageError(f"{str(path)!r} is a checkpoint of format {found!r}; this version reads format {FORMAT}")
    learner = policy if isinstance(policy, Policy) and ("policy" in saved or "params" not in saved) else None
    content = "params" if learner is None else "policy"
    if content not in saved and "policy" in saved:
        raise UsageError(
            f"{str(path)!r} holds no parameters of acting: an earlier version wrote it; resume its run to write another"
        )
    for name in (content, "version", "env_steps"):
        if name not in saved:
            raise UsageError(f"{str(path)!r} is no checkpoint, or damaged (it lacks {name!r})")
    try:
        if learner is not None:
            learner.load_state_dict(saved["policy"])
        else:
            policy.load(as_arrays(saved["params"]))
    except (ValueError, KeyError) as error:
        raise UsageError(f"{str(path)!r} belongs to another policy: {error}") from error
    return {"version": saved["version"], "env_steps": saved["env_steps"]}


def newest_checkpoint(folder: Path) -> Path:
    """Return the policy checkpoint with the most environment steps.

    Raises:
        UsageError: there is none.
    """
    found = sorted(folder.glob("steps-*.pt"))
    if not found:
        raise UsageError(f"there is no checkpoint in {str(folder)!r}")
    return found[-1]


def find_checkpoint(folder: Path, which: str) -> Path:
    """Return the policy checkpoint that `which` names: `last`, `best`, its number of environment steps, or a file.

    Raises:
        UsageError: there is no such checkpoint.
    """
    if which == "last":
        return newest_checkpoint(folder)
    if which == "best":
        path, otherwise = (
            folder / BEST,
            "no evaluation was saved; name last, or the steps of another",
        )
    elif which.isdecimal():
        steps = [str(int(path.stem.removeprefix("steps-"))) for path in sorted(folder.glob("steps-[0-9]*.pt"))]
        path, otherwise = folder / f"{checkpoint_name(int(which))}.pt", f"there are steps {', '.join(steps) or 'none'}"
    else:
        path, otherwise = Path(which), "expected last, best, the environment steps of a checkpoint, or a file"
    if not path.exists():
        raise UsageError(f"there is no checkpoint {str(path)!r}: {otherwise}")
    return path


def as_arrays(state: Any) -> Any:
    """Return a `Policy.state_dict` with NumPy arrays for tensors; arrays share the tensors' memory where they can."""
    import torch  # slow to import, and planning a run does without

    return _converted(state, torch.Tensor, lambda tensor: tensor.numpy(force=True))


def as_tensors(state: Any) -> Any:
    """Undo `as_arrays`: each array, which may be read-only, becomes a tensor with memory of its own."""
    import torch  # slow to import, and planning a run does without

    return _converted(state, np.ndarray, lambda array: torch.from_numpy(array.copy()))


def _converted(state: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Return nested dicts with every value of a kind converted."""
    if isinstance(state, dict):
        return {name: _converted(value, kind, convert) for name, value in state.items()}
    return convert(state) if isinstance(state, kind) else state
