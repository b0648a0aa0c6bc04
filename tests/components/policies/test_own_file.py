"""An algorithm may stand in a file of the user's."""

import re
from pathlib import Path

import numpy as np
import pytest

from components.envs.base import EnvSpec
from components.policies import ALGORITHMS, Algorithm, Policy, Qmix, class_of, named
from components.policies.acting import RecurrentActing, epsilon_greedy, recurrent_acting
from orchestra import Hosts, UsageError, build, load_experiment
from orchestra.cli.main import main
from orchestra.hosts.shape import this_machine
from orchestra.runs.specialised import flags_of

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docs" / "examples" / "actor_critic.py"
SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)


def test_an_algorithm_is_named_by_its_whole_path_wherever_the_command_is_given(monkeypatch) -> None:
    monkeypatch.chdir(FILE.parent)
    assert named("actor_critic.py:ActorCritic") == f"{FILE}:ActorCritic"
    made = class_of("actor_critic.py:ActorCritic")
    assert made is not None
    assert issubclass(made, Policy)
    assert named(made) == f"{FILE}:ActorCritic"  # passed from Python
    assert class_of(made).__qualname__ == "ActorCritic"
    assert [named(name) for name in ALGORITHMS] == list(ALGORITHMS)
    assert class_of("qmix") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("qmx", f"must be {', '.join(ALGORITHMS)}, or FILE.py:CLASS"),
        ("mine.py", f"must be {', '.join(ALGORITHMS)}, or FILE.py:CLASS"),
        ("there/is/none.py:Mappo", "--algorithm: there is no file '"),
        (f"{FILE}:Network", "'Network' is no subclass of Policy in this file"),
        (f"{FILE}:Nobody", "'Nobody' is no subclass of Policy in this file"),
    ],
)
def test_a_slip_in_its_name_is_one_sentence(value: str, expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        flags_of(load_experiment(ROOT / "experiments" / "qmix_8m.py"), {"algorithm": value})[1].validated(
            {"algorithm": value}
        )


def test_its_options_are_flags_and_reach_the_learner_and_the_workers() -> None:
    given = {"algorithm": f"{FILE}:ActorCritic", "width": 5, "segment_length": 9, "scenario": "3m", "workers": 1}
    function, flags = flags_of(load_experiment(ROOT / "experiments" / "qmix_8m.py"), given)
    assert "units of the body" in flags.describe()
    topology = build(function, flags.validated(given), Hosts([this_machine()]))
    planned = {actor.kind.__name__: actor.factory.keywords for node in topology.nodes.values() for actor in node.actors}
    spec = planned["Trainer"]["spec"]
    assert planned["Trainer"]["policy"](spec, seed=0).width == 5
    worker = planned["Worker"]
    assert worker["policy"](spec, seed=0).width == 5
    assert worker["segment_length"] == 9
    schema = planned["TrajectoryManager"]["replay"].schema
    assert (schema.limit, schema.steps, schema.segments) == (9, ("actions", "reward", "log_prob"), ())


def test_a_class_that_passes_keywords_on_gets_the_shared_options() -> None:
    class Mine(Qmix):
        pass

    learning = Algorithm.of_class(Mine, {"gamma": 0.5}, {"mixer_embed": 4})
    learner = learning.on_device("cpu").learner(SPEC, seed=0)
    assert (learner.options.gamma, learner.mixer_embed) == (0.5, 4)
    alone = class_of(f"{FILE}:ActorCritic")
    assert alone is not None
    assert Algorithm.of_class(alone, {"gamma": 0.5}, {"width": 4}).on_device("cpu").options == {"width": 4}
    with pytest.raises(UsageError, match="takes no device"):
        Algorithm.of_class(alone, {}, {}).on_device("cuda")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("width", 0, "--width: 0 is not allowed"),
        ("width", "wide", "--width: 'wide' is not a whole number"),
        ("gamma", 1.5, "--gamma: 1.5 is not allowed"),
        ("no_such", 1, "unknown flag --no-such"),
    ],
)
def test_the_values_of_its_options_are_checked(option: str, value: object, expected: str) -> None:
    given = {"algorithm": f"{FILE}:ActorCritic", option: value}
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}"):
        flags_of(load_experiment(ROOT / "experiments" / "qmix_8m.py"), given)[1].validated(given)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--algorithm ppo --optimizer rmsprop", "--optimizer: 'rmsprop' is not allowed: ppo does not use this flag"),
        ("--algorithm mappo --kernels torch", "--kernels: 'torch' is not allowed: mappo does not use this flag"),
        (
            f"--algorithm {FILE}:ActorCritic --td-lambda 0.5",
            "--td-lambda: 0.5 is not allowed: actorcritic does not use",
        ),
        ("--algorithm coma --no-double-q", "--double-q: False is not allowed: coma does not use this flag"),
        ("--algorithm qmix --critic-steps 4", "--critic-steps: 4 is not allowed: qmix does not use this flag"),
        ("--algorithm ppo --epsilon-end 0", "--epsilon-end: 0.0 is not allowed: ppo does not use this flag"),
        ("--algorithm mappo --epsilon-steps 9", "--epsilon-steps: 9 is not allowed: mappo does not use this flag"),
        (f"--algorithm {FILE}:ActorCritic --epsilon-start 0.5", "--epsilon-start: 0.5 is not allowed: actorcritic"),
        ("--algorithm pqn --learning-starts 8", "--learning-starts: 8 is not allowed: pqn does not use this flag"),
        ("--algorithm coma --updates-per-episode 1", "--updates-per-episode: 1.0 is not allowed: coma does not use"),
        ("--algorithm pqn --epsilon-end 0 --epsilon-steps 9", None),
        ("--algorithm coma --epsilon-end 0.1", None),
        ("--algorithm ppo --optimizer adam --gamma 0.9", None),  # a default, and an option of its own
        ("--algorithm coma --critic-steps 4 --td-lambda 0.5", None),
        ("--algorithm vdn --no-double-q --optimizer rmsprop", None),
        (f"--algorithm {ROOT / 'docs' / 'examples' / 'weighted_qmix.py'}:WeightedQmix --td-lambda 0.5", None),
    ],
)
def test_a_flag_that_an_algorithm_does_not_use_is_refused(words: str, expected: str | None, capsys) -> None:
    assert main(["run", str(ROOT / "experiments" / "train.py"), *words.split(), "--dry-run"]) == (2 if expected else 0)
    assert (expected or "") in capsys.readouterr().err


