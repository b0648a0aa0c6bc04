"""FederatedTrajectories: sends batches to the Trainer, drawn from the shards of all hosts."""

import asyncio
from collections import Counter, deque
from typing import Any, ClassVar

import numpy as np

from components.checkpoints import run_state
from components.downstream import send_downstream
from components.experience import ExperienceSchema
from components.policies.base import EpisodeBatch
from components.replay_buffers import ClientSample, FederatedReplay, NotPushed, SampledUnion
from components.replay_buffers.episodes import Sampled
from components.replay_buffers.segments import LENGTHS
from components.trajectory_manager import batch_message
from messages import (
    BatchTrainingDataMsg,
    DrawEpisodesMsg,
    InsertTransitionMsg,
    NotSavedMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    ShardEpisodesMsg,
    ShardSizeMsg,
    UpdatePriorityMsg,
)
from orchestra import (
    Actor,
    AskFailed,
    DeliveryError,
    Escalate,
    Message,
    Ref,
    Supervision,
    TerminatedMsg,
    Unreachable,
    UsageError,
    collect_files,
    freeze,
    on,
)

EMPTY_S = 60.0
"""Seconds for which a batch waits for experience once all shards are empty or lost."""
_SHARD_BITS = 40
"""In an index of a batch, the lowest bits are the index in the shard; above them is the number of the shard."""


class StillEmptyMsg(Message):
    """Check whether a batch has waited too long for experience; the actor sends it to itself."""

    number: int
    """Number of the batch."""


class ShardsLost(Unreachable):
    """No shard holds experience any more, and none comes."""


