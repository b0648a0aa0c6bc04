"""`orchestra play`: look at battles of a script or a trained policy."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from components.reporting.saved_policy import add_checkpoint_flag, load_policy
from orchestra import FlagParser, RunDirectory, UsageError

if TYPE_CHECKING:
    from components.envs import Skirmish
    from components.viewer.players import PlayerFactory
    from components.viewer.recording import Battle


def command(arguments: list[str]) -> int:
    """Play battles and show them in the terminal, or save them as a film or a picture."""
    parser = FlagParser(
        prog="orchestra play",
        description="Play battles and show them: in the terminal, or in a file. In the scenario of a run its policy "
        "plays, greedily.",
    )
    parser.add_argument("played", metavar="SCENARIO|RUN_DIR", help="a map, such as 8m, a scenario file, or a run")
    parser.add_argument("--policy", default=None, help="random, nearest or weakest (default: nearest)")
    add_checkpoint_flag(parser)
    parser.add_argument("--save", metavar="FILE", type=Path, help="a film (.gif, .mp4) or a picture (.png, .pdf, .svg)")
    parser.add_argument(
        "--step", type=int, help="the step that a picture shows (default: the one with the most attacks)"
    )
    parser.add_argument("--episodes", type=int, default=1, help="number of episodes (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the battles and of the player (default: 0)")
    parser.add_argument("--fps", type=float, default=4.0, help="steps shown per second; the game makes 2 (default: 4)")
    options = parser.parse_strictly(arguments)
    for name, value, least in (("episodes", options.episodes, 1), ("seed", options.seed, 0)):
        if value < least:
            raise UsageError(f"--{name}: {value} is not allowed: it must be {least} or more")
    if not 0.1 <= options.fps <= 50.0:
        raise UsageError(f"--fps: {options.fps} is not allowed: it must lie between 0.1 and 50")
    if options.save is not None:
        from components.viewer.film import check_file

        check_file(options.save)
    if options.step is not None and (options.save is None or options.save.suffix in (".gif", ".mp4")):
        raise UsageError("--step selects the step of a picture: use it with --save FILE.png, .pdf or .svg")

    env, make_player = _played(options.played, options.policy, options.checkpoint, options.seed)
    import numpy as np

    from components.viewer.recording import record

    rng = np.random.default_rng(options.seed)
    battles = [record(env, make_player(env, rng)) for _ in range(options.episodes)]
    if options.save is None:
        _to_terminal(battles, options.fps)
    else:
        _to_file(battles, options.save, options.step, options.fps)
    return 0


def _played(played: str, policy: str | None, checkpoint: str | None, seed: int) -> tuple["Skirmish", "PlayerFactory"]:
    """Return the environment and the maker of its player."""
    from components.envs import Skirmish
    from components.viewer.players import PLAYERS, policy_player

    if not Path(played).is_dir():
        if checkpoint is not None:
            raise UsageError(f"--checkpoint is for the directory of a run, and {played!r} is none")
        if policy is not None and policy not in PLAYERS:
            raise UsageError(f"--policy: there is no {policy!r}; there are {', '.join(PLAYERS)}")
        return _skirmish(played, seed), PLAYERS[policy or "nearest"]
    if policy is not None:
        raise UsageError(f"--policy: in {played!r} the policy of the run plays; name a scenario to choose another")
    run = RunDirectory.open(Path(played))
    env, learnt, _, _ = load_policy(run, checkpoint, 1, seed=seed)
    if not isinstance(env, Skirmish):
        env.close()
        raise UsageError(f"{str(run.path)!r} plays {env.spec.name!r} outside the simulator, which cannot be watched")
    return env, policy_player(learnt)


def _skirmish(scenario: str, seed: int) -> "Skirmish":
    from components.envs import Skirmish

    try:
        return Skirmish(scenario, 1, seed=seed)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _to_terminal(battles: "Sequence[Battle]", fps: float) -> None:
    """Play battles back on a terminal; elsewhere print the last frame of each."""
    from rich.console import Console
    from rich.live import Live

    from components.viewer.terminal import show

    console = Console(highlight=False)
    for battle in battles:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for frame in battle.frames:
                    live.update(show(battle, frame), refresh=True)
                    time.sleep(1.0 / fps)
        else:
            console.print(show(battle, battle.frames[-1]))


def _to_file(battles: "Sequence[Battle]", path: Path, step: int | None, fps: float) -> None:
    from components.viewer.film import FILMS, save_film, save_picture

    for number, battle in enumerate(battles, start=1):
        last = battle.frames[-1]
        print(f"episode {number}: {last.outcome} after {last.step} steps, reward {last.reward:.2f}")
    if path.suffix in FILMS:
        frames = save_film(battles, path, fps)
        print(f"saved {path} ({frames} frames)")
        return
    if step is None:
        battle = max(battles, key=lambda battle: len(battle.frames[battle.busiest()].strikes))
        step = battle.busiest()
    else:
        battle = battles[0]
        if not 0 <= step < len(battle.frames):
            raise UsageError(f"--step: {step} is not allowed: the battle went from step 0 to {len(battle.frames) - 1}")
    save_picture(battle, path, step)
    print(f"saved {path} (step {step})")
