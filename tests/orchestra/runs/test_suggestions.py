"""What a mistyped name probably means."""

import pytest

from orchestra.runs.suggestions import did_you_mean

FLAGS = ("--learning-rate", "--steps", "--step-limit", "--account", "--tls", "--envs-per-worker")


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("--learning-rat", FLAGS, "--learning-rate"),
        ("--leraning-rate", FLAGS, "--learning-rate"),
        ("--lr", FLAGS, "--learning-rate"),  # the initials of its words
        ("--learn", FLAGS, "--learning-rate"),  # what it begins with
        ("--setps", FLAGS, "--steps"),
        ("QMIX", ("qmix", "vdn"), "qmix"),
        ("gym", ("gymnasium", "pettingzoo"), "gymnasium"),
        ("trian", ("train", "qmix_8m"), "train"),
    ],
)
def test_a_mistyped_name_is_found(given: str, known: tuple[str, ...], meant: str) -> None:
    assert did_you_mean(given, known) == f" (did you mean {meant}?)"


@pytest.mark.parametrize("given", ["--discount", "--zzz", "--", "", "-l"])
def test_a_name_that_resembles_none_is_left_alone(given: str) -> None:
    assert did_you_mean(given, FLAGS) == ""