def test_the_help_of_a_run_shows_its_options(capsys) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["run", str(ROOT / "experiments" / "qmix_8m.py"), "--algorithm", f"{FILE}:ActorCritic", "--help"])
    shown = capsys.readouterr().out
    assert re.search(r"--width int >= 1 += 32 +units of the body", shown)


def test_a_named_algorithm_may_have_flags_of_its_own(monkeypatch) -> None:
    assert class_of("qmix") is None
    monkeypatch.setitem(
        ALGORITHMS,
        "mixed",
        Algorithm("components.policies.qmix:Qmix", recurrent_acting(epsilon_greedy), own_flags=True),
    )
    assert class_of("mixed") is Qmix
    given = {"algorithm": "mixed", "mixer_embed": 4, "scenario": "3m", "workers": 1, "gamma": 0.5}
    function, flags = flags_of(load_experiment(ROOT / "experiments" / "qmix_8m.py"), given)
    assert "--mixer-embed" in flags.describe()
    topology = build(function, flags.validated(given), Hosts([this_machine()]))
    planned = {actor.kind.__name__: actor.factory.keywords for node in topology.nodes.values() for actor in node.actors}
    learner = planned["Trainer"]["policy"](planned["Trainer"]["spec"], seed=0)
    assert (learner.mixer_embed, learner.options.gamma) == (4, 0.5)
    assert isinstance(planned["Worker"]["policy"](SPEC, seed=0), RecurrentActing), "its workers act as its entry says"


def test_the_example_moves_its_value_towards_a_constant_return() -> None:
    made = class_of(f"{FILE}:ActorCritic")
    assert made is not None
    policy = made(SPEC, seed=0, learning_rate=1e-2)
    rng = np.random.default_rng(0)
    frames = {"obs": rng.random((8, 2, 4), np.float32), "available": np.ones((8, 2, 3), np.bool_)}
    before = np.abs(policy.last_frame(frames, np.zeros((8, 2)), policy.initial_hidden(8))["value"] - 3.0).mean()
    from components.policies import EpisodeBatch

    for _ in range(60):
        acted = policy.act_on(frames, np.zeros((8, 2)), policy.initial_hidden(8), epsilon=1.0, rng=rng)
        twice = {name: np.repeat(array[:, None], 2, 1) for name, array in frames.items()}
        batch = EpisodeBatch(
            **twice,
            state=np.zeros((8, 2, 5), np.float32),
            actions=acted.actions[:, None],
            reward=np.full((8, 1), 3.0, np.float32),
            log_prob=acted.fields["log_prob"][:, None],
            value=np.repeat(acted.fields["value"][:, None], 2, 1),
            lengths=np.ones(8, np.int32),
            terminated=np.ones(8, np.bool_),
            weights=np.ones(8, np.float32),
        )
        policy.learn(batch)
    after = np.abs(policy.last_frame(frames, np.zeros((8, 2)), policy.initial_hidden(8))["value"] - 3.0).mean()
    assert after < before / 4
