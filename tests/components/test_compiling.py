"""Functions are compiled once for each machine and source, by one process."""

import importlib
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from components.envs.skirmish import compiling
from components.envs.skirmish.compiling import COMPILED, CompiledPackage
from components.envs.skirmish.kernel import CODE, batch, views


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.py").write_text("a = 1\n")
    (folder / "two.py").write_text("b = 2\n")
    return folder


@pytest.fixture
def package(sources, tmp_path):
    return CompiledPackage("loops", sources, [tmp_path / "caches"])


needs_compiler = pytest.mark.skipif(not COMPILED, reason="nothing is compiled in this run")


def test_a_change_in_any_file_and_a_new_one_give_another_cache(sources, package):
    names = {package.fingerprint()}
    (sources / "two.py").write_text("b = 3\n")
    names.add(package.fingerprint())
    (sources / "three.py").write_text("")
    names.add(package.fingerprint())
    (sources / "one.py").rename(sources / "zero.py")
    names.add(package.fingerprint())
    assert len(names) == 4


def test_the_same_files_give_the_same_cache(sources, package):
    before = package.fingerprint()
    (sources / "one.py").touch()
    assert package.fingerprint() == before


@needs_compiler
def test_a_change_in_a_function_that_is_called_from_another_file_is_seen(tmp_path):
    folder = tmp_path / "loops"
    folder.mkdir()
    (folder / "caller.py").write_text(
        "from compiling_of import code\nfrom called import called\n@code.compiled\ndef told(x):\n    return called(x)\n"
    )
    (folder / "compiling_of.py").write_text(
        "from pathlib import Path\nfrom components.envs.skirmish.compiling import CompiledPackage\n"
        "code = CompiledPackage('loops', Path(__file__).parent)\n"
    )

    def told(summand):
        (folder / "called.py").write_text(
            f"from compiling_of import code\n@code.compiled\ndef called(x):\n    return x + {summand}\n"
        )
        asked = "import sys; sys.path.insert(0, sys.argv[1]); import caller; print(caller.told(1))"
        run = [sys.executable, "-B", "-c", asked, str(folder)]
        return subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout

    assert [told(1), told(2)] == ["2\n", "3\n"]


