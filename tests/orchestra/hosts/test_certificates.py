"""The certificates of a run let its own processes in, nobody else's, and do not mind a clock that is wrong."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from orchestra.errors import UsageError
from orchestra.hosts.certificates import make_credentials
from orchestra.wire.credentials import Credentials, context

NOW = datetime.now(UTC).replace(microsecond=0)
UNTIL = NOW + timedelta(days=30)


@pytest.fixture(scope="module")
def made() -> Credentials:
    return make_credentials(NOW, UNTIL)


def handshake(client: Credentials, server: Credentials) -> None:
    """Shake hands in memory, to the end on both sides."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        context(client, dialing=True).wrap_bio(to_client, to_server),
        context(server, dialing=False).wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[int] = set()
    for _ in range(10):
        for number, side in enumerate(sides):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done.add(number)
    assert done == {0, 1}


def test_processes_of_a_run_let_each_other_in(made: Credentials) -> None:
    handshake(made, made)


def test_processes_of_another_run_are_refused_by_both_sides(made: Credentials) -> None:
    other = make_credentials(NOW, UNTIL)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made, other)
    with pytest.raises(ssl.SSLError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        handshake(Credentials(made.ca, other.cert, other.key), made)


def test_they_are_valid_from_a_day_before_to_the_end(made: Credentials) -> None:
    for text in (made.ca, made.cert):
        certificate = x509.load_pem_x509_certificate(text.encode())
        assert certificate.not_valid_before_utc == NOW - timedelta(days=1)
        assert certificate.not_valid_after_utc == UNTIL


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_head_whose_clock_is_an_hour_off_makes_certificates_that_others_accept(hours: int) -> None:
    wrong = NOW + timedelta(hours=hours)
    made = make_credentials(wrong, wrong + timedelta(days=30))
    handshake(made, made)  # by the right clock


def test_a_clock_that_is_days_late_is_refused_so_the_dates_are_looked_at() -> None:
    made = make_credentials(NOW + timedelta(days=2), UNTIL)
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        handshake(made, made)


def test_the_certificate_of_the_processes_signs_no_others(made: Credentials) -> None:
    ca, cert = (x509.load_pem_x509_certificate(text.encode()) for text in (made.ca, made.cert))
    cert.verify_directly_issued_by(ca)
    with pytest.raises((ValueError, InvalidSignature)):
        ca.verify_directly_issued_by(cert)
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_without_cryptography_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(UsageError, match=r"pip install 'orchestra-rl\[hosts\]'; or give your own with --tls-dir DIR"):
        make_credentials(NOW, UNTIL)
