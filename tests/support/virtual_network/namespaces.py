"""A network of hosts on one Linux machine: each host is a network namespace with one link to a switch.

Nothing of it exists in the namespace of the machine itself, so networks of several tests have the same addresses and do
not meet. It needs root. The hosts share files, users and process numbers; only their networks are apart.
"""

import contextlib
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Self

SUBNET = "10.231.0"
_numbers = itertools.count()


class NetworkError(Exception):
    """A command that sets up the network failed."""


@cache
def why_unavailable() -> str:
    """Return why this machine cannot have such a network; empty if it can."""
    if platform.system() != "Linux":
        return f"network namespaces need Linux, not {platform.system()}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "tc", "nft", "nsenter") if shutil.which(name) is None]:
        return f"there is no program {', '.join(missing)}: install iproute2, nftables and util-linux"
    try:
        with Network(1):
            return ""
    except NetworkError as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a network."""

    number: int
    """From 1."""
    namespace: str
    switch: str
    """The namespace of the switch, or empty behind a switch that delays."""

    @property
    def name(self) -> str:
        return f"cpu{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number}"

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs `words` on this host. The process keeps its number through it."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *words]

    def pids(self) -> list[int]:
        """Return the processes of this host."""
        return [int(word) for word in _done("ip", "netns", "pids", self.namespace).split()]

    def kill_all(self, but: Sequence[int] = ()) -> None:
        """Kill every process of this host at once, except some."""
        for pid in self.pids():
            if pid not in but:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        """Take the link down."""
        _done("ip", "-n", self.switch, "link", "set", f"port{self.number}", "down")

    def mend(self) -> None:
        """Take the link up."""
        _done("ip", "-n", self.switch, "link", "set", f"port{self.number}", "up")

    def lose(self, *, incoming: float = 0.0, outgoing: float = 0.0, but_port: int = 0) -> None:
        """Drop packets in silence, in place of earlier calls.

        Args:
            incoming: the share of those that arrive, from 0 to 1.
            outgoing: the share of those that leave.
            but_port: a TCP port of either side whose packets all pass; 0 for none.
        """
        rules = ["flush ruleset", "table inet loss {"]
        for hook, share, interface in (("input", incoming, "iifname"), ("output", outgoing, "oifname")):
            passed = f"tcp sport {but_port} accept; tcp dport {but_port} accept;" if but_port else ""
            lost = "drop;" if share >= 1 else f"numgen random mod 10000 < {round(share * 10000)} drop;"
            rules.append(
                f"chain {hook} {{ type filter hook {hook} priority 0; {passed} "
                f"{f'{interface} eth0 {lost}' if share else ''} }}"
            )
        _done(*self.command("nft", "-f", "-"), given="\n".join([*rules, "}"]))

    def refuse(self, *others: "Host") -> None:
        """Let other hosts open no TCP connection to this one, as a firewall does, in place of earlier calls."""
        rules = "".join(f"ip saddr {host.address} tcp flags & (syn | ack) == syn drop; " for host in others)
        chain = f"chain input {{ type filter hook input priority 0; {rules} }}"
        _done(*self.command("nft", "-f", "-"), given=f"flush ruleset\ntable inet firewall {{\n{chain}\n}}")

    def limit(self, mbit: float) -> None:
        """Limit the link to so many Mbit/s in each direction; 0 removes the limit."""
        sides = ((self.namespace, "eth0"), (self.switch, f"port{self.number}"))
        for namespace, device in sides:
            if not mbit:
                _done("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
                continue
            shape = ("root", "tbf", "rate", f"{round(mbit * 1000)}kbit", "burst", "32kbit", "latency", "400ms")
            _done("tc", "-n", namespace, "qdisc", "replace", "dev", device, *shape)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that have arrived and that have left on the link since its beginning."""
        link = json.loads(_done("ip", "-n", self.namespace, "-j", "-s", "link", "show", "eth0"))[0]
        return link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]


@dataclass(slots=True)
class Network:
    """Hosts 1 to `count`, which exist while the block of `with` runs. Their processes are killed at its end.

    Args:
        count: the number of hosts.
        delay_ms: the time that a packet takes from one host to another, if not 0: the links then go through a program.
        mbit: the rate of the links but the first host's, with `delay_ms` only.
    """

    count: int
    delay_ms: float = 0.0
    mbit: float = 0.0
    hosts: list[Host] = field(default_factory=list)
    _namespaces: list[str] = field(default_factory=list)
    _program: "subprocess.Popen[str] | None" = None

    def __enter__(self) -> Self:
        name = f"virtual-{os.getpid()}-{next(_numbers)}"
        try:
            self._make(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getitem__(self, number: int) -> Host:
        """Return host `number`, from 1."""
        return self.hosts[number - 1]

    def close(self) -> None:
        """Kill the processes of all hosts, and remove the network."""
        for host in self.hosts:
            host.kill_all()
        if self._program is not None:
            self._program.terminate()
            self._program.wait(10)
        for namespace in self._namespaces:
            _done("ip", "netns", "del", namespace)
        self._namespaces, self.hosts, self._program = [], [], None

    def _make(self, name: str) -> None:
        switch = self._namespace(f"{name}-switch")
        for number in range(1, self.count + 1):
            namespace = self._namespace(f"{name}-{number}")
            self.hosts.append(Host(number, namespace, "" if self.delay_ms else switch))
        if self.delay_ms:
            self._start_program(switch)
        else:
            _done("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
            _done("ip", "-n", switch, "link", "set", "bridge0", "up")
            for host in self.hosts:
                port = f"port{host.number}"
                pair = ("eth0", "netns", host.namespace, "type", "veth", "peer", "name", port, "netns", switch)
                _done("ip", "link", "add", *pair)
                _done("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
        for host in self.hosts:
            _done("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _done("ip", "-n", host.namespace, "link", "set", "eth0", "up")

    def _namespace(self, name: str) -> str:
        _done("ip", "netns", "add", name)
        self._namespaces.append(name)
        _done("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _start_program(self, switch: str) -> None:
        program = Path(__file__).with_name("delaying_switch.py")
        words = [sys.executable, str(program), str(self.delay_ms), str(self.mbit), *(h.namespace for h in self.hosts)]
        command = ["nsenter", f"--net=/run/netns/{switch}", "--", *words]
        self._program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._program.stdout is not None
        if self._program.stdout.readline() != "ready\n":
            raise NetworkError("the switch that delays did not start")


class HostProcess:
    """A program on a host, whose output is kept."""

    def __init__(self, host: Host, words: Sequence[str], **options: object) -> None:
        self._files: tuple[IO[str], IO[str]] = (tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+"))  # noqa: SIM115 (closed by `close`)
        self.process = subprocess.Popen(
            host.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )

    @property
    def out(self) -> str:
        return _text(self._files[0])

    @property
    def err(self) -> str:
        return _text(self._files[1])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for file in self._files:
            file.close()


@contextlib.contextmanager
def running(host: Host, *words: str, **options: object) -> Iterator[HostProcess]:
    """Run a program on a host while the block runs, and kill it at the end."""
    process = HostProcess(host, words, **options)
    try:
        yield process
    finally:
        process.close()


def until(condition: Callable[[], object], seconds: float, what: str | Callable[[], str]) -> None:
    """Wait until `condition()` holds; fail with `what`, or what it returns, after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _done(*words: str, given: str = "") -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(words, input=given, capture_output=True, text=True)
    if done.returncode:
        raise NetworkError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
