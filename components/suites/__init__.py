"""Benchmarks of many maps and seeds: their runs, scores, aggregates and report."""
