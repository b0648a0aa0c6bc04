"""A run says where it can be joined, to its owner alone, for as long as it goes on; else it is plain why not."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra import Node, RunDirectory, Unreachable, UsageError
from orchestra.clock import RealClock
from orchestra.monitoring.observer import connected
from orchestra.runs.join_file import JoinInfo, find, opened
from orchestra.testing import Probe

SECRET = b"s" * 32


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "errand", 0, clock=RealClock())
    made.write_config(experiment=Path(__file__), flags={}, seed=0, argv=[], clock=RealClock())
    return made


def refusal(run: RunDirectory) -> str:
    with pytest.raises(UsageError) as caught:
        find(run)
    return str(caught.value)


def test_the_join_file_is_readable_by_its_owner_alone_and_gone_after_the_run(directory: RunDirectory) -> None:
    info = JoinInfo("tcp://127.0.0.1:80", SECRET, os.getpid())
    with opened(directory, info):
        assert find(directory) == info
        assert stat.S_IMODE(directory.join.stat().st_mode) == 0o600
    assert refusal(directory) == f"the run in '{directory.path}' is over"
    info = JoinInfo("tls://127.0.0.1:80", SECRET, os.getpid(), "/certificates")
    with opened(directory, info):
        assert find(directory) == info
    assert [path.name for path in directory.path.iterdir() if path.is_file()] == ["config.json"]


def test_the_repr_does_not_show_the_secret() -> None:
    assert (
        repr(JoinInfo("tcp://127.0.0.1:80", SECRET, 7))
        == "JoinInfo(address='tcp://127.0.0.1:80', pid=7, tls_dir='', token=None)"
    )


def test_a_run_in_one_process_says_what_helps_instead(directory: RunDirectory) -> None:
    with opened(directory, None):
        said = refusal(directory)
    assert said.startswith(f"the run in '{directory.path}' is one process, which does not listen")
    assert f"`kill -USR1 {os.getpid()}`" in said


def test_a_run_that_was_killed_is_over(directory: RunDirectory) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    directory.join.write_text(
        json.dumps({"pid": gone.pid, "address": "tcp://127.0.0.1:1", "secret": "00", "tls_dir": "", "token": None})
    )
    assert refusal(directory) == f"the run in '{directory.path}' is over: its process, {gone.pid}, was killed"


def test_what_is_over_says_how_it_ended_and_how_to_continue(directory: RunDirectory) -> None:
    directory.write_ending("interrupted", None)
    assert refusal(directory) == f"the run in '{directory.path}' is over: interrupted"
    (directory.state / "steps-1").mkdir(parents=True)
    directory.write_ending("interrupted", None)
    resume = f"orchestra run --resume {directory.path}"
    assert refusal(directory) == f"the run in '{directory.path}' is over: interrupted; continue with: {resume}"
    directory.write_ending("failed", "cannot save")
    assert refusal(directory).endswith(f" is over: failed (cannot save); continue with: {resume}")
    directory.write_ending("done", None)
    assert refusal(directory) == f"the run in '{directory.path}' is over: done"


@pytest.mark.parametrize(
    "written",
    [
        *("", "{", "[]", "{}", '{"pid": "x"}', '{"pid": 1, "address": "a", "secret": "00"}'),
        '{"pid": 1, "address": "a", "secret": "x", "tls_dir": "", "token": null}',
    ],
)
def test_a_damaged_join_file_is_refused(directory: RunDirectory, written: str) -> None:
    directory.join.write_text(written)
    assert refusal(directory).startswith(f"'{directory.join}' is damaged")


def test_a_join_file_that_cannot_be_read_belongs_to_another_user(directory: RunDirectory) -> None:
    directory.join.mkdir()  # what its mode forbids a root may do all the same; a folder nobody reads
    assert refusal(directory) == (
        f"cannot read '{directory.join}': Is a directory; only the user who started a run can look into it"
    )


def test_the_newest_run_is_the_one_that_was_started_last(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in"):
        RunDirectory.newest(tmp_path)
    for number, name in enumerate(["b", "a", "c"]):
        run = RunDirectory.create(tmp_path, name, 0, clock=RealClock())
        run.write_config(experiment=Path(__file__), flags={}, seed=0, argv=[], clock=RealClock())
        os.utime(run.config_path, ns=(number, 3 - number))
    assert RunDirectory.newest(tmp_path).path.parent.name == "b"


def test_observers_see_every_node_and_are_seen_by_none(run, address_of) -> None:
    async def main() -> None:
        async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
            info = JoinInfo(root.listening, SECRET, os.getpid())
            Probe().start(root, "here")
            async with Node("peer", listen=address_of("tcp"), join=info.address, secret=SECRET).running() as peer:
                Probe().start(peer, "there")
                async with connected(info) as one, connected(info) as other:
                    for observer in (one, other):
                        seen = await observer.status()
                        assert list(seen.answered) == ["root", "peer"]
                        addresses = {cell.address for node in seen.answered.values() for cell in node.cells}
                        assert {"root/here", "peer/there"} <= addresses
                        assert [node.peers for node in seen.answered.values()] == [("peer",), ("root",)]

    run(main())


def test_a_node_that_does_not_answer_in_time_is_named_and_the_others_are_shown(run, address_of) -> None:
    async def main() -> None:
        async with (
            Node("root", listen=address_of("unix"), secret=SECRET).running() as root,
            Node("mute", join=root.listening, secret=SECRET).running(),
            Node("deaf", join=root.listening, secret=SECRET, listen=address_of("unix")).running() as deaf,
            connected(JoinInfo(root.listening, SECRET, os.getpid()), answer_s=1.0) as observer,
        ):
            path = deaf.listening.removeprefix("unix://")
            os.unlink(path)
            with socket.socket(socket.AF_UNIX) as silent:  # the system connects, and nobody looks
                silent.bind(path)
                silent.listen()
                seen = await observer.status()
            assert list(seen.answered) == ["root"]
            assert seen.nodes["deaf"] == "no answer within 1 s"
            assert seen.nodes["mute"] == "mute accepts no connections"

    run(main())


def test_an_observer_learns_that_the_run_is_over(run, address_of) -> None:
    async def main() -> None:
        async with (
            Node("root", listen=address_of("tcp"), secret=SECRET).running() as root,
            connected(JoinInfo(root.listening, SECRET, os.getpid())) as observer,
        ):
            await root.stop()
            assert "the root is gone" in await observer.left

    run(main())


def test_a_run_whose_process_is_stuck_is_told_from_one_that_is_over(run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # the system connects, and nobody looks
            info = JoinInfo(f"tcp://127.0.0.1:{silent.getsockname()[1]}", SECRET, 7)
            with pytest.raises(Unreachable, match=r"does not answer within 0\.1 s; `kill -USR1 7` makes it write"):
                async with connected(info, answer_s=0.05):
                    pytest.fail("nobody let it in")

    run(main())
