"""`orchestra play` shows what happened: in the terminal, in pictures, in films; and says in a line why it cannot."""

import stat
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Polygon
from PIL import Image
from rich.console import Console

from components.checkpoints.policy_file import save_checkpoint
from components.envs import Skirmish
from components.policies import Qmix
from components.viewer import PLAYERS, Battle, Strike, battle_figure, record
from components.viewer.command import command
from components.viewer.film import check_file, save_film, save_picture
from components.viewer.picture import ALLY, ENEMY
from components.viewer.recording import Frame
from components.viewer.terminal import show
from orchestra import RunDirectory, UsageError

EXPERIMENT = Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py"


def battle_of(scenario: str, player: str = "nearest", seed: int = 0, **options) -> Battle:
    env = Skirmish(scenario, 1, seed=seed, **options)
    return record(env, PLAYERS[player](env, np.random.default_rng(seed)))


@pytest.fixture(scope="module")
def marines() -> Battle:
    return battle_of("3m")


def refusal(*arguments: str | Path) -> str:
    with pytest.raises(UsageError) as caught:
        command([str(argument) for argument in arguments])
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is recorded


def test_a_recording_is_the_battle_that_was_played(marines: Battle) -> None:
    env = Skirmish("3m", 1, seed=0)
    play = PLAYERS["nearest"](env, np.random.default_rng(0))
    env.reset()
    total = 0.0
    for frame in marines.frames[1:]:
        env.step(play(env))
        total += float(env.reward[0])
        np.testing.assert_array_equal(frame.units, env.units[0])
        assert frame.reward == pytest.approx(total)
    assert (env.terminated | env.truncated)[0]
    assert [frame.step for frame in marines.frames] == list(range(len(marines.frames)))
    assert marines.frames[-1].outcome == ("won" if env.won[0] else "lost")
    assert {frame.outcome for frame in marines.frames[:-1]} == {""}
    assert marines.seconds_per_step == 0.5


@pytest.mark.parametrize("scenario", ["3m", "2s3z", "MMM"])
def test_every_hurt_is_somebodys_strike_and_every_strike_hits_the_other_side(scenario: str) -> None:
    battle = battle_of(scenario)
    agents = battle.n_agents
    for before, after in zip(battle.frames, battle.frames[1:], strict=False):
        for strike in after.strikes:
            friends = (strike.by < agents) == (strike.to < agents)
            assert friends == strike.heals
        # What arrives in this step was sent in it, or, as a missile, in the one before.
        struck = {strike.to for frame in (before, after) for strike in frame.strikes if not strike.heals}
        left = [frame.units["health"] + frame.units["shield"] for frame in (before, after)]
        lost = set(np.flatnonzero(left[1] < left[0] - 1e-9).tolist())
        assert lost <= struck
    assert any(strike.heals for frame in battle.frames for strike in frame.strikes) == (scenario == "MMM")


def test_a_unit_that_dies_while_its_weapon_cools_has_not_shot() -> None:
    env = Skirmish("3m", 1)
    env.reset()
    before = env.units[0].copy()
    after = before.copy()
    before["cooldown"][0], after["cooldown"][0], after["health"][0] = 10.0, 7.0, 0.0
    before["cooldown"][4], after["cooldown"][4], after["hit_target"][4] = 2.0, 9.0, 1
    from components.viewer.recording import _strikes

    assert _strikes(before, after, env.kinds[0], 8) == (Strike(4, 1),)


def test_only_one_battle_can_be_recorded() -> None:
    env = Skirmish("3m", 2)
    with pytest.raises(ValueError, match="only one battle can be watched"):
        record(env, PLAYERS["random"](env, np.random.default_rng(0)))


# Who plays


@pytest.mark.parametrize("player", PLAYERS)
@pytest.mark.parametrize("scenario", ["MMM2", "terran_5_vs_5"])
def test_every_script_plays_every_kind_of_unit(player: str, scenario: str) -> None:
    assert battle_of(scenario, player, seed=2).frames[-1].outcome


def test_scripts_attack_and_chance_does_not_win() -> None:
    """8m, ten battles: `docs/simulator.md` has random play at a return of 1.8, with next to nothing to add."""
    returns = {
        name: np.mean([battle_of("8m", name, seed, start_jitter=0.1).frames[-1].reward for seed in range(10)])
        for name in PLAYERS
    }
    assert returns["nearest"] > 6.0 > 4.0 > returns["random"]
    assert returns["weakest"] > 6.0


def test_the_weakest_in_reach_is_attacked() -> None:
    env = Skirmish("3m", 1)
    env.reset()
    env.units["x"][0] = [14.0, 14.0, 14.0, 17.0, 18.0, 19.0]
    env.units["y"][0] = [15.0, 16.0, 17.0, 16.0, 16.0, 16.0]
    env.units["health"][0, 4] = 9.0
    env.show()
    rng = np.random.default_rng(0)
    assert PLAYERS["weakest"](env, rng)(env).tolist() == [[7, 7, 7]]
    assert PLAYERS["nearest"](env, rng)(env).tolist() == [[6, 6, 6]]


