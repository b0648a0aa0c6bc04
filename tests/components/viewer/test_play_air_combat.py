"""`orchestra play air_combat:…` shows radars, jammers, missiles and what each side knows; and why it cannot."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from PIL import Image
from rich.console import Console

from components.checkpoints.policy_file import save_checkpoint
from components.envs.air_combat.env import AirCombat
from components.envs.air_combat.scenarios import Jamming, Radar, Rules, Scenario, Unit
from components.envs.game_speed import GameSpeed
from components.policies.hierarchical import Hierq
from components.viewer.air_combat import marks
from components.viewer.air_combat.jamming import Jammed, jammed_by
from components.viewer.air_combat.legend import BLUE, RED
from components.viewer.air_combat.picture import round_figure
from components.viewer.air_combat.players import PLAYERS, policy_player
from components.viewer.air_combat.recording import AirRound, record
from components.viewer.air_combat.terminal import show
from components.viewer.command import command
from components.viewer.figures import figure_of
from components.viewer.film import save_film
from components.viewer.games import learnt
from components.viewer.recorded import watched
from components.viewer.screens import screen_of
from orchestra import RunDirectory, UsageError

TRAIN = Path(__file__).resolve().parents[3] / "experiments" / "train.py"


class Clock:
    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)


FIGHTER = Unit(kind="fighter", speed=2.0, radar="X", jammer="X", long_missiles=2, medium_missiles=4)
DETECTOR = Unit(kind="detector", speed=1.0, radar="L")
DUEL = Scenario(
    name="duel",
    red=(DETECTOR, FIGHTER, FIGHTER),
    blue=(FIGHTER, FIGHTER),
    size=(400.0, 300.0),
    rules=Rules(max_steps=150),
)
TOML = """
size = [300.0, 200.0]
[rules]
max_steps = 60
[[red]]
kind = "fighter"
count = 2
speed = 2.0
radar = "X"
jammer = "X"
long_missiles = 2
[[blue]]
kind = "fighter"
speed = 2.0
radar = "X"
jammer = "X"
long_missiles = 2
"""


def round_of(player: str = "hard", opponent: str = "hard", seed: int = 0, **options) -> AirRound:
    env = AirCombat(DUEL, 1, seed=seed, opponent=opponent, **options)
    return record(env, PLAYERS[player](env, np.random.default_rng(seed)))


@pytest.fixture(scope="module")
def duel() -> AirRound:
    return round_of()


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.toml").write_text(TOML)
    return f"air_combat:{tmp_path / 'small.toml'}"


def refusal(*arguments: str | Path) -> str:
    with pytest.raises(UsageError) as caught:
        command([str(argument) for argument in arguments])
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is recorded


@pytest.mark.parametrize("seed", range(4))
def test_a_recording_has_every_world_step_of_what_was_played(seed: int) -> None:
    """With a frame_skip the agents choose in every fifth world step; the viewer sees all, and the round is the same."""
    options = {"seed": seed, "opponent": "straight", "frame_skip": 5}
    recorded = round_of("random", **options)
    env, rng = AirCombat(DUEL, 1, **options), np.random.default_rng(seed)
    env.reset()
    total = 0.0
    while not env.terminated[0]:
        env.step(np.argmax(rng.random(env.available.shape) * env.available, axis=2))
        total += float(env.reward[0])
        frame = recorded.frames[int(env.battles["steps"][0])]
        for name in ("x", "alive", "radar", "long_left", "medium_left"):
            np.testing.assert_array_equal(frame.units[name], env.units[name][0])
        assert frame.reward == pytest.approx(total, abs=1e-4)
    assert len(recorded.frames) == int(env.battles["steps"][0]) + 1 > 6
    assert env.battles["fired_red"][0] > 0
    assert [frame.step for frame in recorded.frames] == list(range(len(recorded.frames)))
    assert recorded.frames[-1].outcome
    assert {frame.outcome for frame in recorded.frames[:-1]} == {""}
    env.reset()  # and the environment skips frames as before
    env.step(np.zeros((1, 3), np.int64))
    assert env.battles["steps"][0] == 5


def test_a_step_is_watched_in_an_environment_of_one_battle() -> None:
    env = AirCombat(DUEL, 2)
    env.reset()
    with pytest.raises(ValueError, match="only one battle can be watched"):
        next(env.world_steps(np.zeros((2, 3), np.int64)))
    with pytest.raises(ValueError, match="only one battle can be watched"):
        record(env, PLAYERS["random"](env, np.random.default_rng(0)))


def test_rules_play_red_as_they_play_blue(duel: AirRound) -> None:
    assert {duel.frames[0].activity, duel.frames[duel.busiest()].activity} > {0}
    fired = {bool(m["attacker"] < 3) for frame in duel.frames for m in frame.missiles}
    assert fired == {True, False}
    assert duel.destroyed(len(duel.frames) - 1).keys() == set(np.flatnonzero(~duel.frames[-1].units["alive"]))
    for unit, step in duel.destroyed(len(duel.frames) - 1).items():
        assert duel.frames[step - 1].units["alive"][unit]
        assert not duel.frames[step].units["alive"][unit]


def test_a_hierarchical_policy_names_what_each_agent_is_about() -> None:
    env = AirCombat(DUEL, 1, frame_skip=4, max_steps=24)
    policy = Hierq(env.spec, seed=0, hidden_size=8, subtask_steps=2)
    recorded = record(env, policy_player(policy)(env, np.random.default_rng(0)))
    chosen = [frame.subtasks for frame in recorded.frames]
    assert chosen[0] == ()
    assert all(set(each) <= {"search", "approach", "attack", "evade", "jam"} and len(each) == 3 for each in chosen[1:])
    assert len(set(chosen[1:9])) == 1  # two steps of four world steps each
    text = " ".join(text.get_text() for text in round_figure(recorded, 1).axes[0].texts)
    assert f"1 {chosen[1][1]}" in text
    assert chosen[1][1] in printed(recorded, 1)


def test_a_run_at_game_speed_is_watched_without_its_waits() -> None:
    env = GameSpeed(lambda n_envs, seed: AirCombat(DUEL, n_envs, seed=seed, max_steps=3), 1, seed=0)
    take = learnt(env, Hierq(env.spec, seed=0, hidden_size=8))
    assert take is not None
    assert len(take(np.random.default_rng(0)).frames) == 4


# Who jams whom


def test_who_jams_whom_is_worked_out_by_hand() -> None:
    """Jammers of red at 0 and 180: the first reaches radars of blue within 200; the second aims at point 5."""
    units = tuple(FIGHTER for _ in range(2))
    scenario = Scenario(
        name="jam",
        red=units,
        blue=units,
        radars={"X": Radar(range=150.0, points=10)},
        jamming=Jamming(points={"X": 10}),
    )
    env = AirCombat(scenario, 1, opponent="ordered")
    env.reset()
    env.units["x"][0], env.units["y"][0] = [0.0, 180.0, 150.0, 250.0], 50.0
    env.orders[0, :, 0], env.orders[0, :, 1], env.orders[0, :, 2] = -1, [0, 5, 5, 6], [11, 5, 0, 0]
    env.step_ordered()
    recorded = AirRound(scenario, ())
    found = list(jammed_by(env.units[0], recorded.kinds, recorded))
    assert found == [Jammed(0, True, (2,)), Jammed(1, False, (2,))]
    assert env.units["reach"][0].tolist() == pytest.approx([0.0, 150.0, 60.0, 150.0])


# What is drawn


def corners(figure, colour: str) -> list[np.ndarray]:
    """Outlines of the bodies of this edge colour on the map, missiles' among them."""
    found = [each for each in figure.axes[0].collections if isinstance(each, PolyCollection) and len(each.get_paths())]
    edged = [each for each in found if len(each.get_edgecolor()) and to_hex(each.get_edgecolor()[0]) == colour]
    return [path.vertices for each in edged if each.get_linewidth()[0] > 0.0 for path in each.get_paths()]


