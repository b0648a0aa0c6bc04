"""The trace file: records, their encoding and the writer."""
