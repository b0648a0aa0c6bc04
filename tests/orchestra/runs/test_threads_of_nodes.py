"""Libraries have as many threads in a node of a host as the node has cores of its own, whatever its agent was given."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import telling_experiment

from orchestra.hosts.shape import this_machine


@pytest.mark.parametrize("given", ["1", "5"])
def test_libraries_have_a_thread_for_each_core_of_the_node_and_one_if_it_has_none(tmp_path: Path, given: str) -> None:
    cores = this_machine().cores
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-m", "orchestra", "run", telling_experiment.__file__, "--launch", "local", "--hosts", "1"],
        cwd=tmp_path,
        env={**variables, "OMP_NUM_THREADS": given},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = dict(re.findall(r"^.*?([\w-]+/teller): (torch .*), GPUs ''$", done.stdout, re.MULTILINE))
    assert told == {"own-1/teller": f"torch {cores}, pools ({cores},)", "shared-1/teller": "torch 1, pools (1,)"}
