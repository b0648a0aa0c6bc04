"""Fields that an environment and a policy declare travel from the rollout into batches bit for bit, and are checked."""

import re
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from team_experience import joined

from components import TrajectoryManager
from components.counters import RunCounters
from components.envs.base import Env, EnvSpec
from components.experience import LOG_PROB, VALUE, ExperienceSchema, FieldSpec, SchemaMismatch
from components.policies.acting import Acted, ActingPolicy
from components.replay_buffers import EpisodeReplay, FreshEpisodes, InvalidExperience, SampleToInsertRatio
from components.rollout import Rollout
from components.trajectory_manager import segments_of
from messages import BatchTrainingDataMsg, InsertTransitionMsg, SampleBatchMsg
from orchestra import Arrays
from orchestra.actors import codec

PIXELS, SPEED, LIMIT = (2, 3, 3), 4, 7
FIELDS = (
    ("camera", FieldSpec(PIXELS, "uint8", "frame", agents=True)),
    ("speed", FieldSpec((SPEED,), "float32", "frame")),
    ("alive", FieldSpec((), "bool", "frame", agents=True)),
    ("actions", FieldSpec((2,), "float32", "step", agents=True)),
    ("reward", FieldSpec((), "float32", "step", agents=True, finite=True)),
)
SPEC = EnvSpec("yard", n_agents=2, n_actions=1, obs_size=1, state_size=1, episode_limit=LIMIT, fields=FIELDS)


class Yard(Env):
    """Pictures, a dictionary's second part, continuous actions and a reward for each agent; ends as `plan` says."""

    def __init__(self, n_envs: int, *, seed: int = 0, plan: tuple[int, ...] = (3, 9, 5)) -> None:
        self.spec, self.n_envs, self._plan = SPEC, n_envs, plan
        self._own: dict[str, NDArray[Any]] = {
            name: np.zeros((n_envs, *SPEC.schema.items[name][0]), field.dtype)
            for name, field in FIELDS
            if name != "actions"
        }
        self.terminated, self.truncated, self.won = np.zeros((3, n_envs), np.bool_)
        self._t, self._episode = np.zeros((2, n_envs), np.int64)
        self._episode[:] = -1

    def fields(self) -> dict[str, NDArray[Any]]:
        return self._own

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        self._t[which] = 0
        self._episode[which] += 1
        self.terminated[which] = self.truncated[which] = False
        self._show()

    def step(self, actions: NDArray[Any]) -> None:
        self._t += 1
        self._own["reward"][:] = actions.sum(-1)
        lasts = np.array([self._plan[e % len(self._plan)] for e in self._episode])
        self.terminated[:] = self._t >= lasts
        self.truncated[:] = (self._t >= LIMIT) & ~self.terminated
        self._show()

    def _show(self) -> None:
        self._own["camera"][:] = self.mark()[:, None, None, None, None]
        self._own["speed"][:] = self._t[:, None]
        self._own["alive"][:, 1] = self._t < 3

    def mark(self) -> NDArray[Any]:
        return (self._episode * 16 + self._t) % 256


class Watcher(ActingPolicy):
    """Draws from normal distributions, says how probable that was, and values a frame by its mark."""

    fields: ClassVar[dict[str, FieldSpec]] = {  # type: ignore[misc]  # the class's
        "log_prob": FieldSpec((), "float32", "step", agents=True, finite=True),
        "value": VALUE,
        "memory": FieldSpec((1,), "float32", "segment", agents=True),
    }

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, 2, 1), np.float32)

    def act_on(self, frames, last_actions, hidden, *, epsilon, rng) -> Acted:
        actions = rng.standard_normal((len(hidden), 2, 2)).astype(np.float32)
        said = {"log_prob": -(actions**2).sum(-1), "value": self.value(frames), "memory": hidden}
        return Acted(actions, hidden + 1.0, said)

    def last_frame(self, frames, last_actions, hidden):
        return {"value": self.value(frames)}

    def value(self, frames) -> NDArray[np.float32]:
        return np.repeat(frames["camera"][:, 0, 0, 0, 0, None].astype(np.float32), 2, 1)

    def params(self) -> NDArray[np.float32]:
        return np.zeros(0, np.float32)

    def load(self, params: NDArray[np.float32]) -> None:
        pass


