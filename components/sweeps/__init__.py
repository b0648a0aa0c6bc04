"""Sweeps: configurations of an experiment, each with several seeds, as runs of one queue."""
