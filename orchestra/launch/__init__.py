"""How a topology gets its processes."""