# What is drawn


def bodies(figure) -> list[str]:
    polygons = [patch for patch in figure.axes[0].patches if isinstance(patch, Polygon) and patch.get_linewidth() > 0]
    return [to_hex(patch.get_facecolor()) for patch in polygons]


def test_a_figure_shows_who_stands_who_fell_and_the_reward(marines: Battle) -> None:
    frame = next(frame for frame in marines.frames if (frame.units["health"] <= 0.0).any())
    figure = battle_figure(marines, frame.step)
    alive = frame.units["health"] > 0.0
    assert sorted(bodies(figure)) == sorted([ALLY] * int(alive[:3].sum()) + [ENEMY] * int(alive[3:].sum()))
    crosses = sum(len(collection.get_offsets()) for collection in figure.axes[0].collections[:3])
    assert crosses >= int((~alive).sum())
    words = " ".join(text.get_text() for text in [*figure.texts, *figure.axes[1].texts])
    assert f"reward so far {frame.reward:.2f}" in words
    assert f"step {frame.step} of at most 60" in words
    assert f"marine {int(alive[:3].sum())}/3" in words


def test_what_no_ally_sees_is_shaded(marines: Battle) -> None:
    def shade(step: int) -> tuple[int, int]:
        (image,) = battle_figure(marines, step).axes[0].images
        colours, counts = np.unique(np.asarray(image.get_array()).reshape(-1, 3), axis=0, return_counts=True)
        return len(colours), int(counts.max())

    assert shade(0)[0] >= 2
    dead = Frame(1, marines.frames[0].units.copy(), (), 0.0)
    dead.units["health"][:3] = 0.0
    blind = Battle(marines.scenario, marines.types, marines.sight, 60, 0.5, (marines.frames[0], dead))
    figure = battle_figure(blind, 1)
    colours = np.unique(np.asarray(figure.axes[0].images[0].get_array()).reshape(-1, 3), axis=0)
    assert len(colours) == 1


@pytest.mark.parametrize("scenario", ["MMM2", "1c3s5z", "corridor", "2s_vs_1sc", "zerg_5_vs_5"])
def test_every_kind_of_unit_and_ground_can_be_drawn(scenario: str) -> None:
    battle = battle_of(scenario, "random")
    figure = battle_figure(battle, 1, dpi=40.0)
    figure.canvas.draw()
    assert len(bodies(figure)) == len(battle.types)


def test_the_picture_of_a_battle_is_where_most_is_going_on(marines: Battle) -> None:
    most = max(len(frame.strikes) for frame in marines.frames)
    assert len(marines.frames[marines.busiest()].strikes) == most > 1


# Files


