"""Reports of a run: the live display, metrics, curves, comparisons, and the commands that draw them."""
