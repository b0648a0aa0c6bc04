"""Exports of a run for other programs: its figures as a table, its policy as safetensors or ONNX."""
