"""Looking into a run from outside: the observer connection and the views drawn from it."""
