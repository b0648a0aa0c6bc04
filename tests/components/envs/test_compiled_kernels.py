"""How the kernels of the simulators are compiled."""

import pkgutil
from importlib import import_module
from types import ModuleType

import pytest
from numba.core.dispatcher import Dispatcher

from components.envs.air_combat import kernel as air_combat
from components.envs.skirmish import kernel as skirmish
from components.envs.skirmish.compiling import COMPILED


def compiled_functions(package: ModuleType) -> set[Dispatcher]:
    """All functions of a package that numba compiles."""
    modules = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    return {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}


@pytest.mark.skipif(not COMPILED, reason="this run is the uncompiled one")
@pytest.mark.parametrize(("package", "make_arrays"), [(skirmish, set()), (air_combat, {"observe", "step_all"})])
def test_only_functions_that_make_arrays_count_references_to_them(package: ModuleType, make_arrays: set[str]) -> None:
    functions = compiled_functions(package)
    assert len(functions) > 20
    counting = {function.__name__ for function in functions if function.targetoptions.get("_nrt", True)}
    assert counting == make_arrays
