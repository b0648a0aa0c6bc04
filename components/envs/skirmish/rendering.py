"""A battle as an image, drawn with NumPy alone, and as text for a terminal with 24-bit colours."""

import numpy as np
from numpy.typing import NDArray

from .battles import Battles
from .kernel.constants import CELLS

Image = NDArray[np.uint8]

GROUND, BLOCKED, EMPTY = (226, 222, 214), (120, 124, 130), (28, 28, 28)
SIDES = ((0, 114, 178), (213, 94, 0))
"""Allies blue, enemies vermilion: Okabe and Ito's palette, which the colour-blind can tell apart."""


def image_of(skirmish: Battles, b: int = 0, *, cell: int = 16) -> Image:
    """Draw one battle, seen from above, north up.

    A living unit is a disc of its size, filled from the bottom up by its remaining share of health and shield.

    Args:
        skirmish: the battles.
        b: the number of the battle.
        cell: pixels across a cell of the map.

    Returns:
        (32 cell, 32 cell, 3), uint8.
    """
    walkable = np.flipud(skirmish.scenario.terrain.walkable().T)
    ground = np.where(walkable[..., None], GROUND, BLOCKED).astype(np.uint8)
    image: Image = ground.repeat(cell, axis=0).repeat(cell, axis=1)
    centres = (np.arange(CELLS * cell) + 0.5) / cell
    units = skirmish.units[b]
    for i, kind in enumerate(skirmish.types_in(b)):
        unit = units[i]
        if unit["health"] <= 0.0:
            continue
        dx, dy = centres[None, :] - unit["x"], (CELLS - centres)[:, None] - unit["y"]
        disc = dx * dx + dy * dy <= kind.radius**2
        left = (unit["health"] + unit["shield"]) / (kind.health + kind.shield)
        full = np.broadcast_to(dy <= (2.0 * left - 1.0) * kind.radius, disc.shape)
        image[disc & ~full] = EMPTY
        image[disc & full] = SIDES[i >= len(skirmish.scenario.allies)]
    return image


def text_of(image: Image) -> str:
    """Return an image as lines of half-block characters, each of which shows two pixels, one above the other.

    Args:
        image: (H, W, 3), uint8; H is even.
    """
    lines = []
    for upper, lower in zip(image[::2].tolist(), image[1::2].tolist(), strict=True):
        pairs = zip(upper, lower, strict=True)
        blocks = [
            f"\x1b[38;2;{r};{g};{b}m\x1b[48;2;{red};{green};{blue}m\u2580" for (r, g, b), (red, green, blue) in pairs
        ]
        lines.append("".join(blocks) + "\x1b[0m")
    return "\n".join(lines)
