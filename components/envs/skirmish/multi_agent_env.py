"""SMAC's base class of environments, for code that checks for it or derives from it."""

from typing import Any


class MultiAgentEnv:
    """One environment of several agents, with SMAC's method names.

    An environment defines the methods that its users call. The others raise `NotImplementedError`.
    """

    n_agents: int
    episode_limit: int

    def reset(self) -> Any:
        """Start an episode; return the results of `get_obs` and `get_state`."""
        raise NotImplementedError

    def step(self, actions: Any) -> tuple[float, bool, dict[str, Any]]:
        """Make one step; return the reward, whether the episode ended, and further information."""
        raise NotImplementedError

    def get_obs(self) -> list[Any]:
        """Return one observation per agent."""
        raise NotImplementedError

    def get_obs_agent(self, agent_id: int) -> Any:
        """Return the observation of one agent."""
        raise NotImplementedError

    def get_obs_size(self) -> int:
        """Return the number of columns of an observation."""
        raise NotImplementedError

    def get_state(self) -> Any:
        """Return the global state, which only a critic sees."""
        raise NotImplementedError

    def get_state_size(self) -> int:
        """Return the number of columns of the state."""
        raise NotImplementedError

    def get_avail_actions(self) -> list[list[int]]:
        """Return, per agent, 1 for each action it may take and 0 for the others."""
        raise NotImplementedError

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        """Return 1 for each action the agent may take and 0 for the others."""
        raise NotImplementedError

    def get_total_actions(self) -> int:
        """Return the number of actions of an agent."""
        raise NotImplementedError

    def render(self, mode: str = "human") -> Any:
        """Draw the environment."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the environment's resources."""
        raise NotImplementedError

    def seed(self, seed: int | None = None) -> int:
        """Return the seed, or set it."""
        raise NotImplementedError

    def save_replay(self) -> None:
        """Save a replay of the episode."""
        raise NotImplementedError

    def get_env_info(self) -> dict[str, Any]:
        """Return the sizes that learning code reads."""
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.get_total_actions(),
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
        }
