"""A dry run: what a run would start, send and listen at, as text. Nothing is started, contacted or written."""

import shlex
from collections.abc import Iterator

from rich.filesize import decimal

from orchestra.hosts.bundle import Bundle
from orchestra.runs.api import code_of
from orchestra.runs.hosted_run import launcher_of, requests_of
from orchestra.runs.hosts_options import HostsOptions
from orchestra.runs.plan import PlannedRun
from orchestra.wire.addresses import candidates_of, interfaces, is_loopback, is_wildcard, parse_address

LARGEST = 5
"""Files of the code that are named."""
ANY_PORT = "0"


def described(planned: PlannedRun) -> str:
    """Return what a run would do.

    Raises:
        UsageError: its code cannot go to other hosts.
    """
    text = planned.topology.describe(planned.shapes)
    if planned.hosts is None:
        return text
    code = code_of(planned)
    assert code is not None
    return "\n".join([text, *_listening(planned, planned.hosts), *_code(code), *_submission(planned, planned.hosts)])


def _listening(planned: PlannedRun, options: HostsOptions) -> Iterator[str]:
    assert planned.listen is not None
    beyond = candidates_of(planned.listen)[1:]
    yield "the head listens for other hosts at"
    for address in beyond:
        place, _, port = address.rpartition(":")
        yield f"  {place}, any free port" if port == ANY_PORT else f"  {address}"
        host = parse_address(f"{place}:1").host
        if options.advertise:
            yield f"  reached at {', '.join(options.advertise)}"
        elif not is_loopback(host):
            found = [*map(str, interfaces())] if is_wildcard(host) else [host]
            yield f"  reached at {', '.join(found) or 'no address of this machine'}"
    if planned.launch.unencrypted:
        yield "TLS is off: messages to other hosts travel unencrypted"
    elif planned.launch.tls_dir is not None:
        yield f"TLS is on, with the certificates in {planned.launch.tls_dir}"
    else:
        yield "TLS is on, with certificates of the run's own"


def _code(code: Bundle) -> Iterator[str]:
    yield f"each host gets the code {code.digest}: {len(code.contents())} files, {decimal(code.nbytes)}"
    for name, nbytes in code.largest(LARGEST):
        yield f"  {name}, {decimal(nbytes)}"


def _submission(planned: PlannedRun, options: HostsOptions) -> Iterator[str]:
    submission = launcher_of(options).submission(planned.launch, requests_of(options))
    for name, content in submission.files.items():
        yield f"--launch {options.engine} writes {name}:"
        yield from (f"  {line}" for line in content.splitlines())
    if submission.commands:
        yield f"--launch {options.engine} runs, each with the join token on its standard input:"
        yield from (f"  {shlex.join(command)} < <token>" for command in submission.commands)