class FederatedTrajectories(
    Actor[
        InsertTransitionMsg
        | SampleBatchMsg
        | UpdatePriorityMsg
        | SaveCheckpointMsg
        | ShardSizeMsg
        | ShardEpisodesMsg
        | StillEmptyMsg
    ]
):
    """Replaces the TrajectoryManager when each host keeps its experience in a `ReplayShard`.

    A batch is drawn from the union of all shards, as from one buffer: the probability of an episode is its share of the
    weights of all shards. So a batch waits for the shards that it is drawn from. The experience of a lost host is lost
    with it, and the other hosts continue. A batch that finds no experience for `EMPTY_S` seconds ends the run.

    Args:
        replay: draws from the episodes that shards send.
        schema: schema of the experience, which is whole episodes.

    Raises:
        UsageError: the schema has fields of episodes besides `epsilon`. Shards keep no such fields; `epsilon` is 0 in a
            batch.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, replay: FederatedReplay, schema: ExperienceSchema) -> None:
        if others := set(schema.segments) - {"epsilon"}:
            raise UsageError(f"a federated replay buffer keeps no field of episodes: {', '.join(sorted(others))}")
        self._replay, self._schema = replay, schema
        self._shards: dict[str, tuple[int, Ref[Any]]] = {}
        """Number and ref of each shard, by address."""
        self._joined = 0
        """Number of shards so far, from which a new shard gets its number."""
        self._asked: Counter[str] = Counter()
        """Episodes requested from each shard and not yet sent."""
        self._requests: deque[SampleBatchMsg] = deque()

    async def started(self) -> None:
        if self.resume_from is not None:
            values, _ = run_state.read(self.resume_from, self.me.address)
            self.rng.bit_generator.state = values["rng"]

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        """Do nothing: the shard of the host has the episodes."""

    @on(ShardSizeMsg)
    async def resize(self, msg: ShardSizeMsg) -> None:
        nothing = np.zeros(0, np.int64)
        self._add(msg, ClientSample({}, nothing, nothing, np.zeros(0), msg.total, msg.held, msg.inserted))
        await self._serve()

    @on(ShardEpisodesMsg)
    async def take(self, msg: ShardEpisodesMsg) -> None:
        size, episodes = msg.size, msg.episodes
        batch: dict[str, Any] = {}
        if episodes is not None:
            batch = {**episodes.fields, "lengths": episodes.lengths, "terminated": episodes.terminated}
        sample = ClientSample(batch, msg.indices, msg.generations, msg.weights, size.total, size.held, size.inserted)
        self._add(size, sample)
        # A shard without weight has sent nothing; it is asked again once it has weight.
        self._asked[size.shard.address] -= len(msg.indices) or self._asked[size.shard.address]
        await self._serve()

    @on(TerminatedMsg)
    async def lose(self, msg: TerminatedMsg) -> None:
        if self._shards.pop(msg.address, None) is not None:
            (self.log.info if msg.graceful else self.log.warning)(
                "a shard of the replay buffer is lost", shard=msg.address, reason=msg.reason
            )
            self._replay.leave(msg.address)
            del self._asked[msg.address]
            await self._serve()

    @on(SampleBatchMsg)
    async def sample(self, msg: SampleBatchMsg) -> None:
        self._requests.append(msg)
        await self._serve()

    @on(StillEmptyMsg)
    async def give_up(self, msg: StillEmptyMsg) -> None:
        if self._requests and self._requests[0].number == msg.number and not await self._serve():
            raise ShardsLost(f"no host has held any experience for {EMPTY_S:g} s, and a batch waits for it")

    @on(UpdatePriorityMsg)
    async def update(self, msg: UpdatePriorityMsg) -> None:
        numbers, indices = msg.indices >> _SHARD_BITS, msg.indices & ((1 << _SHARD_BITS) - 1)
        for number, ref in self._shards.values():
            mine = numbers == number
            if mine.any():
                arrays = {"indices": indices, "generations": msg.generations, "priorities": msg.priorities}
                chosen = {name: freeze(array[mine]) for name, array in arrays.items()}
                await send_downstream(ref, UpdatePriorityMsg(**chosen))

    @on(SaveCheckpointMsg)
    async def save(self, msg: SaveCheckpointMsg) -> str | NotSavedMsg:
        values = {"rng": self.rng.bit_generator.state}
        answers = await asyncio.gather(*(self._saved(ref, msg) for _, ref in self._shards.values()))
        if error := next(filter(None, answers), ""):
            return NotSavedMsg(error=error)
        try:
            folder = run_state.write(self.run_directory, msg.env_steps, self.me.address, values)
        except OSError as failed:
            return NotSavedMsg(error=run_state.reason(failed))
        staged = f"state/{folder.name}"
        error = await collect_files(self.me.address, f"{staged}/*", into=staged)
        return NotSavedMsg(error=error) if error else str(folder)

    async def _saved(self, shard: Ref[Any], msg: SaveCheckpointMsg) -> str:
        """Ask a shard to save; return its error, or an empty text. A lost shard is not in the checkpoint."""
        try:
            saved = await shard.ask(msg)
        except (AskFailed, DeliveryError) as error:
            self.log.warning("a shard is not in the checkpoint", shard=shard.address, reason=str(error))
            return ""
        return saved.error if isinstance(saved, NotSavedMsg) else ""

    def _add(self, size: ShardSizeMsg, sample: ClientSample) -> None:
        address = size.shard.address
        if address not in self._shards:
            self._joined += 1
            self._shards[address] = self._joined, size.shard
            self._replay.join(address)
            self.watch(size.shard)
        self._replay.add(address, sample, trusted=True)

    async def _serve(self) -> bool:
        """Send the batches that can be drawn, and ask shards for missing episodes; return False if all are empty."""
        while self._requests:
            request = self._requests[0]
            try:
                missing = self._replay.missing(request.batch_size, self.rng)
            except NotPushed:
                self.after(EMPTY_S, StillEmptyMsg(number=request.number))
                return False
            for address, count in missing.items():
                if (more := count - self._asked[address]) > 0:
                    self._asked[address] += more
                    await send_downstream(self._shards[address][1], DrawEpisodesMsg(episodes=more))
            if missing:
                return True
            self._requests.popleft()
            await request.trainer.tell(self._batch(request, self._replay.draw(request.batch_size, self.rng)))
        return True

    def _batch(self, request: SampleBatchMsg, drawn: SampledUnion) -> BatchTrainingDataMsg:
        numbers = np.array([self._shards[name][0] for name in drawn.names], np.int64)
        arrays, schema = {name: freeze(array) for name, array in drawn.batch.items()}, self._schema
        no_epsilon = freeze(np.zeros(request.batch_size, np.float32))
        indices = freeze((numbers[drawn.whose] << _SHARD_BITS) | drawn.indices)
        batch = EpisodeBatch.of_rows(
            lengths=arrays[LENGTHS],
            terminated=arrays["terminated"],
            weights=freeze(drawn.weights),
            per_frame={name: arrays[name] for name in schema.frames},
            per_step={name: arrays[name] for name in schema.steps},
            per_segment=dict.fromkeys(schema.segments, no_epsilon),
        )
        return batch_message(request.number, Sampled(batch, indices, freeze(drawn.generations)), self._schema)
