"""Hosts: the machines of a run, what they have, and the processes on each."""
