"""PPO in one file with a training loop of its own, in the style of CleanRL. Three lines make it run on many nodes.

python docs/examples/cleanrl_ppo.py --env CartPole-v1 --steps 500000
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor, nn

SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}
Arrays = dict[str, NDArray[Any]]


def layers(n_in: int, n_out: int, gain: float) -> nn.Sequential:
    """Return two hidden layers of 64 units and an output layer whose weights have this gain."""
    linear = [nn.Linear(n_in, 64), nn.Linear(64, 64), nn.Linear(64, n_out)]
    for each, its_gain in zip(linear, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(each.weight, its_gain)
        nn.init.zeros_(each.bias)
    return nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class Agent(nn.Module):
    """A network for the policy and one for the value; actions are discrete or continuous."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        n_obs, space = int(np.prod(envs.single_observation_space.shape)), envs.single_action_space
        self.discrete = isinstance(space, gym.spaces.Discrete)
        n_out = int(space.n) if self.discrete else int(np.prod(space.shape))
        self.actor, self.critic = layers(n_obs, n_out, 0.01), layers(n_obs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(n_out))

    def policy(self, obs: Tensor) -> torch.distributions.Distribution:
        said = self.actor(obs)
        if self.discrete:
            return torch.distributions.Categorical(logits=said)
        return torch.distributions.Independent(torch.distributions.Normal(said, self.log_std.exp()), 1)

    def value(self, obs: Tensor) -> Tensor:
        values: Tensor = self.critic(obs)[:, 0]
        return values

    def act(self, obs: NDArray[Any]) -> tuple[NDArray[Any], Arrays]:
        """Return actions and their log-probabilities."""
        with torch.no_grad():
            policy = self.policy(torch.as_tensor(obs, dtype=torch.float32))
            action = policy.sample()
            return action.numpy(), {"log_prob": policy.log_prob(action).numpy()}

    def distribution(self, obs: NDArray[Any]) -> dict[str, Tensor]:
        """Return the parameters of the policy's distribution, by which two versions of it are compared."""
        with torch.no_grad():
            said = self.actor(torch.as_tensor(obs, dtype=torch.float32))
            return {"logits": said} if self.discrete else {"mean": said, "log_std": self.log_std.expand_as(said)}


def bounded(envs: Any, action: NDArray[Any]) -> NDArray[Any]:
    """Return actions within the bounds of a continuous space."""
    space = envs.single_action_space
    return np.clip(action, space.low, space.high) if isinstance(space, gym.spaces.Box) else action


def successors(after: NDArray[Any], info: dict[str, Any]) -> NDArray[Any]:
    """Return the observations that the steps arrived at, before any reset."""
    arrived = after.copy()
    for index in np.flatnonzero(info.get("_final_obs", [])):
        arrived[index] = info["final_obs"][index]
    return arrived


