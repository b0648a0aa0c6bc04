"""An agent's folders are private, are gone with it, and a dead agent's are removed by the next one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestra.errors import CannotWrite, UsageError
from orchestra.hosts import scratch
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.collected_code import make
from orchestra.hosts.scratch import Owner, Scratch, check_room


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def mine(base: Path) -> Iterator[Scratch]:
    scratch = Scratch.claim("run", 1, base)
    yield scratch
    scratch.close()


def bundle(tmp_path: Path, number: int) -> Bundle:
    file = tmp_path / f"scratch_{number}" / "study.py"
    file.parent.mkdir()
    file.write_text(f"NUMBER = {number}")
    return make(file, installed=True)


def test_the_folders_are_private_and_named_after_user_run_and_slot(base: Path, mine: Scratch) -> None:
    assert mine.folder == base / f"orchestra-{os.getuid()}" / "run-1"
    for folder in (mine.home, mine.folder, mine.sockets):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert Owner(**json.loads((mine.folder / "owner.json").read_bytes())) == Owner.me()


def test_nothing_stays_of_an_agent_that_ends(base: Path) -> None:
    mine = Scratch.claim("run", 1, base)
    (mine.folder / "logs").mkdir()
    mine.close()
    assert not mine.folder.exists()
    assert not mine.sockets.exists()


def test_two_agents_of_one_slot_have_folders_of_their_own(base: Path, mine: Scratch) -> None:
    other = Scratch.claim("run", 1, base)
    assert other.folder != mine.folder
    assert other.sockets != mine.sockets
    other.close()
    assert mine.folder.exists()
    assert mine.sockets.exists()


def test_the_folders_of_a_killed_agent_are_removed_by_the_next_one(base: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from orchestra.hosts.scratch import Scratch;"
        "mine = Scratch.claim('other-run', 2, Path(sys.argv[1])); print(mine.folder, mine.sockets, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(base)], text=True, capture_output=True)
    left = [Path(word) for word in killed.stdout.split()]
    assert len(left) == 2
    assert all(folder.exists() for folder in left)
    Scratch.claim("run", 1, base).close()
    assert not any(folder.exists() for folder in left)


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({}, False),
        ({"started": 1}, True),  # the process id is another process's now
        ({"boot_id": "before the machine started again"}, True),
        ({"pid_namespace": 1, "started": 1}, False),  # a container that shares the folder
        ({"machine": "another", "boot_id": "its own"}, False),
    ],
)
def test_a_folder_is_a_dead_agents_only_if_its_process_certainly_ended(
    base: Path, mine: Scratch, change: dict[str, object], dead: bool
) -> None:
    folder = mine.home / "other-run-3"
    folder.mkdir()
    (folder / "owner.json").write_text(json.dumps(asdict(replace(Owner.me(), **change))))
    Scratch.claim("run", 4, base).close()
    assert folder.exists() is not dead


def test_a_folder_that_another_user_could_have_made_is_refused(base: Path) -> None:
    (base / "trap").mkdir()
    (base / f"orchestra-{os.getuid()}").symlink_to(base / "trap")
    with pytest.raises(UsageError, match="is not a folder of this user"):
        Scratch.claim("run", 1, base)


def test_a_scratch_folder_that_cannot_be_written_is_named(base: Path) -> None:
    (base / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"cannot make a folder in '.*file': Not a directory"):
        Scratch.claim("run", 1, base / "file")


@pytest.mark.parametrize("length", [5, 90, 200])
def test_socket_paths_are_short_however_long_the_folder_and_the_node_are_called(tmp_path: Path, length: int) -> None:
    base = tmp_path / ("d" * length)
    base.mkdir()
    mine = Scratch.claim("run", 1, base)
    addresses = [mine.socket_address("w" * count) for count in (5, 100, 120)]
    assert len(set(addresses)) == 3
    assert all(len(address.removeprefix("unix://")) <= 100 for address in addresses)
    mine.close()


def test_code_is_unpacked_once_for_all_agents_of_a_user(tmp_path: Path, base: Path, mine: Scratch) -> None:
    made = bundle(tmp_path, 0)
    code = mine.code(made)
    other = Scratch.claim("another-run", 1, base)
    assert other.known_code(made.digest) == code
    assert other.known_code("0" * 64) is None
    other.close()
    assert code.experiment.read_text() == "NUMBER = 0"


def test_the_newest_five_bundles_stay_and_those_in_use(
    tmp_path: Path, base: Path, mine: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = iter(range(100, 1000, 100))
    used = mine.code(bundle(tmp_path, 0))
    os.utime(used.folder, (0, 0))
    codes = []
    for number in range(1, 8):
        one = Scratch.claim("another-run", number, base)
        codes.append(one.code(bundle(tmp_path, number)))
        one.close()
        os.utime(codes[-1].folder, (age := next(ages), age))
    assert used.folder.exists(), "an agent runs from it"
    assert [code.folder.exists() for code in codes] == [False, False, True, True, True, True, True]
    assert not list(mine.home.glob("code/.*")), "a part of one was left behind"


def test_a_digest_that_is_no_digest_names_no_folder(mine: Scratch) -> None:
    with pytest.raises(UsageError, match="is no digest"):
        mine.known_code("../../escaped")


def test_too_small_a_disk_is_refused_before_anything_is_unpacked(
    tmp_path: Path, mine: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_bavail, f_frsize = 256, 4096

    monkeypatch.setattr(scratch.os, "statvfs", lambda folder: Disk)
    with pytest.raises(CannotWrite, match=rf"^needs 6 MB in '{mine.home}/code', has 1$"):
        check_room(mine.home / "code", 3_600_000)
    made = bundle(tmp_path, 0)
    with pytest.raises(CannotWrite, match=r"^needs 3 MB in .*, has 1$"):
        mine.code(made)
    assert mine.known_code(made.digest) is None
