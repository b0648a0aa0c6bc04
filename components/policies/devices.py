"""Where learning happens: on the CPU, or on a GPU that is asked for by name."""

import os
import re
from typing import TYPE_CHECKING

from orchestra import UsageError

if TYPE_CHECKING:
    import torch


def require(device: str) -> None:
    """See that `device` is "cpu", "cuda" or "cuda:N", and is there.

    Raises:
        UsageError: it is something else, or not there.
    """
    named = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if named is None:
        raise UsageError(f"device {device!r} is not allowed: it must be cpu, cuda or cuda:N")
    if device == "cpu":
        return
    import torch  # slow to import, and planning a run on a CPU does without

    n_there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(named[1] or 0) < n_there:
        return
    if n_there:
        found = f"torch {torch.__version__} finds {', '.join(f'cuda:{n}' for n in range(n_there))}"
    elif torch.version.cuda is not None:
        found = f"torch {torch.__version__} finds no GPU"
    else:
        found = f"torch {torch.__version__} is built without CUDA"
    raise UsageError(f"device {device!r} is not there: {found}")


def opened(device: str) -> "torch.device":
    """Return a device on which the same seed gives the same numbers again.

    On a GPU that holds for the whole process: cuBLAS and cuDNN are given a workspace that does not depend on what else
    runs, and operations that add up in no certain order are replaced by those that do.
    """
    import torch

    found = torch.device(device)
    if found.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return found