def collected(n_steps: int, segment_length: int | None = None, n_envs: int = 2) -> tuple[Rollout, InsertTransitionMsg]:
    rollout = Rollout(Yard(n_envs), Watcher(), np.random.default_rng(0), segment_length=segment_length)
    parts = []
    for version in range(n_steps):
        rollout.version = version
        part = rollout.collect(1, 0.5)
        parts += [] if part is None else [part]
    return rollout, joined(parts)


def slices(message: InsertTransitionMsg) -> list[tuple[int, slice, slice]]:
    steps = np.cumsum(message.lengths) - message.lengths
    return [
        (e, slice(s + e, s + e + n + 1), slice(s, s + n))
        for e, (s, n) in enumerate(zip(steps, message.lengths, strict=True))
    ]


def test_all_declared_fields_are_collected_each_in_its_shape() -> None:
    rollout, message = collected(40)
    assert list(message.per_frame) == ["camera", "speed", "alive", "value"]
    assert list(message.per_step) == ["actions", "reward", "log_prob"]
    assert list(message.per_segment) == ["memory"]
    rollout.schema.check(message.fields, message.lengths)
    np.testing.assert_array_equal(message["reward"], message["actions"].sum(-1))
    np.testing.assert_array_equal(message["log_prob"], -(message["actions"] ** 2).sum(-1))
    # The last frame of an episode is its own, not the first of the next one, and has a value, too.
    np.testing.assert_array_equal(message["value"][:, 0], message["camera"][:, 0, 0, 0, 0])
    for e, frames, _ in slices(message):
        assert message["speed"][frames, 0].tolist() == list(range(message.lengths[e] + 1))


def test_an_episode_that_is_cut_at_its_limit_is_truncated_and_not_terminated() -> None:
    _, message = collected(40)
    cut = message.lengths == LIMIT
    assert cut.any()
    assert not cut.all()
    assert (message.truncated == cut).all()
    assert (message.terminated == ~cut).all()


@pytest.mark.parametrize("length", [1, 2, 3, LIMIT, 50])
def test_segments_joined_by_episode_and_step_are_the_whole_episodes(length: int) -> None:
    _, whole = collected(60)
    _, parts = collected(60, length)
    assert parts.lengths.max() == min(length, LIMIT)
    joined: dict[int, list[tuple[int, slice, slice]]] = {}
    for e, frames, steps in slices(parts):
        before = joined.setdefault(int(parts.episode[e]), [])
        assert parts.first[e] == sum(part[2].stop - part[2].start for part in before)
        assert not before or not (parts.terminated | parts.truncated)[before[-1][0]]
        assert parts["memory"][e, 0, 0] == parts.first[e] or length >= LIMIT  # the state given to its first step
        earned = sum(float(parts["reward"][s].mean(1).sum()) for _, _, s in before)
        assert parts.return_before[e] == pytest.approx(earned, abs=1e-5)
        before.append((e, frames, steps))
    ended = {episode: own for episode, own in joined.items() if (parts.terminated | parts.truncated)[own[-1][0]]}
    assert sorted(ended) == sorted(whole.episode.tolist())
    for e, frames, steps in slices(whole):
        own = ended[int(whole.episode[e])]
        for name in whole.per_step:
            np.testing.assert_array_equal(np.concatenate([parts[name][s] for _, _, s in own]), whole[name][steps])
        assert np.concatenate([parts.versions[s] for _, _, s in own]).tolist() == whole.versions[steps].tolist()
        for name in whole.per_frame:
            # The last frame of a segment is the first of the next one.
            heads = [parts[name][f][:-1] for _, f, _ in own[:-1]]
            np.testing.assert_array_equal(np.concatenate([*heads, parts[name][own[-1][1]]]), whole[name][frames])
        assert (parts.terminated[own[-1][0]], parts.truncated[own[-1][0]]) == (whole.terminated[e], whole.truncated[e])


def test_returns_and_lengths_of_training_are_those_of_whole_episodes_whatever_the_segments() -> None:
    shown = []
    for length in (None, 2):
        counters = RunCounters(SampleToInsertRatio(1.0, min_size=1, error_buffer=1e9), 10, 10)
        counters.count(collected(60, length)[1], None)
        shown.append(counters.progress(None, 100, 1))
    assert shown[0].episodes == shown[1].episodes > 5
    assert shown[0].train_length == shown[1].train_length
    assert shown[0].train_return == pytest.approx(shown[1].train_return, abs=1e-5)
    assert shown[0].epsilon is None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
