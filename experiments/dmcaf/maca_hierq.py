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
    env_arg=(
        "opponent=easy",
        "frame_skip=4",
        "courses=4",
        "max_steps=360",
        "targets=nearest",
        "shaping=decisive",
    ),
    subtask_steps=3,
    workers=1,
    envs_per_worker=1,
    batch_size=16,
    buffer_size=1_000,
    updates_per_episode=1.0,
    epsilon_steps=30_000,
    eval_episodes=64,
    steps=400_000,
)