def test_a_gif_has_a_frame_for_each_step_and_moves(marines: Battle, tmp_path: Path) -> None:
    short = Battle(marines.scenario, marines.types, marines.sight, 60, 0.5, marines.frames[4:7])
    steps = tuple(Frame(k, frame.units, frame.strikes, frame.reward) for k, frame in enumerate(short.frames))
    short = Battle(marines.scenario, marines.types, marines.sight, 60, 0.5, steps)
    path = tmp_path / "battle.gif"
    assert save_film([short, short], path, fps=4.0) == 6
    with Image.open(path) as film:
        assert film.n_frames == 6
        assert film.info["duration"] == 250
        first = np.asarray(film.convert("RGB")).copy()
        film.seek(1)
        assert (np.asarray(film.convert("RGB")) != first).any()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("ending", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_a_picture_is_of_the_format_that_its_ending_says(
    marines: Battle, tmp_path: Path, ending: str, magic: bytes
) -> None:
    path = tmp_path / f"battle{ending}"
    save_picture(marines, path, 3)
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def ffmpeg(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_ffmpeg_is_fed_whole_frames_of_even_size(
    marines: Battle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    ffmpeg(programs, f'echo "$@" > {tmp_path}/words; for last; do :; done; cat > "$last"', monkeypatch)
    steps = tuple(Frame(k, frame.units, frame.strikes, frame.reward) for k, frame in enumerate(marines.frames[:2]))
    path = tmp_path / "battle.mp4"
    assert save_film([Battle(marines.scenario, marines.types, marines.sight, 60, 0.5, steps)], path, 4.0) == 2
    words = (tmp_path / "words").read_text().split()
    width, height = map(int, words[words.index("-s") + 1].split("x"))
    assert width % 2 == height % 2 == 0
    assert path.stat().st_size == 2 * 3 * width * height


def test_what_ffmpeg_says_is_passed_on(marines: Battle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    ffmpeg(programs, "echo 'no such codec' >&2; exit 3", monkeypatch)
    with pytest.raises(UsageError, match="ffmpeg failed with 3: no such codec"):
        save_film([marines], tmp_path / "battle.mp4", 4.0)
    assert list(tmp_path.iterdir()) == [programs]


def test_a_film_without_ffmpeg_is_refused_before_a_battle_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"needs the program ffmpeg, which is not on the PATH; a \.gif needs nothing"):
        check_file(tmp_path / "battle.mp4")


# The terminal


def printed(battle: Battle, frame: Frame) -> str:
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(show(battle, frame))
    return capture.get()


def test_the_terminal_shows_every_unit_where_it_is(marines: Battle) -> None:
    lines = printed(marines, marines.frames[0]).splitlines()
    assert lines[0] == "3m  step 0/60  0.0 s  reward so far 0.00"
    ground = lines[1:17]
    first = {(int(unit["x"]), int(unit["y"])): i for i, unit in reversed(list(enumerate(marines.frames[0].units)))}
    for (x, y), i in first.items():
        name = f"m{i}" if i < 3 else f"M{i - 3}"
        assert ground[23 - y][2 * x : 2 * x + 2] == name
    assert "m0  ██████  45" in "\n".join(lines[17:])


def test_the_terminal_shows_the_dead_and_who_struck_whom(marines: Battle) -> None:
    frame = marines.frames[-1]
    text = printed(marines, frame)
    assert frame.outcome in text.splitlines()[0]
    assert text.count("dead") == int((frame.units["health"] <= 0.0).sum()) >= 3
    busy = marines.frames[marines.busiest()]
    by, to = busy.strikes[0].by, busy.strikes[0].to
    assert f"→{f'm{to}' if to < 3 else f'M{to - 3}'}" in printed(marines, busy)
    assert by != to


# The command


def test_without_a_file_the_end_is_printed_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["3m", "--policy", "random", "--episodes", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("3m  step ") == 2


def test_a_picture_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "battle.png"
    assert command(["3m", "--save", str(path), "--step", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"saved {path} (step 2)"
    with Image.open(path) as picture:
        assert picture.width > 2000  # 300 dots per inch


@pytest.mark.parametrize(("which", "name"), [((), "best"), (("--checkpoint", "last"), "steps-0000000002")])
def test_a_run_s_best_policy_plays_or_the_one_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: tuple[str, ...], name: str
) -> None:
    class Clock:
        def now(self) -> datetime:
            return datetime(2026, 3, 1, tzinfo=UTC)

    run = RunDirectory.create(tmp_path, "qmix_3m", 0, clock=Clock())
    flags = {"scenario": "3m", "hidden_size": 8}
    run.write_config(experiment=EXPERIMENT, flags=flags, seed=0, argv=[], clock=Clock())
    for seed, saved in enumerate(("best", "steps-0000000001", "steps-0000000002")):
        policy = Qmix(Skirmish("3m", 1).spec, hidden_size=8, optimizer="adam", seed=seed)
        save_checkpoint(run.checkpoints / f"{saved}.pt", policy, 3, 1)
    policy = Qmix(Skirmish("3m", 1).spec, hidden_size=8, optimizer="adam", seed=0 if name == "best" else 2)
    assert command([str(run.path), "--save", str(tmp_path / "battle.png"), "--seed", "4", *which]) == 0
    line = capsys.readouterr().out.splitlines()[0]

    env = Skirmish("3m", 1, seed=4)
    env.reset()
    hidden, last = policy.initial_hidden(1), np.full((1, 3), -1)
    steps, total = 0, 0.0
    while not (env.terminated | env.truncated)[0]:
        last, hidden = policy.act(env.obs, env.available, last, hidden, epsilon=0.0, rng=np.random.default_rng(0))
        env.step(last)
        steps, total = steps + 1, total + float(env.reward[0])
    assert line.endswith(f"after {steps} steps, reward {total:.2f}")
    assert "the policy of the run plays" in refusal("--policy", "random", run.path)
    assert "there are steps 1, 2" in refusal(run.path, "--checkpoint", "7")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: SCENARIO|RUN_DIR"),
        (["8m", "--checkpoint", "last"], "--checkpoint is for the directory of a run, and '8m' is none"),
        (["."], "'.' is not a run directory: it has no config.json"),
        (["9m"], "'9m' is unknown; there are 3m, 8m"),
        (["5m_vs_7m"], "files that end in .toml (did you mean 5m_vs_6m?); those of air combat are air_combat:NAME"),
        (["3m", "--policy", "clever"], "there is no 'clever'; there are random, nearest, weakest"),
        (["3m", "--episodes", "0"], "--episodes: 0 is not allowed: it must be 1 or more"),
        (["3m", "--fps", "0"], "--fps: 0.0 is not allowed: it must lie between 0.1 and 50"),
        (["3m", "--save", "battle.doc"], "must end in one of .gif, .mp4, .png, .pdf, .svg"),
        (["3m", "--save", "no/such/folder/battle.gif"], "there is no folder 'no/such/folder'"),
        (["3m", "--step", "3"], "--step selects the step of a picture"),
        (["3m", "--save", "battle.png", "--step", "-1"], "--step: -1 is not allowed: it must be 0 or more"),
        (["3m", "--save", "battle.png", "--step", "999"], "--step: 999 is not allowed: the battle went from step 0 to"),
    ],
)
def test_a_slip_is_one_line(words: list[str], said: str) -> None:
    assert said in refusal(*words)
