"""From the flags of `experiments/train.py` to the topology of its run."""
