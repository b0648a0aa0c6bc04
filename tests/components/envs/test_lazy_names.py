"""Names of the simulator's packages, which are imported when they are first used."""

import importlib

import pytest

PACKAGES = {
    "components.envs.skirmish": "Battles",
    "components.envs.skirmish.kernel": "first_refused",
}


@pytest.mark.parametrize(("package", "name"), PACKAGES.items())
def test_a_name_is_looked_up_once_as_every_step_would_pay_for_it(package: str, name: str) -> None:
    module = importlib.import_module(package)
    vars(module).pop(name, None)
    found = getattr(module, name)
    assert vars(module)[name] is found


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    kernel = importlib.import_module("components.envs.skirmish.kernel")
    with pytest.raises(AttributeError, match=r"module 'components\.envs\.skirmish\.kernel' has no attribute 'nothing'"):
        _ = kernel.nothing
