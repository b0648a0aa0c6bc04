"""Broken frames, very many, end connections and do nothing else. `benchmarks/fuzz_wire.py` tries more of them."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).resolve().parents[3] / "benchmarks" / "fuzz_wire.py"


@pytest.mark.slow
def test_a_hundred_thousand_broken_frames_harm_neither_the_node_nor_its_honest_peers() -> None:
    # In a process of its own: what others left in this one's memory would blur how much it grows.
    done = subprocess.run(
        [sys.executable, FUZZER, "--frames", "100000", "--seed", "5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " frames in " in done.stdout
