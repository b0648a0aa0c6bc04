"""Any algorithm on any environment: `--algorithm` and `--env`. By default QMIX (Rashid et al. 2018) on 8m of SMAC.

Other experiments are this one with other defaults. `components/training` interprets the flags.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from components import LinearSchedule, policies
from components.envs import SCENARIOS, simulator
from components.envs.adapted import named
from components.policies.devices import gpus_of
from components.synchronization import rule_of_flags
from components.trackers import named as trackers
from components.training.choice import AlgorithmChoice
from components.training.cores import Cores
from components.training.environments import Waiting, environments_of_flags
from components.training.layout import Learner, Playing, Tests, lay_out
from components.training.pace import Pace
from orchestra import Chosen, Hosts, OptionsOf, Topology, UsageError


def experiment(
    *,
    hosts: Hosts,
    algorithm: Annotated[
        str,
        Field(description=f"{', '.join(policies.ALGORITHMS)}, or FILE.py:CLASS, whose options become flags"),
        BeforeValidator(policies.named),
        OptionsOf(policies.class_of, without=("seed", "device")),
    ] = "qmix",
    chosen: Chosen = Chosen(),  # noqa: B008  # empty, and never changed
    scenario: Annotated[str, Field(description=f"of SMAC: {', '.join(SCENARIOS)}, or a scenario file (.toml)")] = "8m",
    ruleset: Annotated[
        Literal["liberty", "lotv"],
        Field(description="simulator: weapon data of the mod that SMAC's maps name, or of the later game"),
    ] = "lotv",
    start_jitter: Annotated[
        float, Field(ge=0, le=8, description="simulator: cells per axis by which starting positions vary")
    ] = 0.0,
    difficulty: Annotated[int, Field(ge=1, le=10, description="simulator: how well the enemies fight")] = 7,
    obs_all_health: Annotated[bool, Field(description="simulator: agents see the health of others")] = True,
    obs_own_health: Annotated[bool, Field(description="simulator: agents see their own health")] = True,
    obs_last_action: Annotated[bool, Field(description="simulator: agents see what others did last")] = False,
    obs_pathing_grid: Annotated[bool, Field(description="simulator: agents see where they can walk")] = False,
    obs_terrain_height: Annotated[bool, Field(description="simulator: agents see heights around them")] = False,
    obs_timestep_number: Annotated[bool, Field(description="simulator: agents see the time")] = False,
    obs_own_position: Annotated[
        Literal["yes", "no"] | None, Field(description="simulator: agents see their place; or as on the original's map")
    ] = None,
    obs_instead_of_state: Annotated[bool, Field(description="simulator: the state is all observations")] = False,
    state_last_action: Annotated[bool, Field(description="simulator: the state holds the last actions")] = True,
    state_timestep_number: Annotated[bool, Field(description="simulator: the state holds the time")] = False,
    obs_starcraft: Annotated[bool, Field(description="simulator: agents see more than the time")] = True,
    fully_observable: Annotated[bool, Field(description="simulator: agents see all units")] = False,
    action_mask: Annotated[bool, Field(description="simulator: units out of reach are no targets")] = True,
    edition: Annotated[
        Literal["2022", "2023", "2023-intended"], Field(description="simulator: SMACv2's filter of enemies")
    ] = "2022",
    prob_obs_enemy: Annotated[
        float, Field(ge=0, le=1, description="simulator: probability of a report of an enemy that another agent found")
    ] = 1.0,
    env: Annotated[
        str,
        Field(description=f"the simulator, StarCraft II, or another environment: {named.FORMS}"),
        BeforeValidator(named.named),
    ] = "skirmish",
    env_arg: Annotated[
        tuple[str, ...], Field(description="other environments: an argument, NAME=VALUE; may be given several times")
    ] = (),
    episode_limit: Annotated[
        int | None, Field(ge=1, description="other environments: steps after which an episode is cut; or as they say")
    ] = None,
    rewards: Annotated[
        Literal["each", "mean", "sum"],
        Field(description="PettingZoo: a reward for each agent, or the team's, their mean or sum"),
    ] = "each",
    game_speed: Annotated[bool, Field(description="steps take as long as StarCraft II's, about 10 ms")] = False,
    steps: Annotated[int, Field(ge=1, description="environment steps of the run")] = 2_000_000,
    workers: Annotated[
        int | None, Field(ge=1, description="worker processes per host; as its cores allow, 1 with --rollout-length")
    ] = None,
    min_workers: Annotated[int, Field(ge=1, description="workers below which the run fails")] = 1,
    envs_per_worker: Annotated[
        int | None, Field(ge=1, description="environments per worker; 64, those of --rollout-length 8")
    ] = None,
    asynchronous: Annotated[bool, Field(description="environments in processes, acted on when they are ready")] = False,
    min_batch: Annotated[int, Field(ge=1, description="asynchronous: environments to wait for before acting")] = 1,
    max_wait: Annotated[float, Field(ge=0, description="asynchronous: seconds to wait, from the first ready")] = 0.002,
    envs_per_process: Annotated[int, Field(ge=1, description="asynchronous: environments in a process")] = 1,
    proxy: Annotated[bool, Field(description="put the workers of each host behind a WorkerProxy")] = True,
    proxy_fan_out: Annotated[
        int | None, Field(ge=2, description="hosts behind a further WorkerProxy on the learner's host; none by default")
    ] = None,
    device: Annotated[str, Field(description="device of the learner: cpu, cuda or cuda:N")] = "cpu",
    learner_threads: Annotated[
        int | None, Field(ge=1, description="threads of the learner; as its cores allow, at most 4")
    ] = None,
    batch_size: Annotated[int | None, Field(ge=1, description="episodes of a batch; 32, COMA 16")] = None,
    segment_length: Annotated[
        int | None, Field(ge=1, description="steps after which workers send a part of an episode; or whole ones")
    ] = None,
    rollout_length: Annotated[
        int | None,
        Field(ge=1, description="steps of each environment for an update; PPO 128, MAPPO, IPPO 400, PQN 64"),
    ] = None,
    overlap: Annotated[
        bool, Field(description="with --rollout-length: play while the last steps are learned, one version behind")
    ] = False,
    buffer_size: Annotated[int, Field(ge=1, description="capacity of the replay buffer in episodes")] = 5_000,
    learning_starts: Annotated[int, Field(ge=1, description="off policy: episodes before the first batch")] = 64,
    updates_per_episode: Annotated[
        float, Field(gt=0, description="off policy: gradient steps for each episode played")
    ] = 0.2,
    prioritized: Annotated[bool, Field(description="sample episodes by their TD errors")] = False,
    federated: Annotated[bool, Field(description="episodes stay on their host; only those of a batch travel")] = False,
    learning_rate: Annotated[float | None, Field(gt=0, description="of the optimiser; 1e-3, COMA 5e-4")] = None,
    optimizer: Annotated[Literal["adam", "rmsprop"], Field(description="Adam, or the RMSProp of PyMARL")] = "adam",
    gamma: Annotated[float, Field(ge=0, le=1, description="discount")] = 0.99,
    td_lambda: Annotated[float | None, Field(ge=0, le=1, description="λ of the TD(λ) targets; 0.6, COMA 0.8")] = None,
    double_q: Annotated[bool, Field(description="double Q-learning: the online network picks the action")] = True,
    hidden_size: Annotated[int, Field(ge=1, description="units of the agents' GRU")] = 64,
    init: Annotated[Literal["uniform", "orthogonal"], Field(description="initial parameters")] = "uniform",
    kernels: Annotated[
        Literal["auto", "numba", "torch"],
        Field(description="what computes gradient steps on a CPU: loops that numba compiles, or plain torch"),
    ] = "auto",
    target_update_interval: Annotated[
        int | None, Field(ge=1, description="gradient steps between copies to the target; 10, COMA 50")
    ] = None,
    critic_steps: Annotated[int, Field(ge=1, description="COMA: critic updates per batch")] = 16,
    epsilon_start: Annotated[float | None, Field(ge=0, le=1, description="initial exploration; 1, COMA 0.5")] = None,
    epsilon_end: Annotated[float | None, Field(ge=0, le=1, description="final exploration; 0.05, COMA 0.01")] = None,
    epsilon_steps: Annotated[
        int, Field(ge=1, description="environment steps from initial to final exploration")
    ] = 120_000,
    publish_interval: Annotated[int, Field(ge=1, description="gradient steps between publications")] = 1,
    sync: Annotated[
        str, Field(description="when workers load parameters: always, every:N, kl:THRESHOLD or greedy:THRESHOLD")
    ] = "always",
    sync_max_lag: Annotated[int | None, Field(ge=1, description="versions behind at which it loads anyway")] = None,
    sync_smoothing: Annotated[float, Field(gt=0, le=1, description="weight of the newest divergence")] = 1.0,
    drop_stale: Annotated[
        int | None, Field(ge=0, description="drop episodes that are more versions of the parameters behind; or none")
    ] = None,
    check_log_prob: Annotated[
        bool, Field(description="compare log-probabilities of experience with the learner's, of its present version")
    ] = False,
    eval_interval: Annotated[int, Field(ge=1, description="environment steps between evaluations")] = 20_000,
    eval_episodes: Annotated[int, Field(ge=1, description="episodes of an evaluation, played greedily")] = 32,
    final_eval_episodes: Annotated[int, Field(ge=1, description="episodes of the best parameters at the end")] = 256,
    checkpoint_interval: Annotated[int, Field(ge=1, description="environment steps between checkpoints")] = 200_000,
    track: Annotated[
        tuple[str, ...],
        Field(description=f"also give the figures to {trackers.FORMS}; may be given several times"),
        BeforeValidator(trackers.named),
    ] = (),
    track_offline: Annotated[
        bool, Field(description="--track: wandb and mlflow send nothing and write to the run's directory")
    ] = False,
) -> Topology:
    """Lay out the run; every argument but `hosts` and `chosen`, options of a class, is a flag of `orchestra run`."""
    choice = AlgorithmChoice.named(algorithm)
    pace = Pace.of_flags(
        choice,
        envs_per_worker=envs_per_worker,
        batch_size=batch_size,
        segment_length=segment_length,
        rollout_length=rollout_length,
        overlap=overlap,
        publish_interval=publish_interval,
        buffer_size=buffer_size,
        updates_per_episode=updates_per_episode,
    )
    waiting = Waiting(
        asynchronous=asynchronous, min_batch=min_batch, max_wait=max_wait, envs_per_process=envs_per_process
    )
    cores = Cores.of_flags(
        hosts,
        learner_threads=learner_threads,
        workers=workers or (None if pace.rollout_length is None else 1),  # each further worker makes a batch larger
        min_workers=min_workers,
        processes=waiting.processes(env, pace.envs_per_worker, game_speed=game_speed),
    )
    if proxy_fan_out is not None and not proxy:
        raise UsageError("--proxy-fan-out is for runs with a proxy on each host; leave out --no-proxy")
    if kernels == "numba" and gpus_of(device):
        raise UsageError(f"--kernels numba is for the CPU; on {device} torch computes: leave it out")
    if federated and (choice.is_coma or not proxy or drop_stale is not None):
        raise UsageError("--federated needs proxies, and works neither with COMA nor with --drop-stale")
    if federated and choice.own_class is not None:
        raise UsageError(f"--federated: batches of it have the fields of a team alone; {algorithm} needs its own")
    rule = rule_of_flags(sync, sync_max_lag, sync_smoothing)
    made = environments_of_flags(
        env,
        scenario=scenario,
        simulated=simulator.options_of_flags(
            ruleset=ruleset,
            start_jitter=start_jitter,
            difficulty=difficulty,
            features={
                "obs_all_health": obs_all_health,
                "obs_own_health": obs_own_health,
                "obs_last_action": obs_last_action,
                "obs_pathing_grid": obs_pathing_grid,
                "obs_terrain_height": obs_terrain_height,
                "obs_timestep_number": obs_timestep_number,
                "obs_own_position": None if obs_own_position is None else obs_own_position == "yes",
                "obs_instead_of_state": obs_instead_of_state,
                "state_last_action": state_last_action,
                "state_timestep_number": state_timestep_number,
                "obs_starcraft": obs_starcraft,
                "fully_observable": fully_observable,
                "action_mask": action_mask,
                "edition": edition,
                "prob_obs_enemy": prob_obs_enemy,
            },
        ),
        env_arg=env_arg,
        episode_limit=episode_limit,
        rewards=rewards,
        game_speed=game_speed,
        waiting=waiting,
    )
    choice.check_environment(made.spec)
    choice.check_used(
        experiment,
        {
            "learning_rate": learning_rate,
            "optimizer": optimizer,
            "gamma": gamma,
            "td_lambda": td_lambda,
            "hidden_size": hidden_size,
            "init": init,
            "kernels": kernels,
            "target_update_interval": target_update_interval,
        },
        critic_steps=critic_steps,
        double_q=double_q,
        exploration={"epsilon_start": epsilon_start, "epsilon_end": epsilon_end, "epsilon_steps": epsilon_steps},
        replay={"learning_starts": learning_starts, "updates_per_episode": updates_per_episode},
    )
    learning = choice.configured(
        {
            "learning_rate": choice.or_default(learning_rate, 1e-3, of_coma=5e-4),
            "optimizer": optimizer,
            "gamma": gamma,
            "td_lambda": choice.or_default(td_lambda, 0.6, of_coma=0.8),
            "hidden_size": hidden_size,
            "init": init,
            "kernels": kernels,
            "target_update_interval": choice.or_default(target_update_interval, 10, of_coma=50),
        },
        chosen,
        critic_steps=critic_steps,
        double_q=double_q,
    )
    schema = learning.schema(made.spec, pace.segment_length)
    if check_log_prob:
        choice.check_log_prob(schema)
    return lay_out(
        choice.title,
        hosts,
        cores,
        made,
        pace,
        rule,
        Learner(
            algorithm=learning.on_device(device),
            replay=pace.replay_buffer(schema, cores.n_workers * pace.envs_per_worker, prioritized=prioritized),
            limiter=pace.limiter(cores.n_workers * pace.envs_per_worker, learning_starts=learning_starts),
            prioritized=prioritized,
            federated=federated,
            publish_interval=publish_interval,
            drop_stale=choice.staleness(drop_stale, pulls=rule.pulls),
            checks_log_prob=check_log_prob,
            device=device,
            compiled=choice.own_class is None and kernels != "torch",
        ),
        Playing(
            exploration=LinearSchedule(
                choice.or_default(epsilon_start, 1.0, of_coma=0.5),
                choice.or_default(epsilon_end, 0.05, of_coma=0.01),
                over=epsilon_steps,
            ),
            policy=learning.acting,
            proxy=proxy,
            proxy_fan_out=proxy_fan_out,
            min_workers=min_workers,
        ),
        Tests(
            steps=steps,
            interval=eval_interval,
            episodes=eval_episodes,
            final_episodes=final_eval_episodes,
            checkpoint_interval=checkpoint_interval,
        ),
        track=track,
        track_offline=track_offline,
    )
