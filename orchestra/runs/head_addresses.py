"""The addresses of the head of a run over several hosts: it listens at one for this host, and at one for the others."""

from orchestra.errors import UsageError
from orchestra.runs.hosts_options import HostsOptions
from orchestra.wire.addresses import ANY, advertised, candidates_of, is_loopback, parse_address, parse_ports


def head_address(listen: str, default: str, hosts: HostsOptions, *, encrypted: bool) -> str:
    """Return where the head listens: first for processes of this host, then for other hosts.

    Args:
        listen: as the user says. A Unix socket or a loopback address is for this host, any other one for the others.
        default: what `listen` is if the user says nothing.
        hosts: the options for the other hosts.
        encrypted: whether the run goes over TLS.

    Raises:
        UsageError: the settings contradict each other, or one is malformed.
    """
    scheme, port = "tls" if encrypted else "tcp", hosts.port
    here, others = default, ""
    if listen != default:
        beyond = listen.startswith(("tcp://", "tls://")) and not is_loopback(parse_address(listen).host)
        here, others = (default, listen) if beyond else (listen, "")
    if others and port:
        raise UsageError(f"--port {port}: --listen {others} has a port already")
    if others and not others.startswith(f"{scheme}://"):
        raise UsageError(f"--listen: {others} must begin with {scheme}:// for the other hosts; --tls off turns TLS off")
    if port:
        parse_ports(port)
    others = others or f"{scheme}://{'127.0.0.1' if hosts.engine == 'local' else ANY}:{port or 0}"
    if hosts.advertise:
        advertised(f"{scheme}://{ANY}:1", hosts.advertise)  # or say what is wrong with it
    return f"{here},{others}"


def address_beyond(hosts: HostsOptions, *, encrypted: bool) -> str:
    """Return where a node listens that is dialled from other hosts, and is not the root.

    Its port is of the range of `--port`, if that is one: a firewall may let these through alone.

    Args:
        hosts: the options for the other hosts.
        encrypted: whether the run goes over TLS.
    """
    host = "127.0.0.1" if hosts.engine == "local" else ANY
    return f"{'tls' if encrypted else 'tcp'}://{host}:{hosts.port if '-' in hosts.port else 0}"


def address_here(listening: str) -> str:
    """Return the address at which processes of this host reach the head."""
    return candidates_of(listening)[0]


def addresses_for_others(listening: str) -> tuple[str, ...]:
    """Return the candidates at which other hosts reach the head, best first."""
    return candidates_of(listening)[1:]
