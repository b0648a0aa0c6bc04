"""What several tests of runs use."""

import pytest

from orchestra.hosts.bundle import Bundle
from orchestra.hosts.collected_code import make


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    file = tmp_path_factory.mktemp("code") / "nothing_at_all.py"
    file.write_text("")
    return make(file, installed=True)
