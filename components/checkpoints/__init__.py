"""Files of a run's state: policies, arrays, and the state of each actor."""
