"""The exit codes of every command; 0 is success."""

FAILED = 1
"""The command ran and failed; stderr says why."""

MISUSED = 2
"""A flag, a file or an experiment is wrong; nothing was started."""

ABORTED = 130
"""Interrupted from the keyboard."""
