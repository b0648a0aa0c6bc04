"""Loggers that receive the figures of a run besides its files."""
