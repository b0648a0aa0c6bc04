"""The launcher of ssh reports what becomes of each host, tries again where that helps, and leaves no process behind.

A program in place of `ssh` runs the remote command on this machine, and one in place of Python is the agent.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.settings import HostSettings
from orchestra.launch import ssh
from orchestra.launch.protocol import HostEvent, HostRequest
from orchestra.launch.ssh import SshLauncher

SSH = """
import os, pathlib, sys
folder = pathlib.Path(__file__).parent
host = sys.argv[sys.argv.index("--") + 1]
with (folder / "tries").open("a") as file:
    print(host, sys.argv[sys.argv.index("-R") + 1] if "-R" in sys.argv else "no tunnel", file=file)
match host:
    case "down":
        print("ssh: connect to host down port 22: Connection refused", file=sys.stderr); sys.exit(255)
    case "locked":
        print("root@locked: Permission denied (publickey).", file=sys.stderr); sys.exit(255)
    case "booting" if not (folder / "booted").exists():
        print("ssh: connect to host booting port 22: Connection refused", file=sys.stderr); sys.exit(255)
    case "slow":
        (folder / "logging-in").open("a").write(f"{os.getpid()}\\n")
        while not (folder / "let-in").exists(): os.sched_yield()
print("Welcome. You have mail.", flush=True)
os.execvp("sh", ["sh", "-c", sys.argv[-1]])
"""
AGENT = """#!{python}
import json, os, pathlib, sys
folder, slot = pathlib.Path(__file__).parent, sys.argv[sys.argv.index("--slot") + 1]
token = json.loads(sys.stdin.readline())
(folder / f"agent-{{slot}}").write_text(json.dumps([os.getpid(), token]))
print("here I am", flush=True)
while line := sys.stdin.readline():
    pass
if slot == "9":
    print("cannot go on", file=sys.stderr)
    sys.exit(77)
