"""Recording: what a cell's recorder writes into a trace file."""
