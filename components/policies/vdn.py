"""Value-decomposition networks (Sunehag et al. 2018): the team's value is the sum of the agents'."""

from torch import Tensor, nn

from components.policies import kernel
from components.policies.iql import Iql


class Summed(nn.Module):
    """(N, A) values become (N, 1); the state is not looked at."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        return q.sum(1, keepdim=True)


class Vdn(Iql):
    """`Iql` whose agents together are regressed on the team's reward (Eq. 1 of the paper). Takes the same keywords."""

    def _make_mixer(self) -> nn.Module:
        return Summed()

    def _mixing(self) -> int | None:
        return kernel.SUMMED if type(self.mixer) is Summed else None
