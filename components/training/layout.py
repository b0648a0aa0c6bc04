"""The actors of a run, and their nodes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from components import policies
from components.evaluator import Evaluator
from components.federated_trajectories import FederatedTrajectories
from components.monitor import Monitor
from components.orchestrator import Orchestrator
from components.policies.devices import gpus_of, require
from components.proxies import plan_proxies
from components.replay_buffers import FederatedReplay, PrioritizedEpisodeReplay, SampleToInsertRatio
from components.rollout import ActingFactory
from components.rounds import Rounds
from components.schedule import LinearSchedule
from components.sparse import loops
from components.synchronization import SyncRule
from components.trackers import named as trackers
from components.trainer import Trainer
from components.training.cores import Cores
from components.training.environments import Environments
from components.training.pace import Pace
from components.trajectory_manager import ReplayBuffer, TrajectoryManager
from components.worker import Worker
from orchestra import Hosts, HostShape, Ref, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """Settings of the learner and of its experience."""

    algorithm: policies.Algorithm
    """Algorithm of the learner, on its device."""
    replay: ReplayBuffer
    limiter: SampleToInsertRatio | Rounds
    prioritized: bool
    federated: bool
    publish_interval: int
    drop_stale: int | None
    checks_log_prob: bool
    device: str
    compiled: bool
    """True if its loops are compiled before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """Settings of acting, and of the proxies between workers and the Orchestrator."""

    exploration: LinearSchedule
    policy: ActingFactory
    proxy: bool
    proxy_fan_out: int | None
    min_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """Steps of the run, between evaluations and between checkpoints; episodes of evaluations."""

    steps: int
    interval: int
    episodes: int
    final_episodes: int
    checkpoint_interval: int


def lay_out(
    title: str,
    hosts: Hosts,
    cores: Cores,
    made: Environments,
    pace: Pace,
    rule: SyncRule,
    learner: Learner,
    playing: Playing,
    tests: Tests,
    *,
    track: tuple[str, ...],
    track_offline: bool,
) -> Topology:
    """Return the topology: Monitor, Trainer, replay buffer and Orchestrator on one node, an Evaluator, and workers.

    Args:
        title: name of the algorithm.
        hosts: hosts of the run.
        cores: division of their cores.
        made: the environments.
        pace: pace of playing and learning.
        rule: rule by which workers load parameters.
        learner: settings of the learner.
        playing: settings of acting.
        tests: lengths and intervals.
        track: names of trackers that also receive the figures.
        track_offline: True if trackers send nothing.
    """
    spec = made.spec
    topology = Topology(f"{title}_{spec.name}")
    topology.before_start(partial(require, learner.device), everywhere=False)  # the learner is on the head
    topology.before_start(partial(trackers.check, track), everywhere=False)
    topology.before_start(made.prepare)
    if spec.schema.sparse:
        topology.before_start(loops)
    if learner.compiled:
        topology.before_start(policies.prepare)
    node = topology.node("learner", gpus=gpus_of(learner.device))
    monitor = node.spawn(
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
        max(pace.batch_size, pace.buffer_size // len(hosts.playing)),
        alpha=0.6 if learner.prioritized else 0.0,  # with 0 all episodes have the same weight
    )
    trajectories: Ref[Any]
    if learner.federated:
        shard = new_shard()
        union = FederatedReplay(shard.share_fields)
        trajectories = node.spawn("trajectories", FederatedTrajectories, replay=union, schema=shard.schema)
    else:
        trajectories = node.spawn("trajectories", TrajectoryManager, replay=learner.replay)
    orchestrator = node.spawn(
        "orchestrator",
        Orchestrator,
        trajectories=trajectories,
        monitor=monitor,
        limiter=learner.limiter,
        buffer_per_environment=pace.buffer_per_environment,
        batch_size=pace.batch_size,
        goal_steps=tests.steps,
        eval_interval=tests.interval,
        eval_episodes=tests.episodes,
        final_eval_episodes=tests.final_episodes,
        checkpoint_interval=tests.checkpoint_interval,
        drop_stale=learner.drop_stale,
        workers=cores.n_workers,
        sync=rule,
    )
    trainer = node.spawn(
        "trainer",
        Trainer,
        spec=spec,
        policy=learner.algorithm.learner,
        to=orchestrator,
        priorities_to=trajectories if learner.prioritized else None,
        publish_interval=learner.publish_interval,
        sync=rule,
        threads=cores.learner_threads,
        checks_log_prob=learner.checks_log_prob,
    )
    evaluator = topology.node("evaluator").spawn(
        "evaluator", Evaluator, env=made.of_evaluator, policy=playing.policy, to=orchestrator
    )
    topology.require(trajectories, trainer, evaluator)
    shards = (new_shard, trajectories) if learner.federated else None
    upstreams = (
        plan_proxies(topology, hosts, to=orchestrator, fan_out=playing.proxy_fan_out, shards=shards)
        if playing.proxy
        else dict.fromkeys(hosts.playing, orchestrator)
    )

    def plan_worker(host: HostShape, number: int) -> Ref[Any]:
        return topology.node(f"worker-{host.slot}-{number}", on=host).spawn(
            "worker",
            Worker,
            env=made.of_workers,
            policy=playing.policy,
            to=upstreams[host],
            n_envs=pace.envs_per_worker,
            exploration=playing.exploration,
            segment_length=pace.segment_length,
            quiet_steps_per_turn=made.quiet_steps_per_turn,
            sync=rule,
        )

    topology.replicas_on("workers", cores.workers, plan_worker, at_least=playing.min_workers)
    topology.until(orchestrator)
    return topology
