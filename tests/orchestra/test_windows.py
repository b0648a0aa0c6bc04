"""On Windows, where nothing of this package works, it says so."""

import subprocess
import sys

SAID = "orchestra does not run on Windows, since it needs the sockets and processes of Linux: use WSL (wsl --install)"


def pretended(then: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.platform = 'win32'; {then}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


def test_an_import_says_what_to_use_instead() -> None:
    ended = pretended("import orchestra")
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"ImportError: {SAID}\n")


def test_the_command_says_it_in_one_line() -> None:
    ended = pretended("sys.argv = [r'C:\\Scripts\\orchestra.exe']; from orchestra.cli.main import program")
    assert (ended.returncode, ended.stderr) == (1, f"orchestra: {SAID}\n")
