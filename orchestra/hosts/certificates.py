"""The certificates of a run: an authority of its own, and one certificate that all its processes share.

The key of the authority is dropped as soon as it has signed. `cryptography` makes the certificates, since the standard
library cannot; it is of the extra `hosts`, which only the head needs.
"""

from datetime import datetime, timedelta

from orchestra.errors import UsageError
from orchestra.wire.credentials import Credentials

EARLIER = timedelta(days=1)
"""A certificate is valid from this long before it is made, for hosts whose clocks are behind."""
NAME = "orchestra"


def check_cryptography() -> None:
    """Check that certificates can be made.

    Raises:
        UsageError: `cryptography` is not installed.
    """
    try:
        import cryptography  # noqa: F401 (asks whether it is installed)
    except ImportError:
        raise UsageError(
            "the certificates of a run over several hosts need cryptography: pip install 'orchestra-rl[hosts]'; or "
            "give your own with --tls-dir DIR, or allow a run without encryption with --tls off"
        ) from None


def make_credentials(now: datetime, valid_until: datetime) -> Credentials:
    """Return new credentials for a run.

    Args:
        now: the wall-clock time.
        valid_until: the end of the certificates.

    Raises:
        UsageError: `cryptography` is not installed.
    """
    check_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import oid

    def builder(common_name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name)]))
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLIER)
            .not_valid_after(valid_until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, f"{NAME} authority")])
    ca = (
        builder(f"{NAME} authority", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    cert = (
        builder(NAME, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([oid.ExtendedKeyUsageOID.SERVER_AUTH, oid.ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return Credentials(ca.public_bytes(pem).decode(), cert.public_bytes(pem).decode(), private.decode())
