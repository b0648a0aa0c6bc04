"""`orchestra token`: prints the join token of a run. It is a secret: pass it on by a pipe, or in a private file."""

import sys
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.hosts.certificates import make_credentials
from orchestra.hosts.token import JoinToken
from orchestra.runs import join_file
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.run_directory import RunDirectory
from orchestra.wire.addresses import candidates_of, is_wildcard, parse_address


def command(arguments: list[str]) -> int:
    """Print the join token of a run, which lets another host join it."""
    parser = FlagParser(
        prog="orchestra token",
        usage="orchestra token RUN_DIR | --new --join ADDRESS",
        description="Print the join token of a running run over several hosts: orchestra token RUN_DIR | ssh newhost "
        "orchestra host --token -. It lets anyone join who has it, so it belongs into a pipe or a private file.",
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN_DIR", help="the run directory")
    parser.add_argument(
        "--new", action="store_true", help="make the token of a run that will begin with orchestra run --token FILE"
    )
    parser.add_argument(
        "--join", metavar="ADDRESS", help="with --new: where the head will be, tls://HOST:PORT, or several with commas"
    )
    parser.add_argument("--name", default="run", help="with --new: the name of the run, for people")
    options = parser.parse_strictly(arguments)
    token = _new(options.name, options.join) if options.new else _of_run(options.run)
    sys.stdout.write(token.line())
    return 0


def _new(name: str, join: str | None) -> JoinToken:
    if not join:
        raise UsageError("--new needs --join ADDRESS: where the head will be, as in tls://head.example.org:41000")
    candidates = candidates_of(join)
    for candidate in candidates:
        if not candidate.startswith(("tls://", "tcp://")):
            raise UsageError(f"--join: {candidate} must begin with tls://, or with tcp:// for --tls off")
        place = parse_address(candidate)
        if is_wildcard(place.host) or place.first != place.last or not place.first:
            raise UsageError(f"--join: {candidate} cannot be dialled: write the HOST and the PORT of the head")
    encrypted = {candidate.startswith("tls://") for candidate in candidates}
    if len(encrypted) != 1:
        raise UsageError("--join: all addresses must begin with tls://, or all with tcp://")
    return JoinToken.new(name, candidates, tls=make_credentials if encrypted.pop() else None)


def _of_run(folder: Path | None) -> JoinToken:
    if folder is None:
        raise UsageError("orchestra token needs the directory of a run, or --new")
    token = join_file.find(RunDirectory.open(folder)).token
    if token is None:
        raise UsageError(f"the run in {str(folder)!r} is on this host alone; start it with --hosts to add others")
    return token
