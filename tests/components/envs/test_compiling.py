"""The kernel is compiled once for each machine and source, by one process."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from components.envs.skirmish import kernel
from components.envs.skirmish.kernel.compiling import cache_home, compile_once, fingerprint


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.py").write_text("a = 1\n")
    (folder / "two.py").write_text("b = 2\n")
    return folder


def test_a_change_in_any_file_and_a_new_one_give_another_cache(sources):
    names = {fingerprint(sources)}
    (sources / "two.py").write_text("b = 3\n")
    names.add(fingerprint(sources))
    (sources / "three.py").write_text("")
    names.add(fingerprint(sources))
    (sources / "one.py").rename(sources / "zero.py")
    names.add(fingerprint(sources))
    assert len(names) == 4


def test_the_same_files_give_the_same_cache(sources):
    before = fingerprint(sources)
    (sources / "one.py").touch()
    assert fingerprint(sources) == before


def test_the_cache_lies_in_the_first_place_that_can_be_written_to(sources, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    home = cache_home(sources, [occupied, tmp_path / "good", tmp_path / "unused"])
    assert home.parent == tmp_path / "good"
    assert home.is_dir()
    assert not (tmp_path / "unused").exists()


def test_where_no_place_can_be_written_to_there_still_is_one(sources, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    home = cache_home(sources, [occupied])
    assert home.is_dir()
    home.rmdir()


def test_one_compiles_while_the_others_wait_and_nobody_does_again(tmp_path):
    compiling, may_end, waiting = threading.Event(), threading.Event(), threading.Event()
    compiled, said = [], []

    def compile_all():
        compiling.set()
        assert may_end.wait(30)
        compiled.append(threading.current_thread().name)

    def say(words):
        said.append(words)
        if "waiting" in words:
            waiting.set()

    first = threading.Thread(target=compile_once, args=(tmp_path, compile_all, say), name="first")
    second = threading.Thread(target=compile_once, args=(tmp_path, compile_all, say), name="second")
    first.start()
    assert compiling.wait(30)
    second.start()
    assert waiting.wait(30)
    may_end.set()
    first.join()
    second.join()
    compile_once(tmp_path, compile_all, say)
    assert compiled == ["first"]
    assert [words.split()[0] for words in said] == ["Compiling", "Another", "..."]


def test_who_fails_to_compile_leaves_it_to_the_next(tmp_path):
    def fail():
        raise MemoryError

    with pytest.raises(MemoryError):
        compile_once(tmp_path, fail, len)
    compiled = []
    compile_once(tmp_path, lambda: compiled.append(True), len)
    assert compiled == [True]


def test_caches_of_older_sources_are_removed(tmp_path):
    old, new, other = (tmp_path / name for name in ("skirmish-0", "skirmish-1", "something-else"))
    for folder in (old, new, other):
        folder.mkdir()
    compile_once(new, list, len)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["skirmish-1", "something-else"]


AGAIN = """
from components.envs import Skirmish
from components.envs.skirmish import kernel
env = Skirmish("2s3z", 2)
env.reset()
env.step(env.available[:, :, 1].astype(int))
env.show()
for function in (kernel.reset_all, kernel.step_all, kernel.show_all, kernel.first_refused):
    print(function.__name__, len(function.signatures), sum(function.stats.cache_misses.values()))
"""


@pytest.mark.skipif(not kernel.COMPILED, reason="nothing is compiled in this run")
def test_another_process_compiles_nothing_whatever_the_scenario_and_the_number_of_battles():
    from components.envs import Skirmish

    Skirmish("3m", 1).reset()
    run = subprocess.run(
        [sys.executable, "-c", AGAIN], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [f"{name} 1 0" for name in ("reset_all", "step_all", "show_all", "first_refused")]
    assert run.stderr == ""
