"""Messages: what they accept, and that they share nothing that can change."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from orchestra import Axes, HandlerError, Lane, Message, Ref, Request, freeze
from orchestra.actors.arrays import is_frozen, isolated, size_of
from orchestra.actors.codec import copied
from orchestra.actors.message import REGISTRY
from orchestra.actors.statistics import MailboxStatistics


class WalkMsg(Message):
    place: Annotated[NDArray[np.float32], Axes("float32", "steps", "axes")]
    reward: Annotated[NDArray[np.float64], Axes("float64", "steps")]
    maybe: Annotated[NDArray[np.int64] | None, Axes("int64", "axes")] = None


class PlainMsg(Message):
    name: str
    scores: tuple[float, ...] = ()
    to: Ref[Any] | None = None


class LooseMsg(Message):
    figures: dict[str, float]


def walk(steps: int = 3) -> WalkMsg:
    return WalkMsg(place=np.ones((steps, 2), np.float32), reward=np.zeros(steps))


def complaint(error: ValidationError) -> str:
    (only,) = error.errors()
    return f"{'.'.join(map(str, only['loc']))}: {only['msg']}"


def test_an_array_of_another_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValidationError) as caught:
        WalkMsg(place=np.ones((3, 2)), reward=np.zeros(3))
    assert complaint(caught.value) == "place: expected an array float32[steps, axes], got dtype float64"


def test_an_array_of_another_rank_is_refused_by_name() -> None:
    with pytest.raises(ValidationError) as caught:
        WalkMsg(place=np.ones(3, np.float32), reward=np.zeros(3))
    assert complaint(caught.value) == "place: expected an array float32[steps, axes], got shape (3,)"


def test_a_list_is_no_array() -> None:
    with pytest.raises(ValidationError) as caught:
        WalkMsg(place=[[1.0, 2.0]], reward=np.zeros(1))  # type: ignore[arg-type]  # the point of the test
    assert complaint(caught.value) == "place: expected an array float32[steps, axes], got list"


def test_an_axis_has_one_length_in_all_fields() -> None:
    with pytest.raises(ValidationError) as caught:
        WalkMsg(place=np.ones((3, 2), np.float32), reward=np.zeros(4))
    assert complaint(caught.value) == ": axis 'steps' has length 3 in place but 4 in reward"


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        PlainMsg(name="a").name = "b"  # type: ignore[misc]  # the point of the test


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        PlainMsg(name="a", nam="b")  # type: ignore[call-arg]  # the point of the test


def test_a_writable_array_is_copied_and_a_frozen_one_is_shared() -> None:
    frozen, writable = freeze(np.ones((3, 2), np.float32)), np.zeros(3)
    message = isolated(WalkMsg(place=frozen, reward=writable))
    assert message.place is frozen
    writable[:] = 7
    assert message.reward.tolist() == [0, 0, 0]
    assert not message.reward.flags.writeable


def test_a_message_whose_arrays_are_all_frozen_is_handed_over_as_it_is() -> None:
    message = isolated(walk())
    assert isolated(message) is message


def test_freezing_a_view_of_writable_memory_copies_it() -> None:
    owner = np.zeros(4)
    view = freeze(owner[:2])
    owner[:] = 5
    assert view.tolist() == [0, 0]
    assert is_frozen(view)


def test_freezing_an_array_that_owns_its_memory_does_not_copy_it() -> None:
    owner = np.zeros(4)
    assert freeze(owner) is owner


@pytest.mark.parametrize(
    ("kind", "immutable"), [(WalkMsg, True), (PlainMsg, True), (LooseMsg, False)], ids=lambda value: str(value)
)
def test_the_runtime_knows_which_messages_can_change(kind: type[Message], immutable: bool) -> None:
    assert kind.wire.immutable is immutable


def test_a_copy_through_the_codec_shares_nothing() -> None:
    figures = {"loss": 1.0}
    message = LooseMsg(figures=figures)
    twin = copied(message)
    message.figures["loss"] = 2.0
    assert isinstance(twin, LooseMsg)
    assert twin.figures == {"loss": 1.0}


def test_the_size_of_a_message_counts_its_arrays() -> None:
    assert size_of(walk(100)) - size_of(walk(0)) == 100 * (2 * 4 + 8)


def test_the_size_of_a_message_counts_its_bytes() -> None:
    class BlobMsg(Message):
        blob: bytes

    assert size_of(BlobMsg(blob=b"x" * 1000)) - size_of(BlobMsg(blob=b"")) == 1000


class OneTextMsg(Message):
    text: str
    n: int = 0


class TwoTextsMsg(Message):
    text: str
    other: str = ""


class ManyTextsMsg(Message):
    text: str
    other: str = ""
    third: bytes = b""


class MaybeTextMsg(Message):
    text: str | None
    n: int = 0


class TextsMsg(Message):
    texts: tuple[str, ...] = ()
    inner: OneTextMsg | None = None


@pytest.mark.parametrize("kind", [OneTextMsg, TwoTextsMsg, ManyTextsMsg, MaybeTextMsg])
def test_the_size_of_a_message_counts_its_texts(kind: type[Message]) -> None:
    sizes = [size_of(kind.model_validate({"text": "x" * length})) for length in (0, 5000)]
    assert sizes == [128, 5128]


def test_the_size_of_a_message_counts_the_entries_of_tuples_and_what_other_messages_hold() -> None:
    assert size_of(TextsMsg()) == 128
    assert size_of(TextsMsg(texts=("a",) * 100)) == 128 + 100 * 16
    assert size_of(TextsMsg(inner=OneTextMsg(text="x" * 50))) == 128 + 128 + 50
    assert size_of(MaybeTextMsg(text=None)) == 128


def test_the_fingerprint_of_a_request_changes_with_what_it_is_answered_with() -> None:
    kinds = [type("SameMsg", (Request[answer],), {"__module__": __name__}) for answer in (int, int, str)]
    one, same, other = (kind.wire.fingerprint for kind in kinds)
    assert one == same != other


def test_a_request_must_say_what_it_is_answered_with() -> None:
    with pytest.raises(HandlerError, match=r"VagueMsg does not name the type of its answer; write Request\[X\]$"):

        class VagueMsg(Request):  # type: ignore[type-arg]  # the point of the test
            pass


def test_what_cannot_travel_is_refused_within_a_node_too() -> None:
    class ComplexMsg(Message):
        z: complex

    assert not ComplexMsg.wire.immutable
    with pytest.raises(TypeError, match="a complex cannot travel in a message"):
        copied(ComplexMsg(z=1j))


def test_the_fingerprint_changes_with_the_schema() -> None:
    def define(kind: Any) -> type[Message]:
        return type("SameMsg", (Message,), {"__annotations__": {"x": kind}, "__module__": __name__})

    assert define(int).wire.fingerprint == define(int).wire.fingerprint
    assert define(int).wire.fingerprint != define(float).wire.fingerprint
    float32 = Annotated[NDArray[np.float32], Axes("float32", "n")]
    other_axis = Annotated[NDArray[np.float32], Axes("float32", "m")]
    assert define(float32).wire.fingerprint != define(other_axis).wire.fingerprint


def test_a_fingerprint_does_not_change_when_classes_move_to_another_module() -> None:
    def define(module: str) -> type[Message]:
        inner = type("InnerMsg", (Message,), {"__annotations__": {"x": int}, "__module__": module})
        kinds = {
            "one": inner,
            "many": tuple[inner, ...],  # type: ignore[valid-type]  # a type at run time
            "maybe": inner | None,
            "to": Ref[inner],  # type: ignore[valid-type]
            "role": Literal["a", "b"],
        }
        return type("OuterMsg", (Message,), {"__annotations__": kinds, "__module__": module})

    here, there = define("first_module"), define("second_module")
    assert here.wire.fingerprint == there.wire.fingerprint
    assert here.wire.tag != there.wire.tag


def test_a_tag_names_the_distribution_and_the_class_but_not_the_module() -> None:
    assert MailboxStatistics.wire.tag == "orchestra.MailboxStatistics"


def test_two_classes_of_one_name_in_one_distribution_are_refused() -> None:
    try:
        type("TwiceMsg", (Message,), {"__module__": "orchestra.here"})
        text = "two message classes are named orchestra.TwiceMsg: one in orchestra.here, one in orchestra.there"
        with pytest.raises(HandlerError, match=text):
            type("TwiceMsg", (Message,), {"__module__": "orchestra.there"})
    finally:
        REGISTRY.pop("orchestra.TwiceMsg", None)


def test_a_class_defined_again_takes_the_place_of_the_older_one() -> None:
    made = [type("AgainMsg", (Message,), {"__module__": __name__}) for _ in range(2)]
    assert REGISTRY[f"{__name__}.AgainMsg"] is made[1]


def test_a_request_knows_what_it_is_answered_with() -> None:
    class CountMsg(Request[tuple[int, ...]]):
        """How many?"""

    assert CountMsg.answer_adapter().validate_python([1, 2]) == (1, 2)
    with pytest.raises(ValidationError):
        CountMsg.answer_adapter().validate_python(["many"])


def test_a_request_cannot_give_way_to_a_newer_one() -> None:
    with pytest.raises(HandlerError, match="a replaced request would get no answer"):

        class NewestMsg(Request[int]):
            lane: ClassVar[Lane] = Lane.LATEST


def test_a_ref_travels_only_as_a_ref() -> None:
    assert PlainMsg(name="a", to=Ref("here/there")).to == Ref("here/there")
    with pytest.raises(ValidationError, match="expected a Ref, got str"):
        PlainMsg(name="a", to="here/there")  # type: ignore[arg-type]  # the point of the test
