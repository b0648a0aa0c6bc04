"""The device of learning: the CPU, or a GPU chosen by name."""

import os
import re
from typing import TYPE_CHECKING

from orchestra import UsageError

if TYPE_CHECKING:
    import torch


def gpus_of(device: str) -> int:
    """Return the number of GPUs that a host must have for `device`; 0 for the CPU.

    Raises:
        UsageError: `device` is not "cpu", "cuda" or "cuda:N".
    """
    named = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if named is None:
        raise UsageError(f"device {device!r} is not allowed: it must be cpu, cuda or cuda:N")
    return 0 if device == "cpu" else int(named[1] or 0) + 1


def require(device: str) -> None:
    """Check that `device` is "cpu", "cuda" or "cuda:N", and is available.

    Raises:
        UsageError: it is another word, or the device is missing.
    """
    n_needed = gpus_of(device)
    if n_needed == 0:
        return
    import torch  # slow to import, and planning a run on a CPU does without

    n_there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if n_needed <= n_there:
        return
    if n_there:
        found = f"torch {torch.__version__} finds {', '.join(f'cuda:{n}' for n in range(n_there))}"
    elif torch.version.cuda is not None:
        found = f"torch {torch.__version__} finds no GPU"
    else:
        found = f"torch {torch.__version__} is built without CUDA"
    raise UsageError(f"device {device!r} is not available: {found}")


def advice() -> str | None:
    """Return a hint if torch has libraries for GPUs and this machine has no GPU, else None."""
    import torch

    if torch.version.cuda is None or torch.cuda.is_available():
        return None
    return (
        f"torch {torch.__version__} holds the libraries of CUDA {torch.version.cuda}, gigabytes that this machine "
        "without a GPU does not use: its CPU build learns at the same speed"
    )


def opened(device: str) -> "torch.device":
    """Return a device on which the same seed gives the same numbers.

    On a GPU this changes the whole process: cuBLAS and cuDNN get workspaces of a fixed size, and operations that sum in
    an undefined order are replaced by deterministic ones. Products of GRUs use full float32, not TF32.
    """
    import torch

    found = torch.device(device)
    if found.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # No code here reads memory that it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # torch's
        torch.backends.cudnn.allow_tf32 = False
    return found
