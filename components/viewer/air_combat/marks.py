"""Shapes for units, missiles, jammers and radar sectors: corners (K, 2), in units of the map.

Angles are in degrees, clockwise from the positive x axis on a map whose y points down.
"""

import numpy as np
from numpy.typing import NDArray

Corners = NDArray[np.float64]

FIGHTER = np.array([(1.4, 0.0), (-0.95, 0.95), (-0.45, 0.0), (-0.95, -0.95)])
"""A dart that points along the x axis."""
MISSILE = np.array([(1.0, 0.0), (-1.0, 0.5), (-1.0, -0.5)])


def towards(degrees: float) -> Corners:
    """Return the unit vector (2,) of an angle."""
    return np.array([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))])


def turned(corners: Corners, degrees: float) -> Corners:
    """Return a shape that points along the x axis, turned to point at this angle."""
    ahead = towards(degrees)
    rows: Corners = corners @ np.array([ahead, [-ahead[1], ahead[0]]])
    return rows


def arc(radius: float, middle: float, half: float) -> Corners:
    """Return points of a circle around the origin, from `half` degrees before the angle `middle` to `half` after it."""
    angles = np.deg2rad(np.linspace(middle - half, middle + half, max(round(half / 2.0), 8)))
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def sector(radius: float, middle: float, half: float) -> Corners:
    """Return a closed sector around the angle `middle`; the whole circle if `half` is 180 degrees."""
    if half >= 180.0:
        return arc(radius, middle, 180.0)
    return np.concatenate([np.zeros((1, 2)), arc(radius, middle, half), np.zeros((1, 2))])


DETECTOR = np.concatenate([sector(1.05, 180.0, 150.0)[1:-1], [(1.7, 0.0)]])
"""A disc with a nose along the x axis."""


def burst(radius: float, spikes: int = 11) -> Corners:
    """Return a closed zigzag around the origin."""
    angles = np.arange(2 * spikes + 1) * np.pi / spikes
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return points * np.where(np.arange(2 * spikes + 1) % 2 == 1, radius * 0.8, radius)[:, None]


def zigzag(length: float, degrees: float, wave: float = 7.0) -> Corners:
    """Return a zigzag from the origin, of this length, at an angle."""
    count = max(round(length / wave), 2)
    aside = np.where(np.arange(count + 1) % 2 == 1, 0.4 * wave, -0.4 * wave)
    aside[[0, -1]] = 0.0
    return turned(np.stack([np.linspace(0.0, length, count + 1), aside], axis=1), degrees)
