"""Any algorithm on any environment: `--algorithm` and `--env`. By default QMIX (Rashid et al. 2018) on 8m of SMAC.

Other experiments are this one with other defaults.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from components import (
    Evaluator,
    FederatedTrajectories,
    LinearSchedule,
    Monitor,
    Orchestrator,
    Trainer,
    TrajectoryManager,
    Worker,
    envs,
    policies,
)
from components.counters import LEAST_BUFFER
from components.envs import SCENARIOS, simulator
from components.envs.adapted import named
from components.envs.game_speed import GameSpeed
from components.envs.smac import Smac
from components.policies.devices import gpus_of, require
from components.proxies import plan_proxies
from components.replay_buffers import (
    EpisodeReplay,
    FederatedReplay,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
    SampleToInsertRatio,
)
from components.rollout import EnvFactory
from components.rounds import Rounds
from components.synchronization import rule_of_flags
from components.trackers import named as trackers
from components.trajectory_manager import ReplayBuffer
from orchestra import Chosen, Hosts, HostShape, OptionsOf, Ref, Topology, UsageError


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
        Literal["liberty", "lotv"], Field(description="simulator: weapon data of SMAC's maps, or of the later game")
    ] = "liberty",
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
    fully_observable: Annotated[bool, Field(description="simulator: agents see everybody")] = False,
    action_mask: Annotated[bool, Field(description="simulator: units out of reach are no targets")] = True,
    edition: Annotated[
        Literal["2022", "2023", "2023-intended"], Field(description="simulator: SMACv2's filter of enemies")
    ] = "2022",
    prob_obs_enemy: Annotated[
        float, Field(ge=0, le=1, description="simulator: chance to hear of an enemy that another agent has found")
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
    workers: Annotated[int | None, Field(ge=1, description="worker processes per host; or as its cores allow")] = None,
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
        int | None, Field(ge=1, description="steps of each environment for an update; PPO 128, MAPPO and IPPO 400")
    ] = None,
    overlap: Annotated[
        bool, Field(description="with --rollout-length: play while the last steps are learned, one version behind")
    ] = False,
    buffer_size: Annotated[int, Field(ge=1, description="capacity of the replay buffer in episodes")] = 5_000,
    learning_starts: Annotated[int, Field(ge=1, description="episodes before the first batch")] = 64,
    updates_per_episode: Annotated[float, Field(gt=0, description="gradient steps for each episode played")] = 0.2,
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
    ] = 150_000,
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
    own_class = policies.class_of(algorithm)
    coma = algorithm == "coma"
    on_policy = coma or (own_class is not None and own_class.on_policy)
    if rollout_length is not None and (own_class is None or not own_class.on_policy):
        raise UsageError(f"--rollout-length: {algorithm} does not learn in rounds of steps")
    rollout_length = rollout_length or (own_class.rollout_length if own_class is not None else None)
    if rollout_length is None and overlap:
        raise UsageError("--overlap needs --rollout-length")
    if rollout_length is not None and (batch_size or segment_length or publish_interval != 1):
        raise UsageError(
            "--batch-size, --segment-length and --publish-interval are not for updates of --rollout-length steps, "
            "which are of all of them"
        )
    segment_length = segment_length or rollout_length
    envs_per_worker = envs_per_worker or (64 if rollout_length is None else 8)
    batch_size = 1 if rollout_length is not None else batch_size or (16 if on_policy else 32)
    learning_rate = learning_rate or (5e-4 if coma else 1e-3)
    td_lambda = td_lambda if td_lambda is not None else (0.8 if coma else 0.6)
    target_update_interval = target_update_interval or (50 if coma else 10)
    epsilon_start = epsilon_start if epsilon_start is not None else (0.5 if coma else 1.0)
    epsilon_end = epsilon_end if epsilon_end is not None else (0.01 if coma else 0.05)
    # Games of StarCraft II, and environments in processes that do not wait for the game, use a core each.
    processes = -(-envs_per_worker // envs_per_process) if (asynchronous or env == "smac") and not game_speed else 0
    n_cores = hosts[0].cores
    learner_threads = learner_threads or max(1, min(n_cores, 4 if n_cores >= 8 else 2))
    learner_cores = learner_threads + 1  # and the evaluator's
    counts = {
        host: workers or host.room_for(1 + processes, reserved=learner_cores if host.slot == 0 else 0)
        for host in hosts.playing
    }
    n_workers = sum(counts.values())
    if min_workers > n_workers:
        raise UsageError(f"--min-workers: {min_workers} is more than the {n_workers} workers of the run")
    if buffer_size < batch_size:
        raise UsageError(f"a replay buffer of {buffer_size} episodes never holds a batch of {batch_size}")
    if proxy_fan_out is not None and not proxy:
        raise UsageError("--proxy-fan-out is for runs with a proxy on each host; leave out --no-proxy")
    if game_speed and env != "skirmish":
        raise UsageError("--game-speed slows the simulator down; other environments take their own time")
    if env in named.OURS and (env_arg or episode_limit is not None or rewards != "each"):
        raise UsageError(f"--env-arg, --episode-limit and --rewards are for other environments than {env}")
    if asynchronous and env == "smac":
        raise UsageError("--asynchronous is for the simulator; games of StarCraft II always have their own processes")
    if not asynchronous and (envs_per_process != 1 or (env != "smac" and (min_batch, max_wait) != (1, 0.002))):
        raise UsageError("--min-batch, --max-wait and --envs-per-process need --asynchronous")
    if kernels == "numba" and gpus_of(device):
        raise UsageError(f"--kernels numba is for the CPU; on {device} torch computes: leave it out")
    if federated and (coma or not proxy or drop_stale is not None):
        raise UsageError("--federated needs proxies, and works neither with COMA nor with --drop-stale")
    rule = rule_of_flags(sync, sync_max_lag, sync_smoothing)
    if drop_stale is None and own_class is not None and not rule.pulls:
        drop_stale = own_class.max_staleness
    waits: dict[str, Any] = {"min_batch": min_batch, "max_wait_s": max_wait}
    simulated = simulator.options_of_flags(
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
    )
    if simulated and env != "skirmish":
        options_given = ", ".join(simulator.flags_of_options(simulated))
        raise UsageError(f"{options_given}: for the simulator alone, and --env is {env}")
    make_env: EnvFactory = partial(envs.Skirmish, scenario, **simulated)
    if env == "smac":
        make_env = partial(Smac, scenario, **waits)
    if env not in named.OURS:
        arguments = named.arguments_of(env_arg)
        make_env = named.factory_of(env, arguments, episode_limit=episode_limit, rewards=rewards)
    planned = make_env(1, seed=0)
    spec = planned.spec
    planned.close()
    if own_class is None and spec.fields:
        hint = "; --rewards mean makes one of all" if spec.schema.by_name["reward"].agents else ""
        raise UsageError(
            f"--algorithm: {algorithm} learns from flat observations, discrete actions and one reward of the team, "
            f"which {spec.name} does not have{hint}"
        )
    workers_env: EnvFactory = partial(GameSpeed, make_env) if game_speed else make_env
    if asynchronous:
        workers_env = partial(envs.AsyncEnv, workers_env, envs_per_process=envs_per_process, **waits)
    options: policies.RecurrentOptions = {
        "learning_rate": learning_rate,
        "optimizer": optimizer,
        "gamma": gamma,
        "td_lambda": td_lambda,
        "hidden_size": hidden_size,
        "init": init,
        "kernels": kernels,
        "target_update_interval": target_update_interval,
    }
    at_once = n_workers * envs_per_worker
    # Room for what all environments may deliver at once, twice, so that neither side waits in steps.
    buffer_per_environment = None if on_policy else 2.0 * updates_per_episode
    if own_class is None:
        if segment_length is not None:
            raise UsageError(f"--segment-length: {algorithm} learns from whole episodes")
        own: dict[str, Any] = {"critic_learning_rate": learning_rate, "critic_steps": critic_steps}
        learning = policies.ALGORITHMS[algorithm].configured(**options, **(own if coma else {"double_q": double_q}))
    else:
        learning = policies.Algorithm.of_class(own_class, options, chosen)
        if federated:
            raise UsageError(f"--federated: batches of it have the fields of a team alone; {algorithm} needs its own")
    schema = learning.schema(spec, segment_length)
    if check_log_prob and "log_prob" not in schema.by_name:
        raise UsageError(f"--check-log-prob: {algorithm} does not declare the field log_prob")
    replay: ReplayBuffer
    limiter: SampleToInsertRatio | Rounds
    if on_policy:
        if prioritized:
            name = "COMA" if coma else algorithm.rpartition(":")[2]
            raise UsageError(f"{name} learns from each episode once, so there is nothing to prioritise")
        # Workers stop when two batches wait: COMA learns from episodes of the current policy only.
        limiter = SampleToInsertRatio(1 / batch_size, min_size=batch_size, error_buffer=(0.0, 2.0))
        # Nothing that waits may be dropped: there is room for what is on its way when workers are told to wait.
        replay = FreshEpisodes(schema, max(buffer_size, 4 * batch_size + 2 * at_once))
        if rollout_length is not None:
            limiter = Rounds(rollout_length, overlap=int(overlap))
            replay = FreshEpisodes(schema, max(buffer_size, (2 + overlap) * (rollout_length + 1) * at_once))
    else:
        limiter = SampleToInsertRatio(
            updates_per_episode,
            min_size=max(learning_starts, batch_size),
            error_buffer=max(2.0 * updates_per_episode * at_once, LEAST_BUFFER),
        )
        replay = (PrioritizedEpisodeReplay if prioritized else EpisodeReplay)(schema, buffer_size)

    title = algorithm if own_class is None else own_class.__name__.lower()
    topology = Topology(f"{title}_{spec.name}")
    topology.before_start(partial(require, device), everywhere=False)  # the learner is on the head
    topology.before_start(partial(trackers.check, track), everywhere=False)
    topology.before_start(planned.prepare)
    if own_class is None and kernels != "torch":
        topology.before_start(policies.prepare)
    learner = topology.node("learner", gpus=gpus_of(device))
    monitor = learner.spawn(
        "monitor",
        Monitor,
        title=f"{title} {spec.name}",
        can_be_won=spec.can_be_won,
        reward_threshold=spec.reward_threshold,
        trackers=trackers.factories(track, offline=track_offline),
    )
    new_shard = partial(
        PrioritizedEpisodeReplay,
        spec,
        max(batch_size, buffer_size // len(hosts.playing)),
        alpha=0.6 if prioritized else 0.0,  # with 0 all episodes weigh the same
    )
    planned_shard = new_shard()
    union = FederatedReplay(planned_shard.share_fields)
    trajectories: Ref[Any] = (
        learner.spawn("trajectories", FederatedTrajectories, replay=union, schema=planned_shard.schema)
        if federated
        else learner.spawn("trajectories", TrajectoryManager, replay=replay)
    )
    orchestrator = learner.spawn(
        "orchestrator",
        Orchestrator,
        trajectories=trajectories,
        monitor=monitor,
        limiter=limiter,
        buffer_per_environment=buffer_per_environment,
        batch_size=batch_size,
        goal_steps=steps,
        eval_interval=eval_interval,
        eval_episodes=eval_episodes,
        final_eval_episodes=final_eval_episodes,
        checkpoint_interval=checkpoint_interval,
        drop_stale=drop_stale,
        workers=n_workers,
        sync=rule,
    )
    trainer = learner.spawn(
        "trainer",
        Trainer,
        spec=spec,
        policy=learning.on_device(device).learner,
        to=orchestrator,
        priorities_to=trajectories if prioritized else None,
        publish_interval=publish_interval,
        sync=rule,
        threads=learner_threads,
        checks_log_prob=check_log_prob,
    )
    evaluator = topology.node("evaluator").spawn(
        "evaluator", Evaluator, env=make_env, policy=learning.acting, to=orchestrator
    )
    topology.require(trajectories, trainer, evaluator)
    shards = (new_shard, trajectories) if federated else None
    upstreams = (
        plan_proxies(topology, hosts, to=orchestrator, fan_out=proxy_fan_out, shards=shards)
        if proxy
        else dict.fromkeys(hosts.playing, orchestrator)
    )

    def plan_worker(host: HostShape, number: int) -> Ref[Any]:
        return topology.node(f"worker-{host.slot}-{number}", on=host).spawn(
            "worker",
            Worker,
            env=workers_env,
            policy=learning.acting,
            to=upstreams[host],
            n_envs=envs_per_worker,
            exploration=LinearSchedule(epsilon_start, epsilon_end, over=epsilon_steps),
            segment_length=segment_length,
            sync=rule,
        )

    topology.replicas_on("workers", counts, plan_worker, at_least=min_workers)
    topology.until(orchestrator)
    return topology
