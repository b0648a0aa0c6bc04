"""`orchestra prepare`: prepares once on a host what its processes need. The agent of the host starts it."""

from orchestra.hosts.lifeline import Lifeline
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.launched import topology_of


def command(arguments: list[str]) -> int:
    """Compile what the processes of a run need on this host."""
    parser = FlagParser(prog="orchestra prepare", description="Compile what the processes of a run need on this host.")
    parser.add_argument("--plan", required=True, help="the plan of the run, as JSON")
    options = parser.parse_strictly(arguments)
    with Lifeline(0):
        topology_of(RunPlan.read(options.plan)).prepare(everywhere=True)
    return 0
