"""The saved experience of a run is small: packed rows take a part of their memory, and come back byte for byte."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some
from numpy.typing import NDArray

from components.checkpoints import packed_rows, run_state
from components.checkpoints.array_file import (
    PACKED_FROM,
    CheckpointError,
    StateArray,
    open_checkpoint,
    write_checkpoint,
)
from components.checkpoints.packed_rows import PackedArray, pack_rows
from components.envs import Skirmish
from components.policies import Qmix
from components.replay_buffers import EpisodeReplay
from components.rollout import Rollout
from components.trajectory_manager import TrajectoryManager
from messages import BatchTrainingDataMsg, SampleBatchMsg, SaveCheckpointMsg


def pack(*pieces: NDArray[Any]) -> PackedArray:
    whole = np.concatenate(pieces)
    content = b"".join(block for piece in pieces for block in pack_rows(piece))
    return PackedArray(whole.dtype, whole.shape, memoryview(content))


@given(
    rows=some.arrays(
        st.sampled_from([np.bool_, np.uint8, np.int16, np.float32, np.int64, np.float64]),
        some.array_shapes(min_dims=1, max_dims=3, max_side=9),
    ),
    block=st.integers(1, 200),
    data=st.data(),
)
def test_packed_rows_come_back_byte_for_byte(rows: NDArray[Any], block: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)))) | {0, len(rows)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "BLOCK", block)
        packed = pack(*(rows[begin:end] for begin, end in pairwise(cuts)))
    unpacked = packed.unpack()
    assert (unpacked.dtype, unpacked.shape) == (rows.dtype, rows.shape)
    assert unpacked.tobytes() == rows.tobytes()


def test_an_array_of_no_rows_is_packed_as_nothing() -> None:
    assert list(pack_rows(np.zeros((0, 3)))) == []
    assert PackedArray(np.dtype(np.float32), (0, 3), memoryview(b"")).unpack().shape == (0, 3)


def test_packed_rows_that_are_cut_short_or_wrong_are_refused() -> None:
    packed = pack(np.arange(600, dtype=np.float32).reshape(100, 6))
    whole = packed.content.tobytes()
    few_rows, no_rows = (whole.replace(whole[:8], n.to_bytes(8, "little"), 1) for n in (99, 0))
    many_words = whole[:8] + (601).to_bytes(8, "little") + whole[16:]
    for damaged in (whole[:-1], whole[:100], whole[:10], b"", few_rows, no_rows, many_words):
        with pytest.raises(ValueError, match=r"rows|buffer|size"):
            PackedArray(packed.dtype, packed.shape, memoryview(damaged)).unpack()


def test_a_file_holds_large_arrays_packed_where_that_is_asked_for(tmp_path: Path) -> None:
    large = np.zeros((PACKED_FROM // 4, 4), np.int32)
    large[::7] = 5
    arrays = {"large": StateArray.of(large[:10], large[10:]), "small": StateArray.of(np.arange(3))}
    for packed in (False, True):
        write_checkpoint(tmp_path / "a.npz", arrays, packed=packed)
        assert ((tmp_path / "a.npz").stat().st_size < large.nbytes / 2) == packed
        with open_checkpoint(tmp_path / "a.npz") as reader:
            reader.expect_names(["large", "small"])
            assert reader.length("large") == len(large)
            assert reader.read("large", np.int32, large.shape).tobytes() == large.tobytes()
            assert reader.read_all()["large"].tobytes() == large.tobytes()
            with pytest.raises(CheckpointError, match="large: expected 3, got int32 of shape"):
                reader.expect_value("large", 3)
            with pytest.raises(CheckpointError, match="large: expected float32 of shape"):
                reader.read("large", np.float32, large.shape)


def test_the_saved_experience_of_a_battle_takes_at_most_half_its_memory(run: Any, stage: Any, tmp_path: Path) -> None:
    env = Skirmish("8m", 8, seed=0)
    episodes = Rollout(env, Qmix(env.spec, seed=0), np.random.default_rng(0)).collect(100, 0.5)
    assert episodes is not None
    state = tmp_path / "state" / f"{run_state.checkpoint_name(1)}.unfinished"

    async def batch(resume_from: Path | None) -> BatchTrainingDataMsg:
        """Return a batch of the experience, which is inserted and saved unless a state is resumed."""
        async with stage(run_directory=tmp_path, resume_from=resume_from) as scene:
            trainer = scene.probe("trainer", BatchTrainingDataMsg)
            buffer = EpisodeReplay(env.spec, 64)
            manager = scene.node.spawn("trajectories", TrajectoryManager, replay=buffer)
            if resume_from is None:
                await manager.tell(episodes)
                await manager.ask(SaveCheckpointMsg(env_steps=1))
            await manager.tell(SampleBatchMsg(number=1, batch_size=4, trainer=trainer.ref))
            return await trainer.hear(BatchTrainingDataMsg)

    saved = run(batch(None))
    memory = sum(episodes[name].nbytes for name in ("obs", "state", "available", "actions", "reward"))
    assert sum(file.stat().st_size for file in state.iterdir()) < memory / 2
    resumed = run(batch(state))
    assert resumed["obs"].tobytes() == saved["obs"].tobytes()
    assert resumed.indices.tolist() == saved.indices.tolist()
