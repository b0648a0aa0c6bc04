"""Policy checkpoints (`.pt`): all that learning needs of a policy, loaded with weights only and never unpickled."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from components.policies.base import Policy
from orchestra import UsageError

FORMAT = 1


def save_checkpoint(path: Path, policy: Policy, version: int, env_steps: int) -> None:
    """Write a policy checkpoint; a reader finds either no file or the whole one.

    Raises:
        OSError: the file cannot be written.
    """
    import torch  # slow to import, and planning a run does without

    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".unfinished")
    torch.save({"format": FORMAT, "policy": policy.state_dict(), "version": version, "env_steps": env_steps}, staged)
    os.replace(staged, path)


def load_checkpoint(path: Path, policy: Policy) -> dict[str, Any]:
    """Load a policy checkpoint into `policy`; return its `version` and `env_steps`.

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
    for name in ("policy", "version", "env_steps"):
        if name not in saved:
            raise UsageError(f"{str(path)!r} is no checkpoint, or damaged (it lacks {name!r})")
    try:
        policy.load_state_dict(saved["policy"])
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


def as_arrays(state: Any) -> Any:
    """Return a `Policy.state_dict` with NumPy arrays for tensors; arrays share the tensors' memory where they can."""
    import torch  # slow to import, and planning a run does without

    return _converted(state, torch.Tensor, lambda tensor: tensor.numpy(force=True))


def as_tensors(state: Any) -> Any:
    """Return the argument of `as_arrays`; each array, which may be read-only, becomes a tensor of its own memory."""
    import torch  # slow to import, and planning a run does without

    return _converted(state, np.ndarray, lambda array: torch.from_numpy(array.copy()))


def _converted(state: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Return nested dicts with every value of a kind converted."""
    if isinstance(state, dict):
        return {name: _converted(value, kind, convert) for name, value in state.items()}
    return convert(state) if isinstance(state, kind) else state
