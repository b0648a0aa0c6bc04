"""Air combat in plain Python, from the rules in words: angles instead of vectors, objects instead of records.

It is slow, and shares with the simulator only the order in which numbers are drawn.
"""

import math
from dataclasses import dataclass, field

from components.envs.air_combat.scenarios import BANDS, Missile, Scenario, Unit


class Sfc32:
    """The generator of a battle, from its four words."""

    def __init__(self, a: int, b: int, c: int, counter: int) -> None:
        self.a, self.b, self.c, self.counter = a, b, c, counter

    def draw(self) -> float:
        mask = 2**32 - 1
        mixed = (self.a + self.b + self.counter) % 2**32
        self.counter = (self.counter + 1) % 2**32
        self.a = self.b ^ (self.b >> 9)
        self.b = (self.c * 9) % 2**32
        self.c = ((((self.c << 21) & mask) | (self.c >> 11)) + mixed) % 2**32
        return mixed / 2**32


@dataclass
class Plane:
    """A unit in a battle."""

    unit: Unit
    side: int
    x: float
    y: float
    course: int
    radar: int
    jammer: int = 0
    alive: bool = True
    long: int = 0
    medium: int = 0
    reach: float = 0.0
    known: bool = False
    source: int = -1
    last: tuple[float, float] = (0.0, 0.0)
    last_step: int = -1
    reward: float = 0.0
    attack: int = 0
    doomed: bool = False
    sees: set[int] = field(default_factory=set)
    hears: dict[int, float] = field(default_factory=dict)
    sighted: set[int] = field(default_factory=set)


@dataclass
class Shot:
    """A missile in flight."""

    attacker: int
    target: int
    medium: bool
    x: float
    y: float
    distance: float
    steps: int = 0
    observed: int = 0


def angle_between(first: float, second: float) -> float:
    """Return the angle between two directions in degrees, 0 to 180."""
    return abs((first - second + 180.0) % 360.0 - 180.0)


