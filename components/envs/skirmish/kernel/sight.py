"""Sight: which units an agent sees, all around or in a cone that it turns."""

from math import sqrt

from .compiling import inlined
from .constants import Record

LEAST_RUN = 1e-7


@inlined
def in_cone(me: Record, dx: float, dy: float, rules: Record) -> bool:
    """True if the point (dx, dy), relative to an agent, is in its cone, at any distance.

    As published, SMACv2 compares the slopes of two lines instead of two directions. So an agent that looks east also
    sees what is straight behind it.
    """
    if not rules.cone_as_published:
        far = sqrt(dx * dx + dy * dy)
        return bool(far == 0.0 or dx * me.look_x + dy * me.look_y > rules.cone_cos * far)
    run = max(dx, LEAST_RUN) if dx > 0.0 else min(dx, -LEAST_RUN)
    axis = max(me.look_x, LEAST_RUN) if dx > 0.0 else min(me.look_x, -LEAST_RUN)
    there, ahead = dy / run, me.look_y / axis
    share = 1.0 + there * ahead  # the tangent of the difference is (there - ahead) / share
    return bool(abs(there - ahead) < rules.cone_tan * share)


@inlined
def sees(me: Record, kind: Record, dx: float, dy: float, rules: Record) -> bool:
    """True if an agent sees the point (dx, dy), relative to it."""
    squared = dx * dx + dy * dy
    if rules.fully_observable:
        return True
    if rules.looks == 0:
        return bool(squared < kind.sight * kind.sight)
    return bool(squared <= kind.sight * kind.sight and in_cone(me, dx, dy, rules))


@inlined
def look(me: Record, direction: int, rules: Record) -> None:
    """Turn an agent's cone: direction 0 is east, the next ones follow counterclockwise."""
    x, y = 1.0, 0.0
    for _ in range(direction):
        x, y = x * rules.turn_cos - y * rules.turn_sin, x * rules.turn_sin + y * rules.turn_cos
    me.look_x = x
    me.look_y = y