def advantages(rollout: Arrays, gamma: float, gae_lambda: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return advantages and targets of values (T, N) by V-trace, which is GAE where the present policy has acted.

    The value after a truncated episode counts; after a terminated episode there is none. `weight` is the probability of
    the action now, divided by that when it was taken, and at most 1.
    """
    error = rollout["reward"] + gamma * rollout["next_value"] * ~rollout["terminated"] - rollout["value"]
    advantage, correction = np.zeros_like(error), np.zeros_like(error)
    ahead = np.zeros_like(error[0])
    for t in reversed(range(len(error))):
        advantage[t] = error[t] + gamma * gae_lambda * ~rollout["over"][t] * ahead
        ahead = correction[t] = rollout["weight"][t] * advantage[t]
    return advantage, rollout["value"] + correction


def judged(agent: Agent, rollout: Arrays) -> Arrays:
    """Return the rollout with values and log-probabilities of the present agent; nodes may have used older ones."""
    obs, after = (torch.as_tensor(rollout[name], dtype=torch.float32) for name in ("obs", "after"))
    shape = rollout["reward"].shape
    with torch.no_grad():
        policy = agent.policy(obs.flatten(0, 1))
        now = policy.log_prob(torch.as_tensor(rollout["action"]).flatten(0, 1)).view(shape).numpy()
        value, next_value = (agent.value(each.flatten(0, 1)).view(shape).numpy() for each in (obs, after))
    weight = np.exp(np.minimum(now - rollout["log_prob"], 0.0))
    return {**rollout, "now": now, "weight": weight, "value": value, "next_value": next_value}


def learn(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Arrays, args: argparse.Namespace) -> None:
    """Make the epochs of one update. The ratio is to the policy before the update, which may not be the one that acted.

    As in decoupled PPO (Hilton, Cobbe and Schulman 2022), the clip bounds the step, and `weight` corrects for actions
    of an older policy. If the present policy has acted, this is PPO.
    """
    rollout = judged(agent, rollout)
    advantage, target = advantages(rollout, args.gamma, args.gae_lambda)
    arrays = {**rollout, "advantage": advantage, "target": target}
    data = {
        name: torch.as_tensor(array.reshape(-1, *array.shape[2:]))
        for name, array in arrays.items()
        if name in ("obs", "action", "now", "weight", "advantage", "target")
    }
    n = len(data["advantage"])
    for _ in range(args.epochs):
        for chosen in torch.randperm(n).chunk(args.minibatches):
            part = {name: each[chosen] for name, each in data.items()}
            obs, gain = part["obs"].float(), part["advantage"].float()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy = agent.policy(obs)
            ratio = (policy.log_prob(part["action"]) - part["now"]).exp()
            clipped = ratio.clamp(1.0 - args.clip, 1.0 + args.clip)
            policy_loss = -(part["weight"] * torch.min(ratio * gain, clipped * gain)).mean()
            value_loss = 0.5 * (agent.value(obs) - part["target"].float()).square().mean()
            loss = policy_loss + 0.5 * value_loss - args.entropy * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def train(args: argparse.Namespace) -> list[float]:
    """Train an agent; return the returns of all episodes that ended."""
    torch.manual_seed(args.seed)
    envs = gym.make_vec(args.env, num_envs=args.num_envs, vectorization_mode="sync", vector_kwargs=SAME_STEP)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    obs, _ = envs.reset(seed=args.seed)
    returns: list[float] = []
    running = np.zeros(envs.num_envs)
    updates = max(1, args.steps // (args.num_steps * envs.num_envs))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - update / updates)
        steps: list[Arrays] = []
        for _ in range(args.num_steps):
            action, said = agent.act(obs)
            after, reward, terminated, truncated, info = envs.step(bounded(envs, action))
            over = terminated | truncated
            made = {"obs": obs, "action": action, "reward": reward, "terminated": terminated, "over": over}
            steps.append({**made, "after": successors(after, info), **said})
            obs, running = after, running + reward
            returns += running[over].tolist()
            running[over] = 0.0
        learn(agent, optimizer, {name: np.stack([step[name] for step in steps]) for name in steps[0]}, args)
        print(f"update {update + 1} of {updates}: return {np.mean(returns[-100:]) if returns else np.nan:.1f}")
    envs.close()
    return returns


def main() -> None:
    """Train as the flags say."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--env", default="CartPole-v1")
    flags.add_argument("--seed", type=int, default=1)
    numbers = {"steps": 500_000, "num-envs": 8, "num-steps": 128, "minibatches": 4, "epochs": 4, "nodes": 2}
    rates = {"learning-rate": 2.5e-4, "gamma": 0.99, "gae-lambda": 0.95, "clip": 0.2, "entropy": 0.01, "kl": 0.01}
    for name, number in {**numbers, **rates}.items():
        flags.add_argument(f"--{name}", type=type(number), default=number)
    train(flags.parse_args())


if __name__ == "__main__":
    main()
