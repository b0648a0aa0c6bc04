"""Experience of on-policy learners: how old it may be, whether it is the policy's own, who may ignore it, its size."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from team_experience import team_batch

from components.envs import Skirmish
from components.envs.base import EnvSpec
from components.experience import LOG_PROB, VALUE, FieldSpec, SchemaMismatch
from components.policies import EpisodeBatch, ModulePolicy, Qmix, class_of
from components.policies.checks import check_log_prob
from components.replay_buffers import EpisodeReplay, Episodes
from components.rollout import Rollout
from components.trainer import Trainer
from components.trajectory_manager import segments_of
from messages import BatchTrainingDataMsg, ClaimRoleMsg, LoadParamsMsg, TrainResultMsg
from orchestra import ActorFailed, Arrays

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "actor_critic.py"
SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)
UP = (ClaimRoleMsg, LoadParamsMsg, TrainResultMsg)


# How old it may be (X2, X5) -------------------------------------------------------------------------------------------


def batch_of(number: int, *versions: tuple[int, ...]) -> BatchTrainingDataMsg:
    """Return a batch of segments whose steps have these versions; `reward` names the segment."""
    n, longest = len(versions), max(map(len, versions))
    padded = np.zeros((n, longest), np.int32)
    for row, own in zip(padded, versions, strict=True):
        row[: len(own)] = own
    return team_batch(
        number=number,
        obs=np.zeros((n, longest + 1, 2, 4), np.float32),
        state=np.zeros((n, longest + 1, 3), np.float32),
        available=np.ones((n, longest + 1, 2, 3), np.bool_),
        actions=np.zeros((n, longest, 2), np.int64),
        reward=np.repeat(np.arange(n, dtype=np.float32)[:, None], longest, 1),
        lengths=np.array([len(own) for own in versions], np.int32),
        terminated=np.ones(n, np.bool_),
        epsilon=np.zeros(n, np.float32),
        versions=padded,
        weights=np.ones(n, np.float32),
        indices=np.arange(n),
        generations=np.arange(n),
    )


@pytest.mark.parametrize(
    ("most", "learned", "stale"),
    [(None, [[0, 1, 2, 3]], None), (0, [[3]], 3.0), (1, [[0, 3]], 2.0), (5, [[0, 1, 2, 3]], 0.0)],
)
def test_a_batch_may_mix_versions_and_what_is_too_old_is_left_out_and_counted(
    run, stage, scripted, most, learned, stale
) -> None:
    seen: list[list[float]] = []

    class Limited(scripted):
        max_staleness = most

        def learn(self, batch):
            seen.append(batch.reward[:, 0].tolist())
            return super().learn(batch)

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers={ClaimRoleMsg: ""})
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=Limited, to=up.ref)
            for number in (1, 2):  # it learns up to version 2
                await trainer.tell(batch_of(number, (number - 1,)))
            await up.hear(LoadParamsMsg, 3)
            seen.clear()
            # A segment is as old as its oldest step; what is behind its end is padding.
            await trainer.tell(batch_of(3, (2, 2, 1), (0,), (2, 0, 2), (2, 2)))
            result = await up.hear(TrainResultMsg, 3)
            assert seen == learned
            assert dict(result.metrics).get("stale_segments") == stale
            assert (await up.hear(LoadParamsMsg, 4)).version == 3

    run(main())


@pytest.mark.parametrize("name", ["ppo", "ippo", "mappo"])
def test_clipped_ratios_are_taken_of_steps_that_are_one_version_old_at_most(name: str) -> None:
    assert class_of(name).max_staleness == 1


def test_a_batch_that_is_all_too_old_is_answered_and_moves_no_version(run, stage, scripted) -> None:
    class Fresh(scripted):
        max_staleness = 0

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers={ClaimRoleMsg: ""})
            trainer = scene.node.spawn("trainer", Trainer, spec=SPEC, policy=Fresh, to=up.ref)
            await trainer.tell(batch_of(1, (0,)))
            await trainer.tell(batch_of(2, (0,), (0, 0)))
            result = await up.hear(TrainResultMsg, 2)
            assert (result.number, dict(result.metrics)) == (2, {"stale_segments": 2.0})
            await scene.settle()
            assert [params.version for params in up.of(LoadParamsMsg)] == [0, 1]

    run(main())


def test_unknown_versions_are_never_too_old() -> None:
    batch = EpisodeBatch(
        lengths=np.array([1, 2], np.int32),
        terminated=np.ones(2, np.bool_),
        weights=np.ones(2, np.float32),
        versions=np.array([[-1, 0], [-1, 7]], np.int32),
    )
    assert batch.staleness(9).tolist() == [0, 2]
    assert batch.replaced(versions=np.array([[9, 0], [12, 9]], np.int32)).staleness(9).tolist() == [0, 0]


# Whether it is the policy's own (X4) ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> tuple[ModulePolicy, EpisodeBatch]:
    """The policy of the example, and segments that it has played in version 3."""
    made: Any = class_of(f"{EXAMPLE}:ActorCritic")
    env = Skirmish("3m", 4, seed=0)
    policy = made(env.spec, seed=1)
    rollout = Rollout(env, policy, np.random.default_rng(0), segment_length=5)
    rollout.version = 3
    collected = rollout.collect(12, 1.0)
    assert collected is not None
    buffer = EpisodeReplay(rollout.schema, collected.segments)
    buffer.insert(segments_of(collected))
    rollout.close()
    return policy, buffer.sample(collected.segments, np.random.default_rng(0)).batch


def test_log_probabilities_are_those_of_the_policy_of_their_version(played: tuple[ModulePolicy, EpisodeBatch]) -> None:
    policy, batch = played
    assert check_log_prob(policy, batch, 3) == len(batch) >= 8
    assert check_log_prob(policy, batch, 4) == 0, "nothing is of that version"


def test_a_log_probability_that_is_not_the_policys_is_named(played: tuple[ModulePolicy, EpisodeBatch]) -> None:
    policy, batch = played
    wrong = batch["log_prob"].copy()
    wrong[2, 4, 1] -= 1e-3
    said = r"log_prob: -\d.* was carried for step 4 of segment 2 of agent 1, and version 3 of the policy says -\d"
    with pytest.raises(SchemaMismatch, match=f"^{said}"):
        check_log_prob(policy, batch.replaced(log_prob=wrong), 3)
    wrong[2, 4, 1] = np.nan
    with pytest.raises(SchemaMismatch, match=r"^log_prob: nan was carried for step 4 of segment 2 of agent 1"):
        check_log_prob(policy, batch.replaced(log_prob=wrong), 3)
    versions = np.array(batch.versions)
    versions[2, 0] = 2
    mixed = batch.replaced(log_prob=wrong, versions=versions)
    assert check_log_prob(policy, mixed, 3) == len(batch) - 1, "a segment of two versions is not compared"


def test_the_trainer_runs_the_check_and_fails_by_it(run, stage, played: tuple[ModulePolicy, EpisodeBatch]) -> None:
    policy, batch = played

    def message(number: int, log_prob: NDArray[np.float32]) -> BatchTrainingDataMsg:
        frames = {name: batch.frames(name) for name in ("obs", "state", "available", "value")}
        given = batch.replaced(log_prob=log_prob)
        steps = {name: given.steps(name) for name in ("actions", "reward", "log_prob")}
        return BatchTrainingDataMsg(
            number=number,
            per_frame=Arrays(frames),
            per_step=Arrays(steps),
            per_segment=Arrays({}),
            lengths=batch.lengths,
            terminated=batch.terminated,
            truncated=batch.truncated,
            versions=np.zeros(batch.lengths.sum(), np.int32),
            weights=batch.weights,
            indices=np.arange(len(batch)),
            generations=np.arange(len(batch)),
        )

    told: list[tuple[str, float]] = []

    async def main(*batches: BatchTrainingDataMsg) -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, answers={ClaimRoleMsg: ""})
            factory = {"spec": policy.spec, "policy": lambda spec, *, seed: type(policy)(spec, seed=1), "to": up.ref}
            trainer = scene.node.spawn("trainer", Trainer, **factory, checks_log_prob=True, publish_interval=2)
            for each in batches:
                await trainer.tell(each)
            result = await up.hear(TrainResultMsg, len(batches))
            told.extend(result.metrics)

    run(main(message(1, batch["log_prob"])))
    assert dict(told)["checked_segments"] == len(batch)
    told.clear()
    # Between two publications the parameters are those of no version, so that nothing can be compared.
    run(main(message(1, batch["log_prob"]), message(2, batch["log_prob"] - np.float32(0.01))))
    assert dict(told)["checked_segments"] == len(batch)
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="here/trainer")) as caught:
        run(main(message(1, batch["log_prob"] - np.float32(0.01))))
    assert isinstance(caught.value.exceptions[0].__cause__, SchemaMismatch)


# Who may ignore it (X7) -----------------------------------------------------------------------------------------------


def test_a_learner_ignores_fields_that_it_does_not_know(played: tuple[ModulePolicy, EpisodeBatch]) -> None:
    _, batch = played
    spec = Skirmish("3m", 1, seed=0).spec
    plain = EpisodeBatch(**{name: array for name, array in batch.arrays().items() if name not in ("log_prob", "value")})
    one, other = Qmix(spec, seed=0), Qmix(spec, seed=0)
    assert one.learn(batch).metrics == other.learn(plain).metrics
    assert one.params().tobytes() == other.params().tobytes()


def test_experience_without_the_further_fields_still_loads(tmp_path: Path) -> None:
    def filled(buffer: EpisodeReplay, **more: NDArray[Any]) -> EpisodeReplay:
        rng = np.random.default_rng(0)
        buffer.insert(
            Episodes(
                lengths=np.array([2, 1], np.int32),
                terminated=np.ones(2, np.bool_),
                obs=rng.random((5, 2, 4), np.float32),
                state=rng.random((5, 3), np.float32),
                available=np.ones((5, 2, 3), np.bool_),
                actions=np.zeros((3, 2), np.int64),
                reward=rng.random(3, np.float32),
                **more,
            )
        )
        return buffer

    plain, loaded = filled(EpisodeReplay(SPEC.schema, 3)), EpisodeReplay(SPEC.schema, 3)
    plain.save(tmp_path / "plain")
    loaded.load(tmp_path / "plain")
    rich = SPEC.schema.having({"log_prob": LOG_PROB, "value": VALUE})
    more = {"log_prob": np.full((3, 2), -0.5, np.float32), "value": np.ones((5, 2), np.float32)}
    filled(EpisodeReplay(rich, 3), **more).save(tmp_path / "rich")
    ignoring = EpisodeReplay(SPEC.schema, 3)
    ignoring.load(tmp_path / "rich")
    drawn = [each.sample(2, np.random.default_rng(1)).batch for each in (plain, loaded, ignoring)]
    for name in SPEC.schema.by_name:
        assert drawn[0][name].tobytes() == drawn[1][name].tobytes() == drawn[2][name].tobytes(), name
    with pytest.raises(ValueError, match=re.escape("log_prob")):
        EpisodeReplay(rich, 3).load(tmp_path / "plain")


# Its size (X8) --------------------------------------------------------------------------------------------------------


def test_the_further_fields_of_8m_are_a_few_hundredths_of_a_step() -> None:
    spec = Skirmish("8m", 1, seed=0).spec
    alive = FieldSpec((), "bool", "frame", agents=True)
    n_bytes = spec.schema.having({"log_prob": LOG_PROB, "value": VALUE, "alive": alive}).n_bytes()
    more = n_bytes["log_prob"] + n_bytes["value"] + n_bytes["alive"]
    version = np.dtype(np.int32).itemsize
    assert (more, version) == (8 * 4 + 8 * 4 + 8, 4)
    before = sum(spec.schema.n_bytes().values())
    assert before == 8 * 80 * 4 + 168 * 4 + 8 * 14 + 8 * 8 + 4
    assert 0.02 < (more + version) / before < 0.03
    hidden = FieldSpec((2, 64), "float32", "segment", agents=True)  # of actor and critic, for chunks of ten steps
    assert spec.schema.having({"hidden": hidden}).n_bytes()["hidden"] / 10 == 409.6
    assert 0.1 < 409.6 / before < 0.13
