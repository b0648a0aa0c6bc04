"""An evaluator plays what it is asked to, greedily, from the seed of the request and from nothing else."""

from functools import partial

import numpy as np
import pytest

from components.evaluator import EVALUATION_ENVS, Evaluator
from messages import ClaimRoleMsg, EvaluateMsg, EvaluationResultMsg
from orchestra import UsageError
from orchestra.actors.cell import ActorFailed

PLAN = ((2,), (3,))
UP = (ClaimRoleMsg, EvaluationResultMsg)


@pytest.fixture
def spawn(corridor, scripted):
    def start(scene, up, name="evaluator", **changed):
        factory = {"env": partial(corridor, plan=PLAN), "policy": scripted, "to": up.ref}
        return scene.node.spawn(name, Evaluator, **factory | changed)

    return start


def upstream(scene, rejection: str = ""):
    return scene.probe("up", *UP, answers={ClaimRoleMsg: rejection})


def request(episodes: int, *, seed: int = 0, version: int = 3, value: float = 0.0, **changed) -> EvaluateMsg:
    played = {"version": version, "params": np.full(2, value, np.float32), "env_steps": 0, "final": False, **changed}
    return EvaluateMsg(**played, episodes=episodes, seed=seed)


def test_it_claims_its_role_and_fails_if_another_has_it(run, stage, spawn) -> None:
    async def main(rejection: str) -> None:
        async with stage() as scene:
            up = upstream(scene, rejection)
            evaluator = spawn(scene, up)
            assert await up.hear(ClaimRoleMsg) == ClaimRoleMsg(role="evaluator", ref=evaluator)
            while not (cell := scene.node.cell(evaluator.address)).terminated.done():
                await scene.settle()
                scene.clock.advance(cell.kind.supervision.backoff_max)

    with pytest.RaisesGroup(ActorFailed) as caught:
        run(main("here/other is the Evaluator of this run"))
    cause = caught.value.exceptions[0].__cause__
    assert isinstance(cause, UsageError)
    assert str(cause) == "here/other is the Evaluator of this run"


def test_an_evaluation_is_greedy_and_plays_the_number_asked_for(run, stage, spawn, corridor, scripted) -> None:
    async def main() -> None:
        policies, envs = [], []

        def policy(spec, *, seed):
            policies.append(scripted(spec, seed=seed))
            return policies[-1]

        def env(n_envs, *, seed):
            envs.append(corridor(n_envs, seed=seed, plan=PLAN))
            return envs[-1]

        async with stage() as scene:
            up = upstream(scene)
            evaluator = spawn(scene, up, policy=policy, env=env)
            await evaluator.tell(request(50, env_steps=1234, final=True))
            played = await up.hear(EvaluationResultMsg)
            assert (played.version, played.env_steps, played.episodes, played.final) == (3, 1234, 50, True)
            assert played.mean_length == 2.5
            assert 0.0 <= played.win_rate <= 1.0
            assert set(policies[0].epsilons) == {0.0}
            assert (envs[0].n_envs, envs[0].closed) == (EVALUATION_ENVS, True)
            await evaluator.tell(request(1))
            played = await up.hear(EvaluationResultMsg, 2)
            assert (played.mean_length, played.episodes, envs[1].n_envs) == (2.0, 1, 1)

    run(main())


def test_the_seed_of_the_request_decides_every_random_number(run, stage, spawn, corridor, scripted) -> None:
    """An evaluation that the next incarnation plays again is the same, and no other one is."""

    async def drawn(*seeds: int, run_seed: int) -> list[tuple[int, int]]:
        numbers = []

        def env(n_envs, *, seed):
            numbers.append([seed])
            return corridor(n_envs, seed=seed, plan=PLAN)

        class Drawing(scripted):
            def act(self, *arguments, rng, **named):
                numbers[-1].append(int(rng.integers(1 << 62)))
                return super().act(*arguments, rng=rng, **named)

        async with stage(seed=run_seed) as scene:
            up = upstream(scene)
            evaluator = spawn(scene, up, env=env, policy=Drawing)
            for seed in seeds:
                await evaluator.tell(request(1, seed=seed))
            await up.hear(EvaluationResultMsg, len(seeds))
        return [tuple(each) for each in numbers]

    async def main() -> None:
        first = await drawn(5, 6, 7, run_seed=1)
        assert len({number for each in first for number in each}) == sum(map(len, first)) >= 9
        assert await drawn(7, 5, run_seed=2) == [first[2], first[0]]

    run(main())


def test_the_parameters_of_the_request_are_the_ones_that_play(run, stage, spawn, scripted) -> None:
    async def main() -> None:
        made = []

        class Noted(scripted):
            def act(self, *arguments, **named):
                self.acted = self.flat.tolist()
                return super().act(*arguments, **named)

        def policy(spec, *, seed):
            made.append(Noted(spec, seed=seed))
            return made[-1]

        async with stage() as scene:
            up = upstream(scene)
            evaluator = spawn(scene, up, policy=policy)
            await evaluator.tell(request(1, version=5, value=5.0))
            await evaluator.tell(request(1, version=6, value=6.0))
            await up.hear(EvaluationResultMsg, 2)
            assert [message.version for message in up.of(EvaluationResultMsg)] == [5, 6]
            assert [policy.acted for policy in made] == [[5.0] * 2, [6.0] * 2]

    run(main())
