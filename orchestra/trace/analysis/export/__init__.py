"""Traces in formats that have viewers of their own."""
