"""SMAC's loop of random agents on the simulator alone (`pip install ./components/envs/skirmish`): one line differs.

The same line changes in PyMARL (`src/envs/__init__.py`), in EPyMARL (`src/envs/smac_wrapper.py`, and likewise
`src/envs/smacv2_wrapper.py`), and in all other code that imports from `smac.env` or `smacv2.env`.
"""

import numpy as np
from skirmish.env import StarCraft2Env  # was: from smac.env import StarCraft2Env

env = StarCraft2Env(map_name="3m", seed=1)
sizes = env.get_env_info()
rng = np.random.default_rng(0)
for episode in range(2):
    env.reset()
    terminated, total = False, 0.0
    while not terminated:
        masks = [env.get_avail_agent_actions(i) for i in range(sizes["n_agents"])]
        reward, terminated, _ = env.step([int(rng.choice(np.flatnonzero(mask))) for mask in masks])
        total += reward
    print(f"episode {episode}: return {total:.2f}")
env.close()
