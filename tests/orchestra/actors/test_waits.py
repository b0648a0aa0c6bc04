"""What an actor waits for is named after what people would call it."""

from functools import partial

import pytest

from orchestra.actors.statistics import Wait


def with_threads(threads, function, *args):
    return function(*args)


class Learner:
    def learn(self) -> None: ...


class Special(Learner):
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (sum, ([],), "in a thread: sum"),
        (with_threads, (2, Special().learn, "x"), "in a thread: Special.learn"),
        (Learner().learn, (), "in a thread: Learner.learn"),
        (partial(with_threads, 3), (), "in a thread: with_threads"),
        (Special(), (), "in a thread: Special"),
    ],
)
def test_work_in_a_thread_is_named_after_what_is_called_in_the_end(function, args, said: str) -> None:
    assert str(Wait("in a thread:", (function, args))) == said


def test_an_answer_and_room_name_the_other_actor() -> None:
    assert str(Wait("asks", "a/b")) == "asks a/b"
    assert str(Wait("waits for room at", "a/b")) == "waits for room at a/b"


def test_the_thread_is_known_only_while_it_works() -> None:
    wait = Wait("in a thread:", (sum, ()))
    seen = []
    assert wait.work(lambda: seen.append(wait.thread) or 3) == 3
    assert seen[0] > 0
    assert wait.thread == 0
