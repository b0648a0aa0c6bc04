"""How the kernel's functions are compiled: never with fast-math, which may round differently."""

from pathlib import Path

from components.envs.skirmish.compiling import CompiledPackage

CODE = CompiledPackage("air_combat", Path(__file__).parent, module=__name__)

compiled = CODE.compiled
