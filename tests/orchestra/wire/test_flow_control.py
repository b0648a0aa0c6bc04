"""The receiving side's accounts: who overdraws is found out, and no account is kept for ever."""

import pytest

from orchestra.errors import FrameError
from orchestra.wire import flow_control
from orchestra.wire.flow_control import ReceiveWindow, Window


def test_credit_goes_back_a_quarter_of_the_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "WINDOW", 8)
    given: list[tuple[str, int, int]] = []
    room = ReceiveWindow(lambda *what: given.append(what))
    for _ in range(5):
        room.take("a/x", 10, solicited=False)
    for _ in range(5):
        room.give_back("a/x", 10)
    assert given == [("a/x", 2, 20)] * 2


@pytest.mark.parametrize(("limit", "value"), [("WINDOW", 4), ("WINDOW_BYTES", 40)])
def test_what_a_window_lets_go_the_room_takes_and_not_one_more(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(flow_control, limit, value)
    window, room = Window(), ReceiveWindow(lambda *what: None)
    while window.take(11):
        room.take("a/x", 11, solicited=False)
    with pytest.raises(FrameError, match=r"^a message to a/x without credit: 4 messages \(44 bytes\) are ther"):
        room.take("a/x", 11, solicited=False)
    room.take("a/x", 11, solicited=True)
    room.take("a/other", 11, solicited=False)


def test_accounts_of_whom_nothing_is_here_are_settled_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "RECIPIENTS", 10)
    given: list[tuple[str, int, int]] = []
    room = ReceiveWindow(lambda *what: given.append(what))
    room.take("a/slow", 1, solicited=False)
    for n in range(1000):
        room.take(f"a/{n}", 1, solicited=False)
        room.give_back(f"a/{n}", 1)
        assert len(room) <= 10
    assert ("a/slow", 1, 1) not in given
    room.give_back("a/slow", 1)
    assert len(given) + len(room) == 1001  # each once, or still to be
