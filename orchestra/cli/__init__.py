"""The commands of `orchestra`, a file each. Packages above add theirs by entry points; see `orchestra/cli/main.py`."""
