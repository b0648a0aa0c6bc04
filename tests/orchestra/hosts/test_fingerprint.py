"""A host that runs on other versions than the head is refused or warned of, by the name of what differs."""

from typing import Any

import pytest

from orchestra.hosts.fingerprint import Fingerprint, fingerprint, missing_import, refusal, warning

HEAD = Fingerprint(
    protocol=4,
    byte_order="little",
    python="3.11.9",
    executable="/opt/head/bin/python3",
    libraries={"numpy": "2.1.3", "torch": "2.4.0"},
    files={"packages/orchestra/log.py": "aa", "packages/orchestra/clock.py": "bb"},
)


def other(**changes: Any) -> Fingerprint:
    return HEAD.model_copy(update={"executable": "/opt/py/bin/python3", **changes})


def test_a_host_with_equal_versions_is_let_in_without_a_word() -> None:
    assert refusal(HEAD, other(), installed=True) == warning(HEAD, other()) == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"protocol": 5}, "speaks version 5 of the wire protocol, and the head speaks 4"),
        ({"byte_order": "big"}, "is big-endian, and the head is little-endian"),
        ({"python": "3.12.1"}, "has Python 3.12.1 (/opt/py/bin/python3), and the head has 3.11.9; "),
        (
            {"libraries": {"numpy": "1.26.4"}},
            "has numpy 1.26.4 in /opt/py/bin/python3, and the head has 2.1.3",
        ),
    ],
)
def test_what_cannot_work_together_is_refused(changes: dict[str, Any], text: str) -> None:
    assert refusal(HEAD, other(**changes)).startswith(text)


def test_another_python_is_a_warning_where_it_is_allowed() -> None:
    host = other(python="3.12.1")
    assert refusal(HEAD, host, mixed_python=True) == ""
    assert warning(HEAD, host) == "has Python 3.12.1 (head: 3.11.9)"


def test_another_minor_version_is_one_warning() -> None:
    host = other(python="3.11.2", libraries={"numpy": "2.0.1", "torch": "2.5.1", "numba": "0.61"})
    assert refusal(HEAD, host) == ""
    assert warning(HEAD, host) == "has numpy 2.0.1 (head: 2.1.3), torch 2.5.1 (head: 2.4.0)"


def test_our_packages_must_be_equal_only_where_no_bundle_settles_it() -> None:
    host = other(files={"packages/orchestra/log.py": "aa", "packages/orchestra/clock.py": "cc"})
    assert refusal(HEAD, host) == ""
    assert refusal(HEAD, host, installed=True).startswith("has another packages/orchestra/clock.py in its installed")
    lacking = other(files={"packages/orchestra/log.py": "aa"})
    assert refusal(HEAD, lacking, installed=True).startswith("lacks packages/orchestra/clock.py in its installed")


def test_a_missing_import_is_named_with_the_version_that_the_head_has() -> None:
    output = ["orchestra: error: study.py:3: ModuleNotFoundError: No module named 'numpy.linalg'", "one more line"]
    expected = "cannot import numpy, which the head has as 2.1.3, in /opt/py/bin/python3"
    assert missing_import(output, HEAD, other()) == expected
    assert (
        missing_import(["No module named 'nowhere'"], HEAD, other()) == "cannot import nowhere, in /opt/py/bin/python3"
    )
    assert missing_import(["out of memory"], HEAD, other()) == ""


def test_a_process_fits_itself() -> None:
    mine = fingerprint()
    assert refusal(mine, mine, installed=True) == warning(mine, mine) == ""
    assert mine.libraries.keys() >= {"numpy", "pydantic", "msgpack"}
    assert "packages/orchestra/hosts/fingerprint.py" in mine.files
