"""Launchers: code that has an engine, such as ssh, start an agent on each host of a run."""
