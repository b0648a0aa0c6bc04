"""Trace files: records, their encoding and the writer."""
