"""Connections between nodes: frames, sessions, flow control, links and transports."""
