"""`python -m orchestra` is `orchestra`."""

from orchestra.cli import program

program()
