"""Where an actor's random numbers come from: the run's seed, its address, and how often it was restarted."""

import zlib

import numpy as np


def generator_for(seed: int, address: str, incarnation: int) -> np.random.Generator:
    """Return the random numbers of one incarnation of the actor at `address`."""
    key = (zlib.crc32(address.encode()), incarnation)
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=key)))
