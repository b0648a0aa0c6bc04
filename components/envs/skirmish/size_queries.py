"""The queries of SMAC's class for the sizes of observations, states and actions."""

from collections.abc import Sequence

from .battles import Battles
from .options import Features
from .scenarios import Scenario


class SizeQueries:
    """The sizes of one battle, with the names of `smac.env.StarCraft2Env`."""

    n_actions: int
    skirmish: Battles
    ally_state_attr_names: list[str]
    enemy_state_attr_names: list[str]
    shield_bits_ally: int
    shield_bits_enemy: int
    unit_type_bits: int
    _features: Features
    _scenario: Scenario

    def get_obs_size(self) -> int:
        """Return the number of columns of an observation, O."""
        return self.skirmish.obs_size

    def get_state_size(self) -> int:
        """Return the number of columns of the state, S."""
        return self.skirmish.state_size

    def get_total_actions(self) -> int:
        """Return the number of actions of an agent, U."""
        return self.n_actions

    def get_obs_move_feats_size(self) -> int:
        """Return the number of columns about the ground around an agent."""
        return self._features.move_size()

    def get_obs_enemy_feats_size(self) -> tuple[int, int]:
        """Return the number of enemies, and of columns about each."""
        return self._features.enemy_shape(self._scenario)

    def get_obs_ally_feats_size(self) -> tuple[int, int]:
        """Return the number of an agent's friends, and of columns about each."""
        return self._features.ally_shape(self._scenario)

    def get_obs_own_feats_size(self) -> int:
        """Return the number of columns about the agent itself."""
        return self._features.own_size(self._scenario)

    def get_ally_num_attributes(self) -> int:
        """Return the number of columns of an ally's row of the state."""
        return len(self.ally_state_attr_names)

    def get_enemy_num_attributes(self) -> int:
        """Return the number of columns of an enemy's row of the state."""
        return len(self.enemy_state_attr_names)

    def _ally_state_names(self) -> list[str]:
        own = [*self._scenario.capabilities, *["fov_x", "fov_y"] * (self._scenario.looks > 0)]
        return ["health", "energy/cooldown", "rel_x", "rel_y", *self._late_names(self.shield_bits_ally, own)]

    def _enemy_state_names(self) -> list[str]:
        return ["health", "rel_x", "rel_y", *self._late_names(self.shield_bits_enemy)]

    def _late_names(self, shield_bits: int, own: Sequence[str] = ()) -> list[str]:
        return ["shield"] * shield_bits + [*own] + [f"type_{k}" for k in range(self.unit_type_bits)]
