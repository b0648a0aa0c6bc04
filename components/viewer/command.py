"""`orchestra play`: show battles that a script or a trained policy plays."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from components.reporting.saved_policy import add_checkpoint_flag, load_policy
from orchestra import FlagParser, RunDirectory, UsageError

if TYPE_CHECKING:
    from components.viewer.games import Take
    from components.viewer.recorded import Recorded


_PLAYED = "a map, such as 8m or air_combat:fighter10v10, a scenario file, such as air_combat:mine.toml, or a run"
_POLICY = "random, nearest or weakest (default: nearest); random, easy or hard of air combats (default: hard)"
_OPPONENT = (
    "opponent that commands blue in air combats: static, straight, easy or hard (default: easy, or that of the run); "
    "for a run also the directory of another run"
)


def command(arguments: list[str]) -> int:
    """Play battles and show them in the terminal, or save them as a film or a picture."""
    parser = FlagParser(
        prog="orchestra play",
        description="Play battles and show them: in the terminal, or in a file. In the scenario of a run its policy "
        "plays, greedily.",
    )
    parser.add_argument("played", metavar="SCENARIO|RUN_DIR", help=_PLAYED)
    parser.add_argument("--policy", default=None, help=_POLICY)
    parser.add_argument("--opponent", default=None, help=_OPPONENT)
    add_checkpoint_flag(parser)
    parser.add_argument("--save", metavar="FILE", type=Path, help="a film (.gif, .mp4) or a picture (.png, .pdf, .svg)")
    parser.add_argument(
        "--step", type=int, help="the step that a picture shows (default: the one with the most attacks)"
    )
    parser.add_argument(
        "--every", metavar="N", type=int, help="show one step in N (default: 1, and 3 of air combats); for films"
    )
    parser.add_argument("--episodes", type=int, default=1, help="number of episodes (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the battles and of the player (default: 0)")
    parser.add_argument("--fps", type=float, default=4.0, help="frames shown per second (default: 4)")
    options = parser.parse_strictly(arguments)
    limits = (("episodes", 1), ("seed", 0), ("every", 1), ("step", 0))
    for name, least in limits:
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name}: {value} is not allowed: it must be {least} or more")
    if not 0.1 <= options.fps <= 50.0:
        raise UsageError(f"--fps: {options.fps} is not allowed: it must lie between 0.1 and 50")
    if options.save is not None:
        from components.viewer.film import check_file

        check_file(options.save)
    if options.every is not None and options.save is not None and options.save.suffix not in (".gif", ".mp4"):
        raise UsageError("--every selects the steps of a film: a picture shows one, that of --step")
    if options.step is not None and (options.save is None or options.save.suffix in (".gif", ".mp4")):
        raise UsageError("--step selects the step of a picture: use it with --save FILE.png, .pdf or .svg")

    take = _played(options.played, options.policy, options.opponent, options.checkpoint, options.seed)
    import numpy as np

    rng = np.random.default_rng(options.seed)
    battles = [take(rng) for _ in range(options.episodes)]
    if options.save is None:
        _to_terminal(battles, options.every, options.fps)
    else:
        _to_file(battles, options.save, options.step, options.every, options.fps)
    return 0


def _played(played: str, policy: str | None, opponent: str | None, checkpoint: str | None, seed: int) -> "Take":
    """Return a function that plays an episode and records it."""
    from components.viewer.games import game_of, learnt

    if not Path(played).is_dir():
        if checkpoint is not None:
            raise UsageError(f"--checkpoint is for the directory of a run, and {played!r} is none")
        game, scenario = game_of(played)
        return game.script(scenario, policy, opponent, seed)
    if policy is not None:
        raise UsageError(f"--policy: in {played!r} the policy of the run plays; name a scenario to choose another")
    run = RunDirectory.open(Path(played))
    if opponent is not None and not str(run.config().get("flags", {}).get("env")).startswith("air_combat:"):
        raise UsageError(f"--opponent is for runs in air combat, and {played!r} is none")
    others = () if opponent is None else (f"opponent={opponent}",)
    env, acting, _, _ = load_policy(run, checkpoint, 1, seed=seed, env_arg=others)
    take = learnt(env, acting)
    if take is None:
        env.close()
        raise UsageError(f"{str(run.path)!r} plays {env.spec.name!r} outside the simulators, which cannot be watched")
    return take


def _to_terminal(battles: "Sequence[Recorded]", stride: int | None, fps: float) -> None:
    """Play battles back on a terminal; elsewhere print the last frame of each."""
    from rich.console import Console
    from rich.live import Live

    from components.viewer.recorded import watched
    from components.viewer.screens import screen_of

    console = Console(highlight=False)
    for battle in battles:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for frame in watched(battle, stride):
                    live.update(screen_of(battle, frame), refresh=True)
                    time.sleep(1.0 / fps)
        else:
            console.print(screen_of(battle, battle.frames[-1]))


def _to_file(battles: "Sequence[Recorded]", path: Path, step: int | None, stride: int | None, fps: float) -> None:
    from components.viewer.film import FILMS, save_film, save_picture

    for number, battle in enumerate(battles, start=1):
        last = battle.frames[-1]
        print(f"episode {number}: {last.outcome} after {last.step} steps, reward {last.reward:.2f}")
    if path.suffix in FILMS:
        frames = save_film(battles, path, fps, stride)
        print(f"saved {path} ({frames} frames)")
        return
    if step is None:
        battle = max(battles, key=lambda battle: battle.frames[battle.busiest()].activity)
        step = battle.busiest()
    else:
        battle = battles[0]
        if step >= len(battle.frames):
            raise UsageError(f"--step: {step} is not allowed: the battle went from step 0 to {len(battle.frames) - 1}")
    save_picture(battle, path, step)
    print(f"saved {path} (step {step})")
