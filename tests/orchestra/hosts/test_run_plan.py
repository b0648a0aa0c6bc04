"""The plan of a run as text, on a command line or in a message."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra import HostShape, UsageError
from orchestra.hosts.run_plan import RunPlan

PLAN = RunPlan(Path("errand.py"), [], 0, Path())
LONGEST_WORD = 128 << 10
"""Bytes of one word of a command line, on Linux."""


@given(st.lists(st.text(max_size=64), max_size=5), st.sampled_from([0, 1, 1000]), st.integers(0, 2**40))
@settings(max_examples=25)
def test_a_plan_reads_as_it_was_written_and_fits_into_a_command_line_for_a_thousand_hosts(
    flags: list[str], hosts: int, memory: int
) -> None:
    shapes = [
        HostShape(slot, f"node{slot:04}.{memory:x}.rack{slot * 7919 % 1000}.example.org", 64, 8, memory)
        for slot in range(hosts)
    ]
    planned = replace(PLAN, flags=flags, hosts=shapes)
    text = planned.text()
    assert len(text.encode()) < LONGEST_WORD / 4
    read = RunPlan.read(text)
    assert (read.flags, read.hosts) == (flags, shapes)
    assert replace(read, flags=(), hosts=()) == replace(RunPlan.read(PLAN.text()), flags=(), hosts=())


@pytest.mark.parametrize("text", ["zlib:", "zlib:!!", "zlib:AAAA", "{}"])
def test_a_damaged_plan_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"\A--plan: not the plan of a run: .+\Z"):
        RunPlan.read(text)
