"""The table of the engines that `orchestra run --launch NAME` knows. `docs/launchers.md` says how to add one."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Literal

from orchestra.launch import kubernetes, local, ray, slurm, ssh
from orchestra.launch.engine import Engine

EngineName = Literal["local", "ssh", "slurm", "ray", "kubernetes"]
ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (local.ENGINE, ssh.ENGINE, slurm.ENGINE, ray.ENGINE, kubernetes.ENGINE)
}
"""The engines by name, which are those of `EngineName`."""

KNOWN_BY: dict[str, list[str]] = {}
"""The engines that know a flag, by the flag's parameter. All engines know the flags that are not in it."""
PARAMETERS: dict[str, inspect.Parameter] = {}
"""The parameters of the engines' flags."""

for _engine in ENGINES.values():
    for _parameter in inspect.signature(_engine.flags).parameters.values():
        KNOWN_BY.setdefault(_parameter.name, []).append(_engine.name)
        PARAMETERS.setdefault(_parameter.name, _parameter)


def engines_with(flag: str) -> Sequence[str]:
    """Return the engines that know a flag, by its parameter."""
    return KNOWN_BY.get(flag, list(ENGINES))
