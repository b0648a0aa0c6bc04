"""Runs: from an experiment file to processes, a run directory and a result."""
