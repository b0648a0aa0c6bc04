"""Runs whose hosts talk to each other: who dials whom is found out before they begin, with firewalls between them."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.minutes]
RELAYED = '''
"""A token that goes from the second host to the first, and by a node beside the head to the root."""

from orchestra import Actor, Hosts, Message, Ref, Topology, on


class TokenMsg(Message):
    """A token."""

    way: tuple[str, ...]


class Station(Actor[TokenMsg]):
    """Passes tokens on; one that begins sends the first."""

    def __init__(self, name: str, to: Ref[TokenMsg], begins: bool = False) -> None:
        self._name, self._to, self._begins = name, to, begins

    async def started(self) -> None:
        if self._begins:
            await self._to.tell(TokenMsg(way=(self._name,)))

    @on(TokenMsg)
    async def passed(self, msg: TokenMsg) -> None:
        await self._to.tell(TokenMsg(way=(*msg.way, self._name)))


class Last(Actor[TokenMsg]):
    """Says which way a token has come, and ends the run."""

    @on(TokenMsg)
    def arrived(self, msg: TokenMsg) -> None:
        print("came by", *msg.way, flush=True)
        self.stop()


def experiment(*, hosts: Hosts) -> Topology:
    topology = Topology("relayed")
    last = topology.node("learner").spawn("last", Last)
    topology.until(last)
    beside = topology.node("beside").spawn("station", Station, "beside", last)
    first, second = (host for host in hosts if host.slot)
    there = topology.node("first", on=first).spawn("station", Station, "first", beside)
    topology.node("second", on=second).spawn("station", Station, "second", there, True)
    return topology
'''
WAY = "came by second first beside"


def relayed(lab: Any, tmp_path: Path, *flags: str) -> Any:
    """Run `RELAYED` over the second and the third host."""
    file = tmp_path / "relayed_by_hosts.py"
    file.write_text(RELAYED)
    words = ("--hosts", "cpu2,cpu3", "--ssh", lab.servers.client, "--scratch", str(lab.scratch), *flags)
    launched = lab._launch.command("run", file, *words)
    launched.patience_s = 70.0
    return launched


def test_hosts_talk_directly_encrypted_and_by_the_address_that_is_advertised(lab: Any, tmp_path: Path) -> None:
    launched = relayed(lab, tmp_path, "--advertise", lab.network[1].address)
    assert launched.ends() == 0, launched.story("failed")
    assert WAY in launched.out + launched.err
    lab.until_nothing_is_left(20)


def test_a_node_whose_name_others_cannot_use_dials_them(lab: Any, tmp_path: Path) -> None:
    """The head is reached through ssh; the node beside it, of which hosts are told the same name, cannot be."""
    launched = relayed(lab, tmp_path, "--advertise", "no-such-head.invalid")
    assert launched.ends() == 0, launched.story("failed")
    assert WAY in launched.out + launched.err


def test_a_host_that_may_not_be_dialled_dials(lab: Any, tmp_path: Path) -> None:
    lab.network[2].refuse(lab.network[3])
    lab.network[1].refuse(lab.network[2])  # so does the head: the first host reaches it by ssh
    launched = relayed(lab, tmp_path)
    assert launched.ends() == 0, launched.story("failed")
    assert WAY in launched.out + launched.err


def test_hosts_of_which_neither_may_dial_the_other_refuse_the_run(lab: Any, tmp_path: Path) -> None:
    lab.network[2].refuse(lab.network[3])
    lab.network[3].refuse(lab.network[2])
    launched = relayed(lab, tmp_path)
    assert launched.ends() == 2, launched.story("ended in another way")
    said = "second/station on host 2 (cpu3) cannot reach first/station on host 1 (cpu2): "
    assert said in launched.err
    assert "Traceback" not in launched.err
    assert f"tls://{lab.network[2].address}:" in launched.err
    assert f"tls://{lab.network[3].address}:" in launched.err
    lab.until_nothing_is_left(20)
