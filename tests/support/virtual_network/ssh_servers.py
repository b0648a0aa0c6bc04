"""A ssh server on each host of a virtual network, with keys and a configuration of their own.

The account is the one that runs the tests, and nothing in its home folder is read or written.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Self

from virtual_network.namespaces import Host, HostProcess, until

PORT = 2222


@cache
def why_unavailable() -> str:
    """Return why this machine cannot run ssh servers; empty if it can."""
    if missing := [name for name in ("ssh", "ssh-keygen", "sshd") if _program(name) is None]:
        return f"there is no program {', '.join(missing)}: install openssh-client and openssh-server"
    return ""


class SshServers:
    """Servers on `hosts` while the block of `with` runs.

    The client's configuration knows each host by its name, and by the names of hosts with a defect:

    - `refused`: nothing listens at its port
    - `wrong-key`: the client offers a key that the server does not know
    - `unknown`: the client does not know the server's key
    - `nowhere`: its name cannot be resolved

    Args:
        folder: where keys and configurations are written.
        hosts: where servers run.
        environment: variables of every program that is started through them.
    """

    def __init__(self, folder: Path, hosts: Sequence[Host], environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.hosts = hosts
        self.environment = dict(environment or {})
        self.config = folder / "ssh_config"
        self.log = folder / "sshd.log"
        self._servers: list[HostProcess] = []

    @property
    def client(self) -> str:
        """The `ssh` command with this configuration, as one would type it."""
        return f"ssh -F {self.config}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for key in ("user", "stranger", *(f"{host.name}.host" for host in self.hosts)):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", str(self.folder / key)]
            subprocess.run(words, check=True)
        self._write_client_configuration()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the server insists on it
        with contextlib.ExitStack() as stack:
            for host in self.hosts:
                self._servers.append(self._start(host))
                stack.callback(self._servers[-1].close)
            for host, server in zip(self.hosts, self._servers, strict=True):
                until(partial(_listens, server), 20, f"sshd of {host.name} does not listen")
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers:
            server.close()

    def pid(self, host: Host) -> int:
        """Return the process of a host's server."""
        return int(self._servers[self.hosts.index(host)].process.pid)

    def _start(self, host: Host) -> HostProcess:
        configuration = self.folder / f"{host.name}.sshd_config"
        lines = [
            f"Port {PORT}",
            f"ListenAddress {host.address}",
            f"HostKey {self.folder / f'{host.name}.host'}",
            f"AuthorizedKeysFile {self.folder / 'user.pub'}",
            "StrictModes no",  # the folders of tests belong to others, too
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            "UseDNS no",
            "PrintMotd no",
            "PidFile none",
        ]
        if self.environment:
            lines.append("SetEnv " + " ".join(f'"{name}={value}"' for name, value in self.environment.items()))
        configuration.write_text("\n".join(lines) + "\n")
        program = _program("sshd")
        assert program is not None
        return HostProcess(host, [program, "-D", "-e", "-f", str(configuration)])

    def _write_client_configuration(self) -> None:
        known = self.folder / "known_hosts"
        keys = {host: (self.folder / f"{host.name}.host.pub").read_text().split()[:2] for host in self.hosts}
        known.write_text("".join(f"[{host.address}]:{PORT} {' '.join(key)}\n" for host, key in keys.items()))
        first = self.hosts[0].address
        defects = {
            "refused": [f"HostName {first}", f"Port {PORT + 1}"],
            "wrong-key": [f"HostName {first}", f"Port {PORT}", f"IdentityFile {self.folder / 'stranger'}"],
            "unknown": [f"HostName {first}", f"Port {PORT}", "UserKnownHostsFile /dev/null"],
            "nowhere": ["HostName nowhere.invalid"],
        }
        good = {host.name: [f"HostName {host.address}", f"Port {PORT}"] for host in self.hosts}
        sections = [
            f"Host {name}\n" + "".join(f"  {line}\n" for line in lines) for name, lines in (good | defects).items()
        ]
        general = [
            "Host * !wrong-key",
            f"  IdentityFile {self.folder / 'user'}",
            "Host *",
            "  IdentitiesOnly yes",
            "  IdentityAgent none",
            f"  UserKnownHostsFile {known}",
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
        ]
        self.config.write_text("".join(sections) + "\n".join(general) + "\n")


def _listens(server: HostProcess) -> bool:
    return "listening on" in server.err


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))
