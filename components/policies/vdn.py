"""Value-decomposition networks (Sunehag et al. 2018): the team's value is the sum of the agents'."""

from torch import Tensor, nn

from components.policies import kernel
from components.policies.iql import Iql


class Summed(nn.Module):
    """The sum of the agents' values: (N, A) to (N, 1); the state is not used."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        return q.sum(1, keepdim=True)


class Vdn(Iql):
    """`Iql` in which the sum of the agents' values learns from the team's reward (Eq. 1). Takes the same keywords."""

    def _make_mixer(self) -> nn.Module:
        return Summed()

    def _mixing(self) -> int | None:
        return kernel.SUMMED if type(self.mixer) is Summed else None
