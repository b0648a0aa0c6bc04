"""A node: one process that hosts cells, routes messages and keeps connections to its peers."""
