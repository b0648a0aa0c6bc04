"""`orchestra token` prints the token of a run over hosts, or makes one for a run that will begin."""

import os
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.hosts.certificates import make_credentials
from orchestra.hosts.token import JoinToken
from orchestra.runs.join_file import JoinInfo, opened
from orchestra.runs.run_directory import RunDirectory

SECRET = b"s" * 32


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "config.json").write_text("{}")
    return RunDirectory(tmp_path)


def test_the_token_of_a_run_over_hosts_is_printed_as_it_is(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    token = JoinToken.new("r", ("tls://10.0.0.5:7",), tls=make_credentials, secret=SECRET)
    with opened(run, JoinInfo("tcp://127.0.0.1:1", SECRET, os.getpid(), "", token)):
        assert main(["token", str(run.path)]) == 0
    assert capsys.readouterr().out == token.line()


def test_a_run_on_one_host_has_no_token(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(run, JoinInfo("tcp://127.0.0.1:1", SECRET, os.getpid())):
        assert main(["token", str(run.path)]) == 2
    assert "is on this host alone; start it with --hosts to add others" in capsys.readouterr().err


def test_a_new_token_is_for_the_addresses_that_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "--new", "--name", "r", "--join", "tls://head:41000,tls://10.0.0.5:41000"]) == 0
    token = JoinToken.parse(capsys.readouterr().out, source="")
    assert (token.run, token.join) == ("r", ("tls://head:41000", "tls://10.0.0.5:41000"))
    assert token.tls is not None
    assert main(["token", "--new", "--join", "tcp://head:41000"]) == 0
    assert JoinToken.parse(capsys.readouterr().out, source="").tls is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["token"], "orchestra token needs the directory of a run, or --new"),
        (["token", "--new"], "--new needs --join ADDRESS"),
        (["token", "--new", "--join", "head:41000"], "head:41000 must begin with tls://"),
        (["token", "--new", "--join", "tls://head"], "write tls://HOST:PORT"),
        (["token", "--new", "--join", "tls://0.0.0.0:41000"], "tls://0.0.0.0:41000 cannot be dialled"),
        (["token", "--new", "--join", "tls://*:41000"], "tls://*:41000 cannot be dialled"),
        (["token", "--new", "--join", "tls://head:0"], "tls://head:0 cannot be dialled"),
        (["token", "--new", "--join", "tls://head:1-5"], "tls://head:1-5 cannot be dialled"),
        (["token", "--new", "--join", "tls://head:1,tcp://head:1"], "all addresses must begin with tls://"),
    ],
)
def test_what_no_token_can_be_made_for_is_a_misuse(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert text in capsys.readouterr().err