class ReferenceBattle:
    """One battle of a scenario, from the generator's words of the simulator's battle before its reset."""

    def __init__(self, scenario: Scenario, words: tuple[int, int, int, int], starts: list[tuple[float, float]]) -> None:
        self.scenario, self.chance = scenario, Sfc32(*words)
        self.steps, self.over, self.outcome = 0, False, 0
        self.shots: list[Shot] = []
        self.planes: list[Plane] = []
        n_red = len(scenario.red)
        width, height = scenario.size
        for number, (unit, (x, y)) in enumerate(zip(scenario.units, starts, strict=True)):
            side = 1 if number < n_red else 2
            if scenario.rules.random_pos:
                near, far = scenario.rules.strip
                deep = near + self.chance.draw() * (far - near)
                x, y = deep if side == 1 else width - deep, self.chance.draw() * height
            point = 1 + int(self.chance.draw() * scenario.radars[unit.radar].points)
            course = 0 if side == 1 else 180
            missiles = (unit.long_missiles, unit.medium_missiles)
            plane = Plane(unit, side, x, y, course, point, long=missiles[0], medium=missiles[1])
            self.planes.append(plane)
        self.sense()
        for plane in self.planes:
            plane.sighted.clear()
            plane.reward = 0.0

    def enemies(self, side: int) -> list[tuple[int, Plane]]:
        return [(j, plane) for j, plane in enumerate(self.planes) if plane.side != side]

    def sense(self) -> None:
        scenario = self.scenario
        for plane in self.planes:
            plane.reach = 0.0
            if plane.alive and plane.radar:
                left = 1.0
                for _, enemy in self.enemies(plane.side):
                    jams = enemy.alive and enemy.jammer and enemy.unit.jammer == plane.unit.radar
                    if jams and math.dist((plane.x, plane.y), (enemy.x, enemy.y)) <= scenario.jamming.range:
                        if enemy.jammer == scenario.jamming.points[plane.unit.radar] + 1:
                            left = min(left, scenario.jamming.barrage)
                        elif enemy.jammer == plane.radar:
                            left = min(left, scenario.jamming.aimed)
                plane.reach = scenario.radars[plane.unit.radar].range * left
        for plane in self.planes:
            plane.sees = set()
            sector = scenario.radars[plane.unit.radar].sector
            for j, enemy in self.enemies(plane.side):
                distance = math.dist((plane.x, plane.y), (enemy.x, enemy.y))
                if not (plane.reach and enemy.alive) or distance > plane.reach:
                    continue
                direction = math.degrees(math.atan2(enemy.y - plane.y, enemy.x - plane.x))
                if distance == 0.0 or angle_between(direction, plane.course) <= sector + 1e-9:
                    plane.sees.add(j)
                    if scenario.rewards.every_sighting or j not in plane.sighted:
                        plane.reward += getattr(scenario.rewards, f"{plane.unit.kind}_sees_{enemy.unit.kind}")
                    plane.sighted.add(j)
        for plane in self.planes:
            plane.hears = {}
            for j, enemy in self.enemies(plane.side):
                distance = math.dist((plane.x, plane.y), (enemy.x, enemy.y))
                heard = plane.alive and plane.unit.kind == "fighter" and enemy.alive and enemy.radar
                if heard and 0.0 < distance <= scenario.receiver.range:
                    t = math.tan(math.radians(scenario.receiver.noise) / 2) * (2 * self.chance.draw() - 1)
                    direction = math.atan2(enemy.y - plane.y, enemy.x - plane.x)
                    plane.hears[j] = direction + 2 * math.atan(t)
        for j, target in enumerate(self.planes):
            target.known, target.source = False, -1
            if not target.alive:
                continue
            seers = [enemy for _, enemy in self.enemies(target.side) if j in enemy.sees]
            fix = self.fix(j)
            if seers:
                first = seers[0].unit
                target.source = 2 if first.kind == "fighter" else BANDS.index(first.radar)
                target.known, target.last = True, (target.x, target.y)
            elif fix:
                target.known, target.source, target.last = True, 3, fix
            if target.known:
                target.last_step = self.steps

    def fix(self, j: int) -> tuple[float, float] | None:
        """Return the point nearest to all bearings of unit j, by the normal equations of their lines."""
        receivers = [(plane, plane.hears[j]) for plane in self.planes if j in plane.hears]
        crossing = sum(math.sin(a - b) ** 2 for k, (_, a) in enumerate(receivers) for _, b in receivers[:k])
        if len(receivers) < 2 or crossing < math.sin(math.radians(self.scenario.receiver.least_crossing)) ** 2:
            return None
        # A point p of the line through r with normal n: n·p = n·r.
        normals = [(-math.sin(a), math.cos(a)) for _, a in receivers]
        sides = [n[0] * p.x + n[1] * p.y for n, (p, _) in zip(normals, receivers, strict=True)]
        xx = sum(n[0] * n[0] for n in normals)
        xy = sum(n[0] * n[1] for n in normals)
        yy = sum(n[1] * n[1] for n in normals)
        bx = sum(n[0] * s for n, s in zip(normals, sides, strict=True))
        by = sum(n[1] * s for n, s in zip(normals, sides, strict=True))
        x, y = (yy * bx - xy * by) / (xx * yy - xy * xy), (xx * by - xy * bx) / (xx * yy - xy * xy)
        if any((x - p.x) * math.cos(a) + (y - p.y) * math.sin(a) < 0.0 for p, a in receivers):
            return None
        width, height = self.scenario.size
        return min(max(x, 0.0), width), min(max(y, 0.0), height)

    def step(self, orders: list[list[int]]) -> None:
        """Play a world step with the orders of both sides: course, radar, jammer, attack of each unit."""
        scenario = self.scenario
        self.steps += 1
        for plane, (course, radar, jammer, attack) in zip(self.planes, orders, strict=True):
            plane.reward = scenario.rewards.alive if plane.alive else 0.0
            if not plane.alive:
                continue
            plane.radar, plane.jammer, plane.attack = radar, jammer, attack
            change = (course - plane.course) % 360
            change = change if change <= 180 else change - 360
            rate = scenario.rules.turn_rate
            plane.course = (plane.course + max(-rate, min(rate, change))) % 360
            angle = math.radians(plane.course)
            plane.x = min(max(plane.x + plane.unit.speed * math.cos(angle), 0.0), scenario.size[0])
            plane.y = min(max(plane.y + plane.unit.speed * math.sin(angle), 0.0), scenario.size[1])
        self.sense()
        flying = list(self.shots)
        for i, plane in enumerate(self.planes):
            if plane.alive and plane.attack:
                self.attack(i, plane)
        arrived = []
        for shot in flying:
            target = self.planes[shot.target]
            if target.doomed:
                continue
            shot.steps += 1
            shot.observed += target.known
            distance = math.dist((shot.x, shot.y), target.last)
            speed = self.missile(shot.medium).speed
            if distance <= speed:
                arrived.append(shot)
                self.strike(shot, shot.observed / shot.steps)
            else:
                shot.x += (target.last[0] - shot.x) / distance * speed
                shot.y += (target.last[1] - shot.y) / distance * speed
        for plane in self.planes:
            if plane.doomed:
                plane.alive = plane.doomed = plane.known = False
                plane.radar = plane.jammer = 0
        self.shots = [shot for shot in self.shots if shot not in arrived and self.planes[shot.target].alive]
        self.judge()

    def missile(self, medium: bool) -> Missile:
        return self.scenario.medium_missile if medium else self.scenario.long_missile

    def attack(self, i: int, plane: Plane) -> None:
        enemies = self.enemies(plane.side)
        medium = plane.attack > len(enemies)
        valid = plane.attack <= 2 * len(enemies)
        j, target = enemies[(plane.attack - 1) % len(enemies)]
        distance = math.dist((plane.x, plane.y), target.last)
        left = plane.medium if medium else plane.long
        if not (valid and left and target.alive and target.known and distance <= self.missile(medium).range):
            plane.reward += self.scenario.rewards.invalid_attack
            return
        plane.reward += self.scenario.rewards.valid_attack
        if medium:
            plane.medium -= 1
        else:
            plane.long -= 1
        shot = Shot(i, j, medium, plane.x, plane.y, distance)
        if self.scenario.rules.attack_effect_delay:
            self.shots.append(shot)
        elif not target.doomed:
            self.strike(shot, 1.0)

    def strike(self, shot: Shot, observed: float) -> None:
        rewards, missile = self.scenario.rewards, self.missile(shot.medium)
        attacker, target = self.planes[shot.attacker], self.planes[shot.target]
        if self.scenario.rules.hit_prob_enable:
            share = shot.distance / missile.range
            probability = (missile.hit_near * (1 - share) + missile.hit_far * share) * observed
            if self.chance.draw() >= probability:
                attacker.reward += getattr(rewards, f"miss_{target.unit.kind}")
                return
        target.doomed = True
        attacker.reward += getattr(rewards, f"hit_{target.unit.kind}")
        target.reward += getattr(rewards, f"{target.unit.kind}_destroyed")

    def judge(self) -> None:
        counts = [sum(plane.alive for plane in self.planes if plane.side == side) for side in (1, 2)]
        left = sum(plane.long + plane.medium for plane in self.planes if plane.alive) + len(self.shots)
        if min(counts) == 0:
            self.over, self.outcome = True, 2 * (counts[0] > 0) - 2 * (counts[1] > 0)
        elif left == 0 or self.steps >= self.scenario.rules.max_steps:
            self.over, self.outcome = True, (counts[0] > counts[1]) - (counts[0] < counts[1])
