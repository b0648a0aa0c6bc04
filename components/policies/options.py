"""Options of the learning algorithms: their defaults and their ranges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch

from components.envs.skirmish.compiling import COMPILED
from components.policies.acting import HIDDEN_SIZE
from components.policies.initial import InitKind
from components.policies.optimizer import OptimizerKind

KernelKind = Literal["auto", "numba", "torch"]
"""Implementation of a gradient step: on a CPU loops that numba compiles, or operations of torch."""


class RecurrentOptions(TypedDict, total=False):
    """The keywords of every algorithm, as types; `Options` has their defaults."""

    hidden_size: int
    init: InitKind
    learning_rate: float
    optimizer: OptimizerKind
    gamma: float
    td_lambda: float
    target_update_interval: int
    grad_norm_clip: float
    priority_eta: float
    seed: int
    device: str
    dtype: torch.dtype
    kernels: KernelKind


class LearningOptions(RecurrentOptions, total=False):
    """The keywords of `Iql`, for algorithms that add their own."""

    double_q: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keywords of every algorithm.

    Raises:
        ValueError: a keyword is out of its range.
    """

    hidden_size: int = HIDDEN_SIZE
    """Units of the agents' GRU and of the layer before it; 64 in PyMARL."""
    init: InitKind = "uniform"
    """Initial parameters: "uniform", as torch has it, or "orthogonal" (Saxe et al. 2014)."""
    learning_rate: float = 5e-4
    """Learning rate of the acting network; 5e-4 in Rashid et al. (2018), with RMSProp."""
    optimizer: OptimizerKind = "rmsprop"
    """"rmsprop" with alpha 0.99 and ε 1e-5 (Rashid et al. 2018), or "adam" with ε 1e-5 (Hu et al. 2021)."""
    gamma: float = 0.99
    """Discount."""
    td_lambda: float = 0.0
    """λ of the targets; 0 in Rashid et al. (2018), 0.6 in Hu et al. (2021), 0.8 for COMA in PyMARL."""
    target_update_interval: int = 200
    """Gradient steps between copies of the online networks to the targets; PyMARL makes one step per episode."""
    grad_norm_clip: float = 10.0
    """Largest norm of a gradient; 10 in PyMARL."""
    priority_eta: float = 0.9
    """η of an episode's priority η max|δ| + (1 - η) mean|δ| (R2D2, Kapturowski et al. 2019)."""
    seed: int = 0
    """Seed of the initial parameters; torch's global generator is neither read nor advanced."""
    device: str = "cpu"
    """Device of learning and acting: "cpu", "cuda" or "cuda:N". Two runs are equal bit for bit on one device,
    with any number of threads."""
    dtype: torch.dtype = torch.float32
    """Dtype of all parameters; float64 is for tests. `params`, hidden states and priorities are always float32."""
    kernels: KernelKind = "auto"
    """"numba" for the compiled loops, "torch" for plain operations of torch, the reference. "auto" is "numba", but
    "torch" under `NUMBA_DISABLE_JIT=1`. Both agree to 1e-9 in float64 and to 1e-5 in float32, relative to the largest
    number of an array. On a GPU "auto" is CUDA graphs of operations of torch if the algorithm has them, and "numba"
    is refused."""

    def __post_init__(self) -> None:
        check_options(
            {
                "hidden_size": (self.hidden_size, self.hidden_size >= 1, "at least 1"),
                "init": (self.init, self.init in ("uniform", "orthogonal"), "'uniform' or 'orthogonal'"),
                "learning_rate": (self.learning_rate, self.learning_rate > 0, "above 0"),
                "optimizer": (self.optimizer, self.optimizer in ("rmsprop", "adam"), "'rmsprop' or 'adam'"),
                "gamma": (self.gamma, 0 <= self.gamma <= 1, "in [0, 1]"),
                "td_lambda": (self.td_lambda, 0 <= self.td_lambda <= 1, "in [0, 1]"),
                "target_update_interval": (self.target_update_interval, self.target_update_interval >= 1, "at least 1"),
                "grad_norm_clip": (self.grad_norm_clip, self.grad_norm_clip > 0, "above 0"),
                "priority_eta": (self.priority_eta, 0 <= self.priority_eta <= 1, "in [0, 1]"),
                "kernels": (self.kernels, self.kernels in ("auto", "numba", "torch"), "'auto', 'numba' or 'torch'"),
            }
        )
        if self.kernels == "numba" and self.device != "cpu":
            raise ValueError(f"kernels must be 'auto' or 'torch' on {self.device}: the compiled loops are for the CPU")

    @property
    def compiled(self) -> bool:
        """True if compiled loops gather batches and, on a CPU, compute."""
        return self.kernels == "numba" or (self.kernels == "auto" and COMPILED)


def check_options(options: Mapping[str, tuple[object, bool, str]]) -> None:
    """Raise `ValueError` for the first option that is out of range.

    Args:
        options: by name the value, whether it is allowed, and the allowed range in words.
    """
    for name, (value, fits, expected) in options.items():
        if not fits:
            raise ValueError(f"{name} must be {expected}, got {value!r}")
