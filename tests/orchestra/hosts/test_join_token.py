"""A join token is one line that survives being written and read, says what is wrong with it, and quotes no secret."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.cli.exit_codes import MISUSED, NOT_LET_IN, of_error
from orchestra.errors import AuthenticationFailed, OrchestraError, UsageError
from orchestra.hosts.certificates import make_credentials
from orchestra.hosts.token import VALID, JoinToken
from orchestra.wire.credentials import Credentials

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOIN = ("tls://10.0.0.5:41000", "tls://[fd00::5]:41000")


@pytest.fixture(scope="module")
def token() -> JoinToken:
    return JoinToken.new("qmix_8m/1", JOIN, tls=make_credentials, now=NOW)


def refused(text: str | bytes, now: datetime = NOW) -> OrchestraError:
    with pytest.raises(OrchestraError) as caught:
        JoinToken.parse(text, source="the file", now=now)
    return caught.value


def test_a_token_is_one_line_and_reads_back_equal(token: JoinToken) -> None:
    line = token.line()
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert JoinToken.parse(line, source="", now=NOW) == token
    assert set(json.loads(line)) == {"run", "secret", "join", "tls", "valid_until"}


def test_a_token_without_tls_reads_back_equal() -> None:
    plain = JoinToken.new("r", ("tcp://10.0.0.5:1",), tls=None, now=NOW)
    assert JoinToken.parse(plain.line(), source="", now=NOW) == plain
    assert len(plain.secret) == 32
    assert plain.secret != JoinToken.new("r", JOIN, tls=None, now=NOW).secret


def test_a_token_shows_neither_its_secret_nor_its_key(token: JoinToken) -> None:
    assert token.secret.hex() not in repr(token)
    assert repr(token.secret)[2:-1] not in repr(token)
    assert "PRIVATE" not in repr(token) + repr(token.tls)


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ("", "the file holds no join token: it is empty"),
        ("\n", "the file holds no join token: it is empty"),
        ("no token", "the file holds no valid join token: it is no JSON document of a token"),
        ("[1]", "the file holds no valid join token: it is no JSON document of a token"),
        ({"secret": "00" * 15}, "the file holds no valid join token: secret: "),
        ({"secret": "0" * 33}, "the file holds no valid join token: secret: "),
        ({"secret": "zz" * 32}, "the file holds no valid join token: secret: "),
        ({"join": []}, "the file holds no valid join token: join: "),
        ({"join": [""]}, "the file holds no valid join token: join.0: "),
        ({"run": ""}, "the file holds no valid join token: run: "),
        ({"valid_until": "2026-03-01T12:00:00"}, "the file holds no valid join token: valid_until: "),
        ({"more": 1}, "the file holds no valid join token: more: "),
        ({"tls": {"ca": "x", "cert": "y"}}, "the file holds no valid join token: tls.key: "),
        ({"tls": {"ca": "x", "cert": "y", "key": "z"}}, "cannot use the certificates in the join token in the file: "),
        ({"tls": {"ca": "é", "cert": "", "key": ""}}, "cannot use the certificates in the join token in the file: "),
    ],
)
def test_a_malformed_token_is_a_usage_error_that_quotes_nothing_of_it(
    token: JoinToken, spoilt: str | dict[str, object], says: str
) -> None:
    document = json.loads(token.line())
    text = spoilt if isinstance(spoilt, str) else json.dumps(document | spoilt)
    error = refused(text)
    assert str(error).startswith(says)
    assert of_error(error) == MISUSED
    assert token.secret.hex() not in str(error)
    if isinstance(spoilt, dict) and "secret" in spoilt:
        assert str(spoilt["secret"]) not in str(error)


@pytest.mark.parametrize("missing", ["run", "secret", "join", "tls", "valid_until"])
def test_a_field_that_is_missing_is_named(token: JoinToken, missing: str) -> None:
    document = json.loads(token.line())
    del document[missing]
    assert str(refused(json.dumps(document))) == f"the file holds no valid join token: {missing}: Field required"


@given(st.text() | st.binary())
def test_no_text_makes_the_parser_fail_with_anything_but_a_usage_error(text: str | bytes) -> None:
    assert of_error(refused(text)) == MISUSED


def test_an_expired_token_is_not_let_in_and_an_hour_makes_no_difference(token: JoinToken) -> None:
    error = refused(token.line(), NOW + VALID + timedelta(seconds=1))
    assert isinstance(error, AuthenticationFailed)
    assert of_error(error) == NOT_LET_IN
    assert str(error).startswith("the join token of qmix_8m/1 in the file expired on 2026-03-31 12:00 UTC")
    for hours in (-1, 1):
        assert JoinToken.parse(token.line(), source="", now=NOW + timedelta(hours=hours)) == token


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(token: JoinToken, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    fresh = JoinToken.new("r", JOIN, tls=token.tls)
    path.write_text(fresh.line())
    path.chmod(mode)
    assert JoinToken.read(str(path)) == fresh


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o606])
def test_a_file_that_others_can_open_is_refused(token: JoinToken, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(token.line())
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"has mode {mode:04o}: others could read the join token; chmod it to 0600"):
        JoinToken.read(str(path))


def test_the_own_group_may_read_a_file_of_another_owner_only(
    token: JoinToken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(JoinToken.new("r", JOIN, tls=token.tls).line())
    path.chmod(0o440)
    owner = path.stat()
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [owner.st_gid])
    assert JoinToken.read(str(path)).run == "r"  # as Kubernetes mounts a secret
    monkeypatch.setattr(os, "getgroups", lambda: [owner.st_gid + 1])
    monkeypatch.setattr(os, "getegid", lambda: owner.st_gid + 1)
    with pytest.raises(UsageError, match="has mode 0440"):
        JoinToken.read(str(path))
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid or 1)
    monkeypatch.setattr(os, "getegid", lambda: owner.st_gid)
    if owner.st_uid:
        with pytest.raises(UsageError, match="has mode 0440"):
            JoinToken.read(str(path))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the join token in '.*nowhere': No such file or directory"):
        JoinToken.read(str(tmp_path / "nowhere"))


READS = """
import os, sys
from orchestra.hosts.token import token_of_process
token, lifeline = token_of_process()
assert not os.get_inheritable(lifeline)
print(token.run, os.read(0, 9), flush=True)
print(os.read(lifeline, 100), flush=True)
print(os.read(lifeline, 100), flush=True)
"""


def test_a_process_reads_one_line_of_its_input_and_keeps_the_rest_as_a_lifeline() -> None:
    line = JoinToken.new("the-run", JOIN, tls=None).line().encode()
    with subprocess.Popen(
        [sys.executable, "-c", READS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"behind it")
        assert process.stdout.readline() == b"the-run b''\n"
        assert process.stdout.readline() == b"b'behind it'\n"
        process.stdin.close()
        assert process.stdout.readline() == b"b''\n"
        assert process.wait() == 0


def test_credentials_of_a_token_need_no_file(token: JoinToken) -> None:
    assert isinstance(token.tls, Credentials)
    assert token.joining("unix:///x,tls://h:1", "tls://g:2").join == ("unix:///x", "tls://h:1", "tls://g:2")
    assert token.address == ",".join(JOIN)
