"""The simulator is a package of its own: it needs NumPy and numba, and nothing of the rest of the project."""

import hashlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from components.envs import Skirmish

ROOT = Path(__file__).parents[3]
SIMULATOR = ROOT / "components" / "envs" / "skirmish"
EXAMPLE = ROOT / "docs" / "examples" / "smac_loop.py"


def played(env, steps):
    """Return a digest of so many steps of random play."""
    digest = hashlib.sha256()
    rng = np.random.default_rng(0)
    env.reset()
    for _ in range(steps):
        env.step(np.argmax(rng.random(env.available.shape) * env.available, axis=2))
        for array in (env.obs, env.state, env.available, env.reward):
            digest.update(array.tobytes())
        env.reset(env.terminated | env.truncated)
    return digest.hexdigest()


PLAYED = "import hashlib\nimport numpy as np\n" + inspect.getsource(played)


@pytest.fixture
def folder(tmp_path):
    """A folder for imports that holds the simulator alone, as `skirmish`."""
    shutil.copytree(SIMULATOR, tmp_path / "skirmish", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def python(folder, *words):
    """What Python prints that finds modules in `folder` and does not compile."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    environment |= {"PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1"}
    ran = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


ALONE = (
    PLAYED
    + """
import sys

class Refused:
    "Finds nothing but the standard library, NumPy, numba and the simulator."
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "numpy", "numba", "llvmlite", "skirmish"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused())
import skirmish
assert "numba" not in sys.modules
from skirmish import env
from skirmish.env.starcraft2 import wrapper
from skirmish.env.starcraft2.maps import get_map_params, smac_maps
from skirmish.env.starcraft2.starcraft2 import StarCraft2Env
assert issubclass(StarCraft2Env, env.MultiAgentEnv)
assert len(smac_maps.get_smac_map_registry()) == 26
assert get_map_params("10gen_zerg")["unit_type_bits"] == 3
assert all(getattr(skirmish, name) is not None for name in dir(skirmish))
drawn = wrapper.StarCraftCapabilityEnvWrapper(map_name="terran_5_vs_5", seed=1)
assert len(drawn.reset()[0]) == 5
print(played(skirmish.Battles("3m", 2, seed=4), 20), played(skirmish.Battles("zerg_5_vs_5", 1, seed=4), 5))
"""
)


def test_without_the_project_it_plays_the_same_battles(folder):
    theirs = python(folder, "-c", ALONE).split()
    ours = [played(Skirmish("3m", 2, seed=4), 20), played(Skirmish("zerg_5_vs_5", 1, seed=4), 5)]
    assert theirs == ours


def test_the_example_of_the_one_changed_line_runs(folder):
    assert re.fullmatch(r"(episode \d: return \d+\.\d\d\n){2}", python(folder, EXAMPLE))


GOLDEN = {
    "3m": "eee4a8e355c27df7",
    "MMM2": "f2e748d2c4c8440f",
    "corridor": "e3020eb933cb0332",
    "1c3s5z": "169c65247a983c31",
    "2c_vs_64zg": "bdcd7db94b7a92b8",
    "27m_vs_30m": "902a3c9dfcd3e1b2",
    "terran_10_vs_11": "e819dce1959dc80b",
    "zerg_10_vs_11": "70673207a129aaf0",
}


@pytest.mark.parametrize("scenario", GOLDEN)
def test_battles_are_those_of_earlier_versions_bit_for_bit(scenario):
    """A deliberate change of how units move or fight changes these digests, and the changelog says so."""
    assert played(Skirmish(scenario, 4, seed=7, start_jitter=0.1), 60)[:16] == GOLDEN[scenario]


CHECKS = (
    PLAYED
    + """
import warnings
import gymnasium
from gymnasium.utils.env_checker import check_env
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the games that PettingZoo's own tests import
    from pettingzoo.test import parallel_api_test, parallel_seed_test
import skirmish.gymnasium
from skirmish.pettingzoo import SkirmishParallelEnv

for scenario in ("3m", "MMM2", "zerg_5_vs_5"):
    check_env(gymnasium.make(f"skirmish/{scenario}-v0").unwrapped)
    parallel_api_test(SkirmishParallelEnv(scenario), num_cycles=300)
    parallel_seed_test(lambda: SkirmishParallelEnv(scenario), num_cycles=30)
envs = gymnasium.make_vec("skirmish/3m-v0", num_envs=4)
seen, info = envs.reset(seed=1)
assert envs.observation_space.contains(seen)
for _ in range(70):
    seen, _, _, _, info = envs.step(np.argmax(info["action_mask"], axis=2))
    assert envs.observation_space.contains(seen)
print(played(skirmish.Battles("3m", 4, seed=7, start_jitter=0.1), 60)[:16])
"""
)


@pytest.mark.minutes
@pytest.mark.slow
def test_it_is_installed_alone_and_passes_the_checks_of_gymnasium_and_pettingzoo(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    interpreter = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words):
        ran = subprocess.run([interpreter, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    install = ("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    run(*install, SIMULATOR)
    installed = {line.partition("=")[0] for line in run("-m", "pip", "freeze").splitlines()}
    assert {name.partition(" ")[0] for name in installed} == {"llvmlite", "numba", "numpy", "skirmish-smac"}
    assert run(EXAMPLE).startswith("episode 0: return ")
    run(*install, f"{SIMULATOR}[gymnasium,pettingzoo]")
    assert run("-W", "error", "-c", CHECKS).split()[-1] == GOLDEN["3m"]
    assert not list(SIMULATOR.glob("*.egg-info"))
    assert not (SIMULATOR / "build").exists()
