"""Suites: benchmarks of many maps and seeds, with their runs, scores, aggregates and report."""
