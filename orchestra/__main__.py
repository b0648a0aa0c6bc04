"""`python -m orchestra` is `orchestra`."""

from orchestra.cli.main import program

program()
