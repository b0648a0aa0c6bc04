"""Latest-wins messages: one version is on its way, only the newest waits, and no ordered message overtakes them."""

from hypothesis import given
from hypothesis import strategies as st

from orchestra.actors.codec import Buffer
from orchestra.wire.latest import LatestVersions


def encoded(version: int) -> tuple[list[Buffer], int]:
    return [str(version).encode()], version


@given(st.lists(st.sampled_from(["put", "take", "release"])))
def test_versions_are_sent_in_order_and_the_newest_is_sent_or_held_as_long_as_one_is_unread(steps: list[str]) -> None:
    versions, key = LatestVersions(), ("learner/trainer", "LoadParamsMsg")
    sent: list[int] = []
    unread = newest = 0
    for step in steps:
        if step == "put":
            newest += 1
            if versions.put(key, encoded(newest)):
                assert not unread
                sent.append(newest)
                unread += 1
        elif step == "take" and unread:
            unread -= 1
            if (found := versions.taken(key)) is not None:
                assert not unread
                sent.append(found[1])
                unread += 1
        elif step == "release":
            released = versions.release()
            assert len(released) <= 1
            sent += [nbytes for _, nbytes in released]
            unread += len(released)
        assert sent == sorted(set(sent))
        assert versions.held == (newest > 0 and sent[-1] != newest)
        assert (key in versions) == (unread > 0)
        assert unread or not newest or sent[-1] == newest


def test_senders_and_types_have_versions_of_their_own() -> None:
    versions = LatestVersions()
    keys = [("a", "X"), ("b", "X"), ("a", "Y")]
    assert all(versions.put(key, encoded(1)) for key in keys)
    assert not any(versions.put(key, encoded(2)) for key in keys)
    assert versions.held == 3
    assert versions.taken(keys[1]) == encoded(2)
    assert len(versions.release()) == 2
