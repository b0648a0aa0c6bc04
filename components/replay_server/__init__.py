"""Memories across processes: a server, its clients, the proxies between them, and what they say to each other.

What of it is public is found in `components.replay_buffers`. Memories themselves know nothing of all this.
"""