def test_every_field_comes_out_of_the_wire_and_the_buffer_bit_for_bit(length: int, capacity: int, seed: int) -> None:
    rollout, message = collected(30, length)
    arrived = codec.copied(message)
    for name, array in message.fields.items():
        assert arrived[name].tobytes() == array.tobytes(), name
    buffer = EpisodeReplay(rollout.schema, capacity)
    buffer.insert(segments_of(arrived))
    batch = buffer.sample(len(buffer), np.random.default_rng(seed))
    held = range(message.segments - len(buffer), message.segments)
    parts = {e: (frames, steps) for e, frames, steps in slices(message)}
    assert sorted(batch.generations.tolist()) == list(held)
    for row, e in enumerate(batch.generations.tolist()):
        frames, steps = parts[e]
        for names, rows in ((rollout.schema.frames, frames), (rollout.schema.steps, steps)):
            for name in names:
                n = rows.stop - rows.start
                assert batch.batch[name][row, :n].tobytes() == message[name][rows].tobytes(), name
                assert not batch.batch[name][row, n:].any()
        assert batch.batch["memory"][row].tobytes() == message["memory"][e].tobytes()
        assert batch.batch.versions is not None
        assert batch.batch.versions[row, : message.lengths[e]].tolist() == message.versions[steps].tolist()
        assert batch.batch.terminated[row] == message.terminated[e]
        assert batch.batch.truncated[row] == message.truncated[e]


def test_a_saved_buffer_has_all_fields(tmp_path) -> None:
    rollout, message = collected(30, 3)
    one, other = EpisodeReplay(rollout.schema, 20), EpisodeReplay(rollout.schema, 20)
    one.insert(segments_of(message))
    one.save(tmp_path / "kept")
    other.load(tmp_path / "kept")
    drawn, again = (each.sample(9, np.random.default_rng(1)).batch.arrays() for each in (one, other))
    for name, array in drawn.items():
        assert array.tobytes() == again[name].tobytes(), name


def test_a_rollout_continues_from_its_state_in_the_middle_of_a_segment() -> None:
    class Kept(Yard):
        def snapshot(self) -> dict[str, NDArray[Any]]:
            return {"t": self._t.copy(), "episode": self._episode.copy()}

        def restore(self, snapshot: dict[str, NDArray[Any]]) -> None:
            self._t[:], self._episode[:] = snapshot["t"], snapshot["episode"]
            self._show()

    def rollout() -> Rollout:
        return Rollout(Kept(2), Watcher(), np.random.default_rng(5), segment_length=4)

    one, other = rollout(), rollout()
    one.collect(10, 0.25)
    state = one.state()
    assert state is not None
    other.restore(state)
    other._copies._rng.bit_generator.state = one._copies._rng.bit_generator.state
    first, second = one.collect(20, 0.0), other.collect(20, 0.0)
    assert first is not None
    assert second is not None
    for name in (*first.fields, "episode", "first", "return_before", "versions", "lengths"):
        left, right = (each.fields.get(name, getattr(each, name, None)) for each in (first, second))
        np.testing.assert_array_equal(left, right, err_msg=name)


TEAM = EnvSpec("team", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)


def learned(**changed: NDArray[Any]) -> InsertTransitionMsg:
    """Return an episode of two steps of a team whose policy says log-probabilities."""
    frames, steps = 3, 2
    arrays = {
        "obs": np.zeros((frames, 2, 4), np.float32),
        "state": np.zeros((frames, 5), np.float32),
        "available": np.ones((frames, 2, 3), np.bool_),
        "actions": np.ones((steps, 2), np.int64),
        "reward": np.zeros(steps, np.float32),
        "log_prob": np.full((steps, 2), -0.5, np.float32),
    } | changed
    named = {"per_frame": ("obs", "state", "available"), "per_step": ("actions", "reward", "log_prob")}
    return InsertTransitionMsg.of_episodes(
        **{group: {name: arrays[name] for name in names if name in arrays} for group, names in named.items()},
        per_segment={},
        lengths=np.array([steps], np.int32),
        terminated=np.ones(1, np.bool_),
        won=np.zeros(1, np.bool_),
        versions=np.zeros(steps, np.int32),
    )


