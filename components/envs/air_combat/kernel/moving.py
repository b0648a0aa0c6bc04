"""Where units start and how they move."""

from components.envs.air_combat.kernel.chance import draw
from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import ATTACK, COS, COURSE, JAMMER, RADAR, SIN, Ints, Record, Records


@compiled
def line_up(units: Records, battle: Record, kinds: Records, rules: Record) -> None:
    """Put all units at the start, with radars on and jammers off."""
    for i in range(len(units)):
        unit, kind = units[i], kinds[i]
        is_red = i < rules.red
        unit.x = kind.start_x
        unit.y = kind.start_y
        if rules.random_pos:
            deep = rules.strip_near + draw(battle) * (rules.strip_far - rules.strip_near)
            unit.x = deep if is_red else rules.size_x - deep
            unit.y = draw(battle) * rules.size_y
        unit.course = 0 if is_red else 180
        unit.alive = True
        unit.doomed = False
        unit.radar = 1 + int(draw(battle) * kind.radar_points)
        unit.jammer = 0
        unit.long_left = kind.long_missiles
        unit.medium_left = kind.medium_missiles
        unit.known = False
        unit.source = -1
        unit.last_x = 0.0
        unit.last_y = 0.0
        unit.last_step = -1
        unit.threats = 0
        unit.reward = 0.0
        unit.attack = 0
    battle.steps = 0
    battle.flying = 0
    battle.over = False
    battle.outcome = 0
    battle.fired_red = 0
    battle.fired_blue = 0
    battle.hits_red = 0
    battle.hits_blue = 0


@compiled
def turned(course: int, wanted: int, rate: int) -> int:
    """Return the course after a step of turning the short way towards the wanted course; 180 degrees go clockwise."""
    change = (wanted - course + 540) % 360 - 180
    if change == -180:
        change = 180
    return (course + min(max(change, -rate), rate)) % 360


@compiled
def obey(units: Records, kinds: Records, rules: Record, orders: Ints) -> None:
    """Set radars and jammers, and fly one step: dx = v cos c, dy = v sin c. Units stop at the border."""
    for i in range(len(units)):
        unit = units[i]
        if not unit.alive:
            continue
        unit.radar = orders[i, RADAR]
        unit.jammer = orders[i, JAMMER]
        unit.attack = orders[i, ATTACK]
        if orders[i, COURSE] >= 0:
            unit.course = turned(unit.course, orders[i, COURSE], rules.turn_rate)
            unit.x = min(max(unit.x + kinds[i].speed * COS[unit.course], 0.0), rules.size_x)
            unit.y = min(max(unit.y + kinds[i].speed * SIN[unit.course], 0.0), rules.size_y)
