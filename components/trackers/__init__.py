"""Loggers: where the figures of a run go besides its files."""
