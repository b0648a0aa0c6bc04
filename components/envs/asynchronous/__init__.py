"""Environments in processes of their own, stepped as they become ready."""
