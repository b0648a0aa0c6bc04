"""Reading: trace files, their index, and queries over a run."""