def test_a_figure_shows_units_missiles_and_the_header(duel: AirRound) -> None:
    step = duel.busiest()
    frame = duel.frames[step]
    figure = round_figure(duel, step)
    for colour, red in ((RED, True), (BLUE, False)):
        living = int(frame.units["alive"][:3].sum() if red else frame.units["alive"][3:].sum())
        flying = int(((frame.missiles["attacker"] < 3) == red).sum())
        assert len(corners(figure, colour)) == living + flying
    words = " ".join(text.get_text() for text in figure.texts)
    assert f"step {step} of at most 150" in words
    assert f"reward so far {frame.reward:.2f}" in words
    assert f"red: {int(frame.units['alive'][:3].sum())}/3 units, {frame.units['long_left'][:3].sum()} long" in words
    final = duel.frames[-1]
    words = " ".join(text.get_text() for text in round_figure(duel, final.step).texts)
    assert f"{final.outcome} for red" in words
    assert figure.axes[0].get_xlim() == (-10.0, 410.0)  # the map and a fortieth of 400 around it
    assert figure.axes[0].get_ylim() == (310.0, -10.0)  # y points down


def test_a_radar_is_drawn_as_far_as_it_reaches(duel: AirRound) -> None:
    jammed = next(f for f in duel.frames if 0.0 < f.units["reach"][3] < 150.0 and f.units["alive"][3])
    unit = jammed.units[3]
    assert unit["reach"] == pytest.approx(105.0)  # 0.7 of 150
    lines = [
        path.vertices
        for each in round_figure(duel, jammed.step).axes[0].collections
        if isinstance(each, LineCollection)
        for path in each.get_paths()
    ]
    centre = np.array([unit["x"], unit["y"]])
    outline = marks.sector(105.0, float(unit["course"]), 60.0) + centre
    assert any(line.shape == outline.shape and np.allclose(line, outline) for line in lines)
    # One of three stripes, at 0.4 of the reach.
    stripe = marks.arc(42.0, float(unit["course"]), 60.0) + centre
    assert any(line.shape == stripe.shape and np.allclose(line, stripe) for line in lines)