MASKED = np.ones((3, 2, 3), np.bool_)
MASKED[1, 0, 1] = False
REFUSED = [
    (
        {"obs": np.zeros((3, 2, 5), np.float32)},
        "obs: expected float32 of shape (3, 2, 4), got float32 of shape (3, 2, 5)",
    ),
    ({"reward": np.zeros(2)}, "reward: expected float32 of shape (2,), got float64 of shape (2,)"),
    ({"reward": np.array([0, np.nan], np.float32)}, "reward: expected finite numbers, got nan at step 1"),
    ({"actions": np.full((2, 2), 3)}, "actions: expected 0 to 2, got 3 to 3"),
    ({"log_prob": np.full((2, 2), 0.25, np.float32)}, "log_prob: expected at most 0, got 0.25"),
    (
        {"log_prob": np.full((2, 2), -np.inf, np.float32)},
        "log_prob: expected finite numbers, got [-inf -inf] at step 0",
    ),
    (
        {"available": MASKED},
        "log_prob: -0.5 is given at step 1 for action 1 of agent 0, which was not available",
    ),
]


@pytest.mark.parametrize(("changed", "expected"), REFUSED, ids=[said.split(":")[0] for _, said in REFUSED])
def test_a_mismatch_is_an_error_that_names_the_field(changed: dict[str, NDArray[Any]], expected: str) -> None:
    buffer = FreshEpisodes(TEAM.schema.having({"log_prob": LOG_PROB}), 4)
    buffer.insert(segments_of(learned()))
    with pytest.raises(InvalidExperience, match=f"^{re.escape(expected)}$"):
        buffer.insert(segments_of(learned(**changed)))
    assert len(buffer) == 1


def test_a_field_that_is_missing_or_that_nobody_declared_is_named() -> None:
    message = learned()
    with pytest.raises(InvalidExperience, match=r"^log_prob: not declared; the declared fields are obs, state, "):
        EpisodeReplay(TEAM.schema, 4).insert(segments_of(message))
    wanted = TEAM.schema.having({"log_prob": LOG_PROB, "value": VALUE})
    with pytest.raises(InvalidExperience, match=r"^value: missing; the declared fields are obs, state, "):
        EpisodeReplay(wanted, 4).insert(segments_of(message))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: TEAM.schema.having({"lengths": VALUE}), "lengths: a field cannot have this name"),
        (lambda: TEAM.schema.having({"reward": VALUE}), "reward: declared twice"),
        (
            lambda: TEAM.schema.having({"log_prob": LOG_PROB, "epsilon": FieldSpec(per="segment")}),
            "log_prob, epsilon: a policy declares one of them",
        ),
        (lambda: FieldSpec(dtype="object"), "dtype: expected one of bool, "),
        (lambda: FieldSpec((2,), "int64", n_values=(2, 3, 4)), "n_values: expected numbers of at least 1"),
        (lambda: ExperienceSchema(0, 1), "expected n_agents and limit of at least 1, got 0 and 1"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(make: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
        make()


def test_each_entry_of_a_multi_discrete_action_has_its_own_bound() -> None:
    schema = ExperienceSchema(1, 9, (("actions", FieldSpec((2,), "int64", n_values=(2, 5))),))
    schema.check({"actions": np.array([[1, 4], [0, 0]])}, np.array([2]))
    with pytest.raises(SchemaMismatch, match=r"^actions: expected 0 to \[1 4\], got \[2 0\]$"):
        schema.check({"actions": np.array([[2, 0]])}, np.array([1]))


def test_further_fields_and_versions_reach_the_trainer(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            buffer = FreshEpisodes(TEAM.schema.having({"log_prob": LOG_PROB}), 4)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=buffer)
            await manager.tell(learned())
            await manager.tell(SampleBatchMsg(number=1, batch_size=1, trainer=trainer.ref))
            batch = await trainer.hear(BatchTrainingDataMsg)
            assert isinstance(batch.per_step, Arrays)
            assert list(batch.per_step) == ["actions", "reward", "log_prob"]
            assert (batch["log_prob"] == -0.5).all()
            assert batch.versions.tolist() == [0, 0]

    run(main())
