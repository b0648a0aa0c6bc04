"""Hierq-1 (DMCAF, Fig. 9): hierarchical QMIX in air combat, one worker with one environment.

With `--single-process` playing and learning take turns in one process. The other `maca_` experiments vary this one, so
that environment and learner are the same. `--env-arg` replaces all arguments below.
"""

from pathlib import Path

from orchestra import load_experiment, variant

experiment = variant(
    load_experiment(Path(__file__).parents[1] / "train.py"),
    algorithm="hierq",
    env="air_combat:fighter10v10",
    env_arg=("opponent=easy", "frame_skip=4", "courses=8", "max_steps=600"),
    subtask_steps=4,
    workers=1,
    envs_per_worker=1,
    buffer_size=1_000,
    updates_per_episode=0.5,
    epsilon_steps=200_000,
    steps=1_000_000,
)