def test_a_shape_points_along_the_course() -> None:
    """90 degrees is down, where y grows; a sector of 60 degrees each way begins and ends 60 degrees off."""
    assert marks.turned(marks.FIGHTER, 90.0)[0] == pytest.approx([0.0, 1.4])
    sector = marks.sector(10.0, 90.0, 60.0)
    assert sector[1] == pytest.approx([8.66025, 5.0], abs=1e-4)
    assert sector[-2] == pytest.approx([-8.66025, 5.0], abs=1e-4)
    assert np.hypot(*marks.sector(10.0, 0.0, 180.0).T) == pytest.approx(10.0)
    assert marks.zigzag(50.0, 180.0)[-1] == pytest.approx([-50.0, 0.0], abs=1e-9)


def test_the_destroyed_are_crosses_with_the_step(duel: AirRound) -> None:
    last = len(duel.frames) - 1
    labels = [text.get_text() for text in round_figure(duel, last).axes[0].texts]
    assert duel.destroyed(last)
    for step in duel.destroyed(last).values():
        assert str(step) in labels


def test_known_units_bear_open_marks_of_the_other_side(duel: AirRound) -> None:
    """A square where a radar sees the unit, a diamond where receivers fix it; both in the colour of who knows it."""
    fixed = next(f for f in duel.frames if (f.units["source"] == 3).any() and f.units["alive"].all())
    seen = fixed.units["known"] & (fixed.units["source"] != 3)
    offsets = [
        tuple(np.round(point, 6))
        for each in round_figure(duel, fixed.step).axes[0].collections
        if each.get_zorder() == 3 and not isinstance(each, LineCollection)
        for point in each.get_offsets()
    ]
    wanted = [tuple(np.round((u["x"], u["y"]), 6)) for u in fixed.units[seen]]
    wanted += [tuple(np.round((u["fix_x"], u["fix_y"]), 6)) for u in fixed.units[fixed.units["source"] == 3]]
    assert sorted(offsets) == sorted(wanted)


# Films and the terminal


def test_a_film_has_every_third_step_and_the_last_or_those_that_are_asked_for(duel: AirRound, tmp_path: Path) -> None:
    last = duel.frames[-1].step
    steps = [frame.step for frame in watched(duel, None)]
    assert steps == [*range(0, last, 3), last]
    assert [frame.step for frame in watched(duel, last)] == [0, last]
    assert save_film([duel], tmp_path / "round.gif", 4.0, last) == 1 + 6
    with Image.open(tmp_path / "round.gif") as film:
        assert film.n_frames >= 2


def printed(recorded: AirRound, step: int) -> str:
    console = Console(width=120, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show(recorded, recorded.frames[step]))
    return capture.get()


