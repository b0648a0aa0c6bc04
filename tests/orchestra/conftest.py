"""What tests of the runtime may use."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what makes a folder for `tls://`: it trusts one authority, and holds a certificate of one."""
    path = tmp_path_factory.mktemp("tls")
    authorities = {"ours": trustme.CA(), "theirs": trustme.CA()}
    numbers = itertools.count()

    def make(name: str, *, trusts: str = "ours", holds: str = "ours") -> Path:
        folder = path / f"{next(numbers)}-{name}"
        folder.mkdir()
        authorities[trusts].cert_pem.write_to_path(folder / "ca.pem")
        leaf = authorities[holds].issue_cert("some-host")
        leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        key = folder / "key.pem"
        key.touch(0o600)
        leaf.private_key_pem.write_to_path(key)
        return folder

    return make
