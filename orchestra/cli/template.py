"""`orchestra template`: forks the launched processes of a run. `orchestra run` starts it; users do not."""

import socket
from collections.abc import Callable
from typing import NoReturn

from orchestra.hosts.template import Template
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.launched import preloads_of
from orchestra.runs.launched_node import clear
from orchestra.runs.runner import run_loop


def command_with(become: Callable[[list[str]], NoReturn]) -> Callable[[list[str]], int]:
    """Return the command; `become` carries out the command of a forked process."""

    def command(arguments: list[str]) -> int:
        """Fork the launched processes of a run on request."""
        parser = FlagParser(prog="orchestra template", description="Fork the launched processes of a run.")
        parser.add_argument("--control", type=int, required=True, help="the file descriptor of the socket to the root")
        parser.add_argument("--root", required=True, help="the address of the root")
        options = parser.parse_strictly(arguments)
        with socket.socket(fileno=options.control) as control:
            in_order = Template(control, preloads_of, become).serve()
        if not in_order:
            run_loop(clear(options.root))
        return 0

    return command
