"""Runs any actor of a recorded run again: the real class, fed what it was fed, and held to what it said."""
