"""A message takes what it should and nothing else, says which field was wrong, and means the same after a journey."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from team_experience import team_batch, team_episodes

import messages
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    CollectMsg,
    DrawEpisodesMsg,
    EnvsPlayedMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    NotSavedMsg,
    PlayEnvsMsg,
    ProbesMsg,
    ProgressMsg,
    PullParamsMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    ShardEpisodesMsg,
    ShardSizeMsg,
    StateSavedMsg,
    SyncMsg,
    TrainResultMsg,
    UpdatePriorityMsg,
    UseAgentMsg,
    VersionMsg,
    WorkerCountMsg,
)
from orchestra import Arrays, Lane, Message, Ref, Request, SparseArray
from orchestra.actors import codec
from orchestra.actors.mailbox import Mailbox

HERE: Ref[Any] = Ref("learner/trainer")


def insert(*lengths: int, **changed: Any) -> dict[str, Any]:
    steps, episodes = sum(lengths), len(lengths)
    rng = np.random.default_rng(steps)
    fields = {
        "obs": rng.random((steps + episodes, 3, 4), dtype=np.float32),
        "state": rng.random((steps + episodes, 5), dtype=np.float32),
        "available": rng.random((steps + episodes, 3, 6)) < 0.5,
        "actions": rng.integers(0, 6, (steps, 3)),
        "reward": rng.random(steps, dtype=np.float32),
        "lengths": np.array(lengths, np.int32),
        "terminated": np.ones(episodes, np.bool_),
        "won": np.zeros(episodes, np.bool_),
        "versions": np.arange(steps, dtype=np.int32),
        "epsilon": np.full(episodes, 0.25, np.float32),
        "newest_version": 7,
        "sender": "worker-0-0/worker",
        "source": "",
    }
    return fields | changed


def batch(*lengths: int, **changed: Any) -> dict[str, Any]:
    e, t = len(lengths), max(lengths)
    fields = {
        "number": 3,
        "obs": np.ones((e, t + 1, 3, 4), np.float32),
        "state": np.ones((e, t + 1, 5), np.float32),
        "available": np.ones((e, t + 1, 3, 6), np.bool_),
        "actions": np.ones((e, t, 3), np.int64),
        "reward": np.ones((e, t), np.float32),
        "lengths": np.array(lengths, np.int32),
        "terminated": np.ones(e, np.bool_),
        "epsilon": np.full(e, 0.25, np.float32),
        "weights": np.ones(e, np.float32),
        "indices": np.arange(e),
        "generations": np.arange(e),
    }
    return fields | changed


def priorities(**changed: Any) -> dict[str, Any]:
    fields = {
        "indices": np.arange(3),
        "generations": np.arange(3),
        "priorities": np.ones(3, np.float32),
    }
    return fields | changed


def progress(**changed: Any) -> dict[str, Any]:
    fields = {
        "state": "training",
        "env_steps": 10,
        "goal_steps": 100,
        "episodes": 2,
        "updates": 1,
        "train_win_rate": 0.5,
        "train_return": None,
        "train_length": None,
        "epsilon": None,
        "params_lag": None,
        "params_lags": (0,) * 7,
        "dropped_episodes": 0,
        "workers": 2,
        "metrics": (("loss", 0.25), ("grad_norm", 1.5)),
        "sync": (("loads", 2.0),),
    }
    return fields | changed


SIZE = ShardSizeMsg(shard=HERE, total=2.5, held=3, inserted=4)
EXAMPLES: list[Message] = [
    SIZE,
    ShardEpisodesMsg(
        size=SIZE,
        episodes=team_episodes(**insert(2, 5, 1)),
        indices=np.arange(3),
        generations=np.arange(3),
        weights=np.ones(3),
    ),
    DrawEpisodesMsg(episodes=3),
    team_batch(**batch(2, 5)),
    SaveCheckpointMsg(env_steps=12),
    EvaluateMsg(version=3, params=np.ones(4, np.float32), episodes=8, env_steps=100, seed=5, final=False),
    EvaluationResultMsg(
        version=3, env_steps=100, episodes=8, win_rate=0.5, mean_return=1.5, mean_length=20.0, final=True
    ),
    team_episodes(**insert(2, 5, 1)),
    ClaimRoleMsg(role="trainer", ref=HERE),
    JoinMsg(role="worker", ref=HERE, environments=1),
    LoadParamsMsg(version=7, params=np.arange(5, dtype=np.float32), env_steps=300),
    ProbesMsg(number=3, inputs=Arrays({"last_actions": np.zeros((2, 1, 3), np.int64)})),
    VersionMsg(version=9, required=-1, env_steps=3, probes=3, outputs=Arrays({"logits": np.ones((2, 1), np.float16)})),
    PullParamsMsg(version=9, ref=HERE),
    UseAgentMsg(name="Agent"),
    PlayEnvsMsg(node=1, number=2, what="step", seed=None, actions=Arrays({"actions": np.arange(3)})),
    EnvsPlayedMsg(
        node=1, number=2, ref=HERE, version=3, arrays=Arrays({"obs": np.ones((3, 4), np.float32)}), lost=False, error=""
    ),
    SyncMsg(worker="w/worker", decisions=((None, 3, None, None, True), (3, 9, 0.5, 0.25, False))),
    WorkerCountMsg(proxy=HERE, workers=3, environments=3),
    CollectMsg(episodes=0, received=0, unit="segments"),
    NotSavedMsg(error="No space left on device"),
    ProgressMsg(**progress()),
    SampleBatchMsg(number=1, batch_size=32, trainer=HERE),
    SaveStateMsg(env_steps=12, reply_to=HERE),
    StateSavedMsg(ref=HERE, error=""),
    TrainResultMsg(number=1, seconds=0.5, metrics=(("loss", float("inf")),)),
    UpdatePriorityMsg(**priorities()),
]
NAMED = pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Arrays):
        return one.keys() == other.keys() and all(same(array, other[name]) for name, array in one.items())
    if isinstance(one, Message):
        return type(one) is type(other) and all(same(value, vars(other)[name]) for name, value in vars(one).items())
    return type(one) is type(other) and bool(one == other)


def test_there_is_an_example_of_every_message() -> None:
    assert sorted(type(example).__name__ for example in EXAMPLES) == sorted(
        name for name, value in vars(messages).items() if isinstance(value, type) and issubclass(value, Message)
    )


@NAMED
def test_a_message_travels_unchanged(message: Message) -> None:
    arrived = codec.copied(message)
    assert type(arrived) is type(message)
    for name in type(message).model_fields:
        assert same(getattr(message, name), getattr(arrived, name)), name


@NAMED
def test_what_arrives_is_read_only_and_nobody_elses(message: Message) -> None:
    arrived = codec.copied(message)
    for name in message.wire.array_fields:
        assert not getattr(arrived, name).flags.writeable
        assert not np.shares_memory(getattr(message, name), getattr(arrived, name))


@NAMED
def test_no_field_may_be_missing_and_none_be_added(message: Message) -> None:
    fields = dict(message)
    with pytest.raises(ValidationError, match="surplus"):
        type(message)(**fields, surplus=1)
    for name in fields:
        with pytest.raises(ValidationError, match=name):
            type(message)(**{key: value for key, value in fields.items() if key != name})


@NAMED
def test_an_array_of_another_dtype_or_rank_is_refused_by_its_field_s_name(message: Message) -> None:
    fields = dict(message)
    for name in message.wire.array_fields:
        array = fields[name]
        for wrong in (array.astype(np.complex128), array[None], list(array)):
            with pytest.raises(ValidationError) as caught:
                type(message)(**{**fields, name: wrong})
            (error,) = caught.value.errors()
            assert error["loc"] == (name,)
            assert "expected an array" in error["msg"]


@NAMED
def test_arrays_that_disagree_about_an_axis_are_refused_by_their_fields_names(message: Message) -> None:
    names = message.wire.array_fields
    for name in names if len(names) > 1 else ():
        shorter = getattr(message, name)[:-1]
        axis = dict(message.wire.axes)[name][0]
        with pytest.raises(ValidationError) as caught:
            type(message)(**{**dict(message), name: shorter})
        said = caught.value.errors()[0]["msg"]
        assert name in said or axis in said


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(ValidationError) as caught:
        make()
    return str(caught.value.errors()[0]["msg"])


def test_refusals_say_what_was_expected_and_what_came() -> None:
    assert refusal(lambda: team_episodes(**insert(2, versions=np.ones(2)))) == (
        "expected an array int32[steps], got dtype float64"
    )
    assert refusal(lambda: team_episodes(**insert(2, versions=np.ones((2, 1), np.int32)))) == (
        "expected an array int32[steps], got shape (2, 1)"
    )
    whole = dict(team_episodes(**insert(2)))
    assert refusal(lambda: InsertTransitionMsg(**whole | {"per_step": [1.0]})) == "expected arrays by name, got list"
    assert refusal(lambda: InsertTransitionMsg(**whole | {"per_step": {"reward": 1.0}})) == (
        "expected arrays by name, got dict"
    )
    assert refusal(lambda: LoadParamsMsg(version=0, params=[1.0], env_steps=0)) == (  # type: ignore[arg-type]
        "expected an array float32[parameters], got list"
    )
    assert refusal(lambda: team_episodes(**insert(2, won=np.ones(2, np.bool_)))) == (
        "axis 'segments' has length 1 in lengths but 2 in won"
    )
    assert refusal(lambda: JoinMsg(role="learner", ref=HERE)) == "Input should be 'worker' or 'proxy'"
    assert refusal(lambda: JoinMsg(role="worker", ref="learner/trainer", environments=1)) == (  # type: ignore[arg-type]
        "expected a Ref, got str"
    )


def test_an_insert_has_a_frame_more_than_steps_for_each_segment() -> None:
    message = team_episodes(**insert(2, 5, 1))
    assert (message.segments, message.steps, len(message["obs"])) == (3, 8, 11)
    for group, rows, field in (
        ("per_frame", 11, "obs"),
        ("per_step", 8, "actions"),
        ("per_segment", 3, "epsilon"),
    ):
        fields = dict(message) | {group: {name: array[:-1] for name, array in getattr(message, group).items()}}
        assert refusal(lambda fields=fields: InsertTransitionMsg(**fields)) == (
            f"Value error, {field}: 3 segments of 8 steps in all need {rows} rows, got {rows - 1}"
        )
    changed = {"lengths": np.array([2, 6, 1], np.int32)}
    assert refusal(lambda: team_episodes(**insert(2, 5, 1) | changed)) == (
        "Value error, versions: 3 segments of 9 steps in all, got 8 rows"
    )


def test_an_insert_holds_an_episode_at_least_and_none_without_a_step() -> None:
    expected = "Value error, lengths: expected one segment or more, of one step or more each, got "
    assert refusal(lambda: team_episodes(**insert())) == f"{expected}[]"
    assert refusal(lambda: team_episodes(**insert(3, 0))) == f"{expected}[3 0]"
    changed = {"lengths": np.array([4, -1], np.int32)}
    assert refusal(lambda: team_episodes(**insert(2, 1) | changed)) == f"{expected}[ 4 -1]"


def test_a_batch_has_the_rows_of_its_segments_and_a_frame_more_than_steps_of_each() -> None:
    made = team_batch(**batch(2, 5))
    assert (made["obs"].shape, made["reward"].shape) == ((9, 3, 4), (7,))
    own = {name: getattr(made, name) for name in BatchTrainingDataMsg.model_fields}
    short = Arrays({name: array[:-1] for name, array in made.per_frame.items()})
    assert refusal(lambda: BatchTrainingDataMsg(**own | {"per_frame": short})) == (
        "Value error, obs: 2 segments of 7 steps in all need 9 rows, got 8"
    )
    said = refusal(lambda: BatchTrainingDataMsg(**own | {"lengths": np.array([0, 5], "i4")}))
    assert said == "Value error, lengths: expected one segment or more, of one step or more each, got [0 5]"


def test_a_trace_may_write_each_segment_of_experience_on_its_own() -> None:
    for made in (team_episodes(**insert(2, 5)), team_batch(**batch(2, 5))):
        pieces = [(array, rows.tolist()) for array, rows in made.array_pieces()]
        fields = {**made.per_frame.plain(), **made.per_step.plain()}
        assert [id(array) for array, _ in pieces] == [id(array) for array in fields.values()]
        assert [rows for _, rows in pieces] == [[3, 6]] * 3 + [[2, 5]] * 2
    own = {type(example) for example in EXAMPLES if list(example.array_pieces())}
    assert own == {InsertTransitionMsg, BatchTrainingDataMsg}


def sparse_insert(*lengths: int) -> InsertTransitionMsg:
    """Return a message whose states are a sparse array: each frame has one number more that is not zero."""
    made, frames = team_episodes(**insert(*lengths)), sum(lengths) + len(lengths)
    pieces = tuple(length + 1 for length in lengths)
    bits = np.concatenate([1 << np.arange(size) for size in pieces]).astype(np.uint16)[:, None]
    states = SparseArray(bits, np.arange(1, frames + 1, dtype=np.float32), (frames, 5), pieces, pieces)
    return made.model_copy(update={"per_frame": Arrays({**made.per_frame.plain(), "state": states})})


def test_the_pieces_of_a_sparse_field_are_segments_too() -> None:
    made = sparse_insert(2, 3)
    pieces = {id(array): rows.tolist() for array, rows in made.array_pieces()}
    states = made.per_frame.plain()["state"]
    assert (pieces[id(states.bits)], pieces[id(states.values)]) == ([3, 4], [3, 4])
    assert "state" in made.fields
    assert made["state"][2].tolist() == [1.0, 2.0, 3.0, 0.0, 0.0], (
        "each number differs from that of the row before once"
    )


def test_segments_with_sparse_fields_are_chosen() -> None:
    made = sparse_insert(2, 3, 1)
    chosen = made.select(np.array([True, False, True]))
    assert chosen["state"].tobytes() == made["state"][[0, 1, 2, 7, 8]].tobytes()
    assert made.summary().per_frame == {}
    short = made.model_copy(update={"per_frame": Arrays(state=chosen.per_frame.plain()["state"])})
    assert refusal(lambda: InsertTransitionMsg(**dict(short))) == (
        "Value error, state: 3 segments of 6 steps in all need 9 rows, got 5"
    )


def test_of_params_versions_pace_progress_and_sizes_only_the_newest_unread_counts() -> None:
    latest = {type(example).__name__ for example in EXAMPLES if example.lane is Lane.LATEST}
    assert latest == {"LoadParamsMsg", "CollectMsg", "ProgressMsg", "ShardSizeMsg", "VersionMsg"}
    assert not any(example.lane is Lane.SYSTEM for example in EXAMPLES)

    mailbox = Mailbox("host/worker")
    for running in (True, False, True):
        for message in (
            CollectMsg(episodes=running, received=0, unit="segments"),
            WorkerCountMsg(proxy=HERE, workers=running, environments=running),
        ):
            mailbox.put(("learner/orchestrator", message, 1, 0, 0.0, None))
    left = [item[1] for item in mailbox.drain()]
    assert left == [
        CollectMsg(episodes=1, received=0, unit="segments"),
        *(WorkerCountMsg(proxy=HERE, workers=n, environments=n) for n in (1, 0, 1)),
    ]


def test_only_a_trainer_that_joins_and_a_checkpoint_are_answered() -> None:
    requests = {type(example) for example in EXAMPLES if isinstance(example, Request)}
    assert requests == {ClaimRoleMsg, SaveCheckpointMsg}
    assert SaveCheckpointMsg.answer_adapter().validate_python("a/path.pt") == "a/path.pt"


@NAMED
def test_a_message_cannot_be_changed(message: Message) -> None:
    name = next(iter(type(message).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(message, name, getattr(message, name))
