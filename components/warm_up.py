"""`orchestra warm-up`: compile ahead of time what a machine's first run would compile."""

from components.envs import Skirmish
from components.policies import devices, kernel
from components.policies.kernel import acting
from components.sparse import loops
from orchestra import FlagParser

_HELP = """Compile the battle simulator and the loops of acting, of learning and of sparse fields for this machine.

The first run does the same, which takes half a minute. The result is cached on disk, for every later process of the
machine and for every image made of it. Set NUMBA_CACHE_DIR to choose the folder."""


def command(arguments: list[str]) -> int:
    """Compile ahead of time what a machine's first run would compile."""
    FlagParser(prog="orchestra warm-up", description=_HELP, usage="orchestra warm-up").parse_strictly(arguments)
    Skirmish("3m", 1).prepare()
    loops()
    kernel.prepare()
    acting.prepare()
    print("The battle simulator and the loops of acting, of learning and of sparse fields are compiled.")
    if (advice := devices.advice()) is not None:
        print(advice)
    return 0
