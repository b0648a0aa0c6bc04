"""The loops of sparse fields. `loops` imports numba, which compiles them once on a machine; this module does not."""

LANES = 16
"""Numbers that are tested and moved together, 4 bytes each: one group of bits."""
