"""Preloading loads the code of environments and policies, so that a forked process loads none itself."""

import subprocess
import sys
from functools import partial

import pytest

from components.envs import Skirmish
from components.policies import ALGORITHMS, Algorithm
from components.preloading import preload

ACTING = """
from functools import partial
import sys
import numpy as np
from components.envs import Skirmish
from components.playing import play_once
from components.policies import ALGORITHMS
from components.preloading import preload
from components.rollout import Rollout

policy = ALGORITHMS[sys.argv[1]].acting
env = partial(Skirmish, "3m")
preload(env, policy)
assert "torch" not in sys.modules
import llvmlite.binding as llvm

def refuse(*args, **kwargs):
    raise AssertionError("compiled code was loaded")

for name in ("parse_bitcode", "parse_assembly", "get_host_cpu_features"):
    assert hasattr(llvm, name)
    setattr(llvm, name, refuse)
acting = policy(env(1, seed=0).spec, seed=0)
assert Rollout(env(2, seed=0), acting, np.random.default_rng(0)).collect(60, 1.0) is not None
params = acting.params()
print(len(play_once(env, 2, 0, policy, params, 2, np.random.default_rng(0)).won))
"""


@pytest.mark.parametrize("algorithm", ["qmix", "coma"])
def test_a_process_that_has_preloaded_plays_without_loading_compiled_code(algorithm: str) -> None:
    run = subprocess.run([sys.executable, "-c", ACTING, algorithm], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("2", 0), run.stderr


def refused(*arguments: object, **keywords: object) -> None:
    raise AssertionError("the policy was made")


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(refused, id="a factory of another kind"),
        pytest.param(Algorithm(refused).acting, id="a policy that also learns"),
    ],
)
def test_only_an_acting_side_is_preloaded(policy) -> None:
    preload(partial(Skirmish, "3m"), policy)


def test_nothing_is_preloaded_for_an_environment_without_code_of_its_own(corridor) -> None:
    preload(corridor, Algorithm("nowhere:Nothing", refused).acting)


def test_most_acting_policies_have_nothing_to_preload() -> None:
    preload(partial(Skirmish, "3m"), ALGORITHMS["mappo"].acting)