@needs_compiler
def test_the_cache_lies_in_the_first_place_that_can_be_written_to(sources, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    home = CompiledPackage("loops", sources, [occupied, tmp_path / "good", tmp_path / "unused"]).home
    assert home.parent == tmp_path / "good"
    assert home.is_dir()
    assert not (tmp_path / "unused").exists()


@needs_compiler
def test_where_no_place_can_be_written_to_there_still_is_one(sources, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    home = CompiledPackage("loops", sources, [occupied]).home
    assert home.is_dir()
    shutil.rmtree(home)


class Stream(io.StringIO):
    """Notes what is printed, and sets `waiting` when a process says that it waits."""

    def __init__(self):
        super().__init__()
        self.waiting = threading.Event()

    def write(self, text):
        if "Waiting" in text:
            self.waiting.set()
        return super().write(text)


@needs_compiler
def test_one_process_compiles_while_the_others_wait_and_nothing_is_compiled_twice(sources, tmp_path):
    compiling, may_end, stream, compiled = threading.Event(), threading.Event(), Stream(), []

    def call():
        compiling.set()
        assert may_end.wait(30)
        compiled.append(threading.current_thread().name)

    packages = [CompiledPackage("loops", sources, [tmp_path / "caches"]) for _ in range(3)]  # one for each process
    threads = [
        threading.Thread(target=package.compile_once, args=("the loops", {"call": call}, stream), name=name)
        for package, name in zip(packages, ("first", "second"), strict=False)
    ]
    threads[0].start()
    assert compiling.wait(30)
    threads[1].start()
    assert stream.waiting.wait(30)
    may_end.set()
    for thread in threads:
        thread.join()
    packages[2].compile_once("the loops", {"call": call}, stream)
    assert compiled == ["first"]
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["Compiling", "Waiting", "Compiled"]


BESIDE = """
import os
from pathlib import Path
from components.envs.skirmish.compiling import CompiledPackage

HERE = Path(__file__).parent
CODE = CompiledPackage("loops", HERE, [HERE / "caches"])

def add(x, y):
    return x + y

add = CODE.compiled(add, internal=True)

@CODE.compiled
def double(x):
    return add(x, x)

@CODE.compiled
def triple(x):
    return add(add(x, x), x)

def compile_double():
    double(1)
    with (HERE / "done").open("w") as pipe:
        print(os.getpid(), file=pipe)

def compile_for_ever():
    compile_double()
    (HERE / "never").open().close()
"""


@pytest.fixture
def loops(tmp_path, monkeypatch):
    """A package of which another process compiles a function, and then says its process ID in the pipe `done`."""
    (tmp_path / "loops_beside.py").write_text(BESIDE)
    for name in ("done", "never"):
        os.mkfifo(tmp_path / name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiling, "_processors", lambda: 2)
    yield importlib.import_module("loops_beside")
    del sys.modules["loops_beside"]


@needs_compiler
def test_a_second_process_compiles_some_of_the_functions(loops):
    calls = {"wait": (loops.HERE / "done").read_text, "double": lambda: loops.double(1)}
    stream = io.StringIO()
    loops.CODE.compile_once("the loops", calls, stream, "loops_beside:compile_double")
    assert sum(loops.double.stats.cache_hits.values()) == 1
    assert sum(loops.double.stats.cache_misses.values()) == 0
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["Compiling", "Compiled"]


@needs_compiler
def test_an_internal_function_that_a_second_process_compiled_is_taken_from_the_cache(loops):
    calls = {"wait": (loops.HERE / "done").read_text, "triple": lambda: loops.triple(1)}
    loops.CODE.compile_once("the loops", calls, io.StringIO(), "loops_beside:compile_double")
    assert sum(loops.add.stats.cache_hits.values()) == 1
    assert sum(loops.triple.stats.cache_misses.values()) == 1
    assert loops.triple(4) == 12


@needs_compiler
def test_the_simulator_keeps_what_both_processes_compile_on_disk():
    assert Path(batch.show_battle.stats.cache_path).is_relative_to(CODE.home)
    assert views.observe.stats.cache_path is None  # the code of `show_battle` has its


@needs_compiler
def test_the_second_process_ends_with_the_first_ones_work(loops):
    pids = []

    def fail():
        pids.append(int((loops.HERE / "done").read_text()))
        raise MemoryError

    with pytest.raises(MemoryError):
        loops.CODE.compile_once("the loops", {"fail": fail}, io.StringIO(), "loops_beside:compile_for_ever")
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@needs_compiler
def test_on_one_processor_one_process_compiles(loops, monkeypatch):
    monkeypatch.setattr(compiling, "_processors", lambda: 1)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a second process was started"))
    calls = {"double": lambda: loops.double(1)}
    loops.CODE.compile_once("the loops", calls, io.StringIO(), "loops_beside:compile_double")
    assert sum(loops.double.stats.cache_misses.values()) == 1


@needs_compiler
def test_progress_on_a_terminal_names_the_function_that_is_compiled(package, monkeypatch):
    stream = Stream()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    package.compile_once("the loops", {"first_loop": list, "second_loop": list}, stream)
    assert "\r0/2  first_loop" in stream.getvalue()
    assert "\r1/2  second_loop" in stream.getvalue()
    assert str(package.home) in stream.getvalue()


def test_a_package_under_two_names_has_two_caches(sources, tmp_path):
    names = {CompiledPackage("loops", sources, [tmp_path], module=name).fingerprint() for name in ("one", "two")}
    assert len(names) == 2  # numba imports the module that it has noted


@needs_compiler
def test_what_one_process_fails_to_compile_the_next_one_compiles(package):
    def fail():
        raise MemoryError

    with pytest.raises(MemoryError):
        package.compile_once("the loops", {"fail": fail}, io.StringIO())
    compiled = []
    package.compile_once("the loops", {"call": lambda: compiled.append(True)}, io.StringIO())
    assert compiled == [True]


@needs_compiler
def test_all_but_the_newest_five_caches_of_other_sources_are_removed(package):
    caches = package.home.parent
    for age in range(7):
        (caches / f"loops-{age}").mkdir()
        os.utime(caches / f"loops-{age}", (1000 - age, 1000 - age))
    (caches / "something-else").mkdir()
    package.compile_once("the loops", {}, io.StringIO())
    kept = {f"loops-{age}" for age in range(5)} | {package.home.name, "something-else"}
    assert {path.name for path in caches.iterdir()} == kept


@needs_compiler
def test_equal_sources_in_two_folders_are_compiled_once(tmp_path):
    source = (
        "from pathlib import Path\nfrom components.envs.skirmish.compiling import CompiledPackage\n"
        "CODE = CompiledPackage('loops', Path(__file__).parent, [Path(__file__).parents[1] / 'caches'])\n"
        "@CODE.compiled\ndef double(x):\n    return 2 * x\n"
    )
    misses = []
    for name in ("checkout", "unpacked"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "doubling.py").write_text(source)
        asked = (
            "import sys; sys.path.insert(0, sys.argv[1]); from doubling import double; assert double(4) == 8;"
            "print(sum(double.stats.cache_misses.values()))"
        )
        run = [sys.executable, "-B", "-c", asked, str(tmp_path / name)]
        told = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
        misses.append(told.stdout.strip())
    assert misses == ["1", "0"]


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


@needs_compiler
def test_another_process_compiles_nothing_whatever_the_scenario_and_the_number_of_battles():
    from components.envs import Skirmish

    Skirmish("3m", 1).reset()
    run = subprocess.run(
        [sys.executable, "-c", AGAIN], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [f"{name} 1 0" for name in ("reset_all", "step_all", "show_all", "first_refused")]
    assert run.stderr == ""


LEARN_AGAIN = """
import sys
from components.policies import kernel
from components.policies.kernel import acting
from components.sparse.kernel import loops
kernel.prepare()
acting._call()
loops._call()
packages = "components.policies.kernel", "components.sparse.kernel"
modules = [module for name, module in sys.modules.items() if name.startswith(packages)]
functions = [it for module in modules for it in vars(module).values() if hasattr(it, "stats")]
print(len(functions) > 11, sum(sum(function.stats.cache_misses.values()) for function in functions))
"""


@needs_compiler
def test_another_process_compiles_no_loop_of_learning_or_of_sparse_fields(capfd):
    from components.warm_up import command

    assert command([]) == 0
    assert (
        capfd.readouterr().out
        == "The battle simulator and the loops of acting, of learning and of sparse fields are compiled.\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", LEARN_AGAIN], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == ("True 0\n", "")