"""
TOKEN = json.dumps({"run": "game", "secret": "ab" * 32, "join": ["tls://10.0.0.1:41000", "tls://[fd00::1]:41000"]})


class Lab:
    """A launcher whose hosts are this machine, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ssh.py").write_text(SSH)
        agent = folder / "agent.py"
        agent.write_text(AGENT.format(python=sys.executable))
        agent.chmod(0o755)
        self.events: list[HostEvent] = []
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def launched(self, *names: str, token: str = TOKEN, **settings: Any) -> AsyncIterator[SshLauncher]:
        hosts = [HostSettings(slot, name, python=str(self.folder / "agent.py")) for slot, name in enumerate(names, 1)]
        launcher = SshLauncher(hosts, ssh=f"{sys.executable} {self.folder / 'ssh.py'}", **settings)
        plan = RunPlan(experiment=None, flags=(), seed=0, run_directory=self.folder)
        submission = launcher.submission(plan, [HostRequest(host.slot, host.name) for host in hosts])
        following = asyncio.create_task(self._follow(launcher))
        try:
            await launcher.start(submission, token)
            yield launcher
        finally:
            await launcher.stop(5.0)
            await following

    async def _follow(self, launcher: SshLauncher) -> None:
        async for event in launcher.events():
            async with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def until_running(self, *slots: int) -> None:
        """Wait until agents have read their tokens; each logs in first, so its event comes before."""
        await self.until(lambda: {event.slot for event in self.events if event.state == "started"} >= set(slots))
        while not all((self.folder / f"agent-{slot}").exists() and self.agent(slot) for slot in slots):  # noqa: ASYNC110 (other processes write the files)
            await asyncio.sleep(0.01)

    def agent(self, slot: int) -> Any:
        """Return the process and the token of an agent, or None while it writes them."""
        text = (self.folder / f"agent-{slot}").read_text()
        return json.loads(text) if text else None

    def of(self, slot: int) -> list[tuple[str, str]]:
        return [(event.state, event.reason) for event in self.events if event.slot == slot]

    @property
    def tries(self) -> list[str]:
        return (self.folder / "tries").read_text().splitlines()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(ssh, "BACKOFF_S", (0.01,))
    lab = Lab(tmp_path)
    yield lab
    mine = psutil.Process().children(recursive=True)
    left = [process for process in mine if str(tmp_path) in " ".join(process.cmdline())]
    assert not left, f"processes were left behind: {left}"


Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_an_agent_gets_the_token_on_its_input_which_ends_with_the_launcher(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1", "cpu2"):
            await lab.until_running(1, 2)
            assert all(psutil.pid_exists(lab.agent(slot)[0]) for slot in (1, 2))
        assert not any(psutil.pid_exists(lab.agent(slot)[0]) for slot in (1, 2))

    run(main())
    assert lab.events[:2] == [HostEvent(1, "asked", "cpu1 by ssh"), HostEvent(2, "asked", "cpu2 by ssh")]
    assert lab.of(1) == lab.of(2) == [("asked", ""), ("started", "")]
    tokens = [lab.agent(slot)[1] for slot in (1, 2)]
    assert all(token["secret"] == "ab" * 32 for token in tokens)
    assert all(token["join"][:2] == ["tls://10.0.0.1:41000", "tls://[fd00::1]:41000"] for token in tokens)


def test_each_host_has_a_tunnel_of_its_own_as_the_last_address_of_its_token(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1", "cpu2"):
            await lab.until_running(1, 2)

    run(main())
    forwards = dict(line.split(" ", 1) for line in lab.tries)
    sockets = {name: forward.partition(":")[0] for name, forward in forwards.items()}
    assert {forward.partition(":")[2] for forward in forwards.values()} == {"127.0.0.1:41000"}
    assert [lab.agent(slot)[1]["join"][2:] for slot in (1, 2)] == [
        [f"tunnel://{sockets['cpu1']}"],
        [f"tunnel://{sockets['cpu2']}"],
    ]
    assert sockets["cpu1"] != sockets["cpu2"]


def test_with_tunnel_the_agent_knows_no_other_address(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1", tunnel=True):
            await lab.until_running(1)

    run(main())
    (address,) = lab.agent(1)[1]["join"]
    assert address.startswith("tunnel:///tmp/orchestra-")


def test_a_head_without_a_port_has_no_tunnel(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1", token=json.dumps({"join": ["unix:///tmp/x"]})):
            await lab.until_running(1)

    run(main())
    assert lab.tries == ["cpu1 no tunnel"]
    assert lab.agent(1)[1]["join"] == ["unix:///tmp/x"]


def test_a_host_that_refuses_is_tried_four_times_and_then_given_up(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("down", "cpu2"):
            await lab.until(lambda: lab.of(1)[-1:] and lab.of(1)[-1][0] == "ended")
            await lab.until_running(2)

    run(main())
    assert lab.of(1) == [
        ("asked", ""),
        ("asked", "Connection refused, 1 try"),
        ("asked", "Connection refused, 2 tries"),
        ("asked", "Connection refused, 3 tries"),
        ("ended", "Connection refused, 4 tries"),
    ]
    assert [event.again for event in lab.events if event.state == "ended"] == [False]
    assert lab.of(2) == [("asked", ""), ("started", "")]  # what happens to one host is nothing to another


def test_a_wrong_key_is_tried_once(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("locked"):
            await lab.until(lambda: lab.of(1)[-1:] == [("ended", "Permission denied (publickey)")])

    run(main())
    assert [event.again for event in lab.events] == [True, False]
    assert len(lab.tries) == 1


def test_a_host_that_is_asked_for_again_is_awaited_while_it_boots(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("booting") as launcher:
            await lab.until(lambda: lab.of(1)[-1:] and lab.of(1)[-1][0] == "ended")
            await launcher.again(1)
            await lab.until(lambda: lab.of(1)[-1] == ("asked", "Connection refused, 6 tries"))
            (lab.folder / "booted").touch()
            await lab.until_running(1)

    run(main())


def test_a_killed_ssh_is_reported_and_another_agent_started_on_request(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1") as launcher:
            await lab.until_running(1)
            first = lab.agent(1)[0]
            psutil.Process(first).kill()  # the stand-in for ssh becomes the agent: one process
            await lab.until(lambda: lab.of(1)[-1] == ("ended", "ssh was killed by SIGKILL"))
            (lab.folder / "agent-1").unlink()
            await launcher.again(1)
            await lab.until(lambda: lab.of(1)[-1][0] == "started")
            await lab.until_running(1)
            assert lab.agent(1)[0] != first

    run(main())
    assert [event.again for event in lab.events if event.state == "ended"] == [True]


def test_the_ssh_of_a_silent_agent_is_ended_before_another_one_starts(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1") as launcher:
            await lab.until_running(1)
            first = lab.agent(1)[0]
            (lab.folder / "agent-1").unlink()
            await launcher.again(1)
            assert not psutil.pid_exists(first)
            await lab.until_running(1)

    run(main())


def test_an_exit_code_of_the_agent_is_passed_on_with_its_last_words(run: Run, lab: Lab) -> None:
    async def main() -> None:
        names = [f"cpu{number}" for number in range(1, 10)]
        async with lab.launched(*names) as launcher:
            await lab.until_running(9)
            launcher._attempts[9].close_input()
            await lab.until(lambda: lab.of(9)[-1][0] == "ended")

    run(main())
    (event,) = [event for event in lab.events if event.state == "ended"]
    assert (event.slot, event.code, event.again) == (9, 77, False)
    assert event.reason == "the agent exited with code 77: cannot go on"


def test_no_more_log_ins_than_allowed_are_under_way_at_a_time(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched(*["slow"] * 5, parallel=2):
            logging_in = lab.folder / "logging-in"
            while not (logging_in.exists() and len(logging_in.read_text().split()) == 2):  # noqa: ASYNC110 (other processes write the files)
                await asyncio.sleep(0.01)
            assert not [event for event in lab.events if event.state == "started"]
            assert len(lab.tries) == 2
            (lab.folder / "let-in").touch()
            await lab.until_running(1, 2, 3, 4, 5)  # a `ssh` that has logged in makes room for the next

    run(main())
    assert len(lab.tries) == 5


def test_a_launcher_that_stops_while_hosts_are_tried_leaves_nothing(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("slow", "down", "cpu3", parallel=1):
            await lab.until(lambda: len(lab.events) == 3)

    run(main())
    assert [event.state for event in lab.events] == ["asked"] * 3


def test_a_missing_ssh_program_is_the_reason(run: Run, lab: Lab) -> None:
    async def main() -> list[HostEvent]:
        launcher = SshLauncher([HostSettings(1, "cpu1")], ssh="no-such-ssh -v")
        plan = RunPlan(experiment=None, flags=(), seed=0, run_directory=lab.folder)
        await launcher.start(launcher.submission(plan, [HostRequest(1)]), TOKEN)
        events = []
        async for event in launcher.events():
            events.append(event)
            if event.state == "ended":
                break
        await launcher.stop(1.0)
        return events

    *_, last = run(main())
    assert (last.reason, last.again) == ("cannot run 'no-such-ssh': No such file or directory", False)


def test_the_token_is_in_no_command_line_and_no_environment(run: Run, lab: Lab) -> None:
    async def main() -> None:
        async with lab.launched("cpu1"):
            await lab.until_running(1)
            process = psutil.Process(lab.agent(1)[0])
            assert "ab" * 32 not in " ".join([*process.cmdline(), *process.environ().values()])

    run(main())
    assert "ab" * 32 not in os.environ.values()
