"""Deterministic simulation: nodes, their network and time in one process, all decided by a seed.

Its public names are in `orchestra.testing`.
"""
