"""The hosts of a sweep are shared out: no host is in two shares, and each share has as many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.sweeps.shared_hosts import shared_out
from orchestra import UsageError


@given(st.integers(1, 9), st.data())
def test_no_host_is_in_two_shares_and_each_has_as_many(number: int, data: st.DataObject) -> None:
    names = [f"cpu{n}" for n in range(number)]
    of_each = data.draw(st.integers(1, number))
    flag = data.draw(st.sampled_from([["--hosts", ",".join(names)], [f"--hosts={','.join(names)}"]]))
    rest, shares = shared_out(["--steps", "5", *flag, "--quiet"], of_each)
    assert rest == ["--steps", "5", "--quiet"]
    assert {words[0] for words in shares} == {"--hosts"}
    shared = [words[1].split(",") for words in shares]
    assert {len(share) for share in shared} == {of_each}
    assert len(shared) == len(names) // of_each
    assert [name for share in shared for name in share] == names[: len(shared) * of_each]


def test_of_a_number_of_hosts_each_run_asks_for_its_part() -> None:
    assert shared_out(["--launch", "local", "--hosts", "5"], 2) == (["--launch", "local"], [["--hosts", "2"]] * 2)


def test_without_the_flag_all_runs_have_all_words() -> None:
    assert shared_out(["--hosts", "a,b"], None) == (["--hosts", "a,b"], [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "5"], "--hosts-per-run needs --hosts"),
        (["--hosts"], "--hosts-per-run needs --hosts"),
        (["--hosts", "hosts.toml"], "--hosts hosts.toml is not allowed: name the hosts"),
        (["--hosts", "a,b"], "--hosts-per-run: 3 is not allowed: --hosts a,b has 2"),
        (["--hosts=2"], "--hosts-per-run: 3 is not allowed: --hosts 2 has 2"),
    ],
)
def test_hosts_that_cannot_be_shared_out_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shared_out(words, 3)