def test_the_terminal_shows_map_and_units(duel: AirRound) -> None:
    text = printed(duel, 0)
    lines = text.splitlines()
    assert lines[0] == "duel  step 0/150  reward so far 0.00"
    assert "→d0" in text
    assert "←F0" in text
    assert "f1  2+4  radar 150" in text
    assert "d0  0+0  radar 240" in text
    # d0 starts at x = 50 of 400 and y = 150 of 300: column 8 of 69, row 13 of 26.
    assert lines[2 + 13].index("→d0") == 1 + 8
    assert "." in lines[2 + 13]
    frame = duel.frames[duel.busiest()]
    busy = printed(duel, frame.step)
    assert "*" in busy
    assert "! jams " in busy
    assert f"destroyed in step {next(iter(duel.destroyed(len(duel.frames) - 1).values()))}" in printed(duel, -1)
    assert duel.frames[-1].outcome in printed(duel, -1).splitlines()[0]


def test_letters_of_each_side_have_its_colour_and_the_rest_is_plain(duel: AirRound) -> None:
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(show(duel, duel.frames[0]))
    text = capture.get()
    assert "\x1b[1;31m→d0\x1b[0m" in text
    assert "\x1b[1;34mF0  \x1b[0m2+4 " in text


def test_what_is_no_recording_is_refused() -> None:
    with pytest.raises(TypeError, match="nothing draws a str"):
        figure_of("battle", 0, dpi=50.0)
    with pytest.raises(TypeError, match="nothing shows a str"):
        screen_of("battle", "frame")


# The command


def test_rounds_of_a_file_are_played_by_rules(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "round.pdf"
    assert command([small, "--policy", "random", "--opponent", "straight", "--save", str(picture), "--step", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("episode 1: ")
    assert said[1] == f"saved {picture} (step 2)"
    assert picture.read_bytes().startswith(b"%PDF")
    assert command([small, "--episodes", "2"]) == 0
    assert capsys.readouterr().out.count("small  step ") == 2


def test_the_policy_of_a_run_plays(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory.create(tmp_path, "hierq_small", 0, clock=Clock())
    flags = {"algorithm": "hierq", "env": small, "env_arg": ["frame_skip=3", "opponent=static"], "hidden_size": 8}
    run.write_config(experiment=TRAIN, flags=flags, seed=0, argv=[], clock=Clock())
    spec = AirCombat(small.partition(":")[2], 1).spec
    save_checkpoint(run.checkpoints / "best.pt", Hierq(spec, seed=0, hidden_size=8), 3, 1)
    assert command([str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "small  step 60/60" in said
    assert any(task in said for task in ("search", "approach", "attack", "evade", "jam"))
    assert "the policy of the run plays" in refusal(run.path, "--policy", "hard")
    last = {}
    for opponent in ("static", "straight"):
        assert command([str(run.path), "--opponent", opponent]) == 0
        last[opponent] = capsys.readouterr().out
    assert last["static"] == said
    assert last["straight"] != said
    said = "opponent=me is neither static, straight, easy, hard nor the directory of a run"
    assert said in refusal(run.path, "--opponent", "me")


def test_only_runs_in_air_combat_have_an_opponent_to_choose(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "qmix_3m", 0, clock=Clock())
    run.write_config(experiment=TRAIN, flags={"env": "skirmish"}, seed=0, argv=[], clock=Clock())
    assert refusal(run.path, "--opponent", "hard") == f"--opponent is for runs in air combat, and '{run.path}' is none"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["air_combat:nowhere"], "'nowhere' is unknown; there are detector2_fighter10, fighter10v10"),
        (["air_combat:fighter10v10", "--policy", "nearest"], "there is no 'nearest'; there are random, easy, hard"),
        (["air_combat:fighter10v10", "--opponent", "me"], "no 'me'; there are static, straight, easy, hard"),
        (["3m", "--opponent", "hard"], "--opponent is for air_combat:SCENARIO"),
        (["air_combat:fighter10v10", "--every", "0"], "--every: 0 is not allowed: it must be 1 or more"),
        (["3m", "--save", "battle.png", "--every", "2"], "--every selects the steps of a film"),
    ],
)
def test_a_slip_is_one_line(words: list[str], said: str) -> None:
    assert said in refusal(*words)
