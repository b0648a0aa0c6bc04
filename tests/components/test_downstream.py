"""What goes down reaches those who are there, and credits are never more than what their giver may take."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from components.downstream import MOST_AHEAD, Downstream, send_downstream
from messages import CollectMsg
from messages.control import PAUSE
from orchestra import Ref

COLLECT = CollectMsg(episodes=5, received=0, unit="segments")


def test_who_is_there_is_told(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = scene.probe("worker", CollectMsg)
            await send_downstream(worker.ref, COLLECT)
            assert await worker.hear(CollectMsg) == COLLECT

    run(main())


def test_who_is_gone_is_passed_over(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = scene.probe("worker", CollectMsg)
            await scene.kill(worker)
            await send_downstream(worker.ref, COLLECT)
            await send_downstream(scene.node.ref("elsewhere/worker"), COLLECT)
            assert worker.of(CollectMsg) == []

    run(main())


def test_a_credit_is_what_was_granted_less_what_is_on_its_way() -> None:
    message = CollectMsg(episodes=5, received=10, unit="segments")
    assert [message.credit(sent) for sent in (10, 12, 15, 17)] == [5, 3, 0, 0]
    assert message.credit(0) == 5  # the sender has counted episodes of an earlier incarnation
    assert CollectMsg(episodes=None, received=10, unit="segments").credit(10**9) is None
    assert PAUSE.credit(0) == 0


def told(members: dict[str, list[CollectMsg]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver what is sent downstream to `members`."""

    async def deliver(ref: Ref[Any], message: CollectMsg) -> None:
        members[ref.address].append(message)

    monkeypatch.setattr("components.downstream.send_downstream", deliver)


def step(coroutine: Any) -> None:
    """Run a coroutine that never waits."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_credits_are_shared_by_environments_and_those_without_any_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    members: dict[str, list[CollectMsg]] = {"here/a": [], "here/b": [], "here/c": []}
    told(members, monkeypatch)
    below = Downstream()
    for address, environments in (("here/a", 1), ("here/b", 3), ("here/c", 0)):
        below.join(Ref(address), 1, environments)
    step(below.grant(8))
    assert [below.members[address].credit for address in members] == [2, 6, 0]
    below.receive("here/b", 6)
    below.receive("here/a", 1)
    step(below.grant(3))
    assert [below.members[address].credit for address in members] == [1, 2, 0]
    assert members["here/b"][-1] == CollectMsg(episodes=2, received=6, unit="segments")
    assert len(members["here/a"]) == 1
    assert members["here/c"] == []
    step(below.grant(10**6))
    assert [below.members[address].credit for address in members] == [MOST_AHEAD, 3 * MOST_AHEAD, 0]


class Credits(RuleBasedStateMachine):
    """Members that come and go, and use credits as they like, below an actor whose allowance rises and falls."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.members: dict[str, list[CollectMsg]] = {f"here/{n}": [] for n in range(4)}
        told(self.members, self.patches)
        self.below = Downstream()
        self.sent: dict[str, int] = {}
        self.allowance = 0

    def teardown(self) -> None:
        self.patches.undo()

    def credit(self, address: str) -> int:
        messages = self.members[address]
        credit = messages[-1].credit(self.sent[address]) if messages else 0
        assert credit is not None
        return credit

    @rule(n=st.integers(0, 3), environments=st.integers(0, 3))
    def join(self, n: int, environments: int) -> None:
        address = f"here/{n}"
        self.members[address].clear()
        self.sent[address] = 0
        self.below.join(Ref(address), 1, environments)

    @rule(n=st.integers(0, 3))
    def leave(self, n: int) -> None:
        assert self.below.leave(f"here/{n}") == (self.sent.pop(f"here/{n}", None) is not None)

    @rule(n=st.integers(0, 30))
    def allow(self, n: int) -> None:
        self.allowance += n

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.sent)))
        n = data.draw(st.integers(0, self.credit(address)))
        self.sent[address] += n
        self.allowance -= n
        self.below.receive(address, n)

    @rule()
    def grant(self) -> None:
        step(self.below.grant(self.allowance))
        able = [address for address, member in self.below.members.items() if member.environments]
        assert not able or not self.allowance or any(self.credit(address) for address in able)

    @rule()
    def pause(self) -> None:
        step(self.below.pause())
        assert not any(self.credit(address) for address in self.sent)

    @invariant()
    def no_more_credits_than_allowed(self) -> None:
        assert sum(self.credit(address) for address in self.sent) <= self.allowance
        assert all(self.below.members[address].credit == self.credit(address) for address in self.sent)


test_credits_never_exceed_the_allowance_and_somebody_has_one_while_there_is_any = Credits.TestCase
