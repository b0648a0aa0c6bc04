"""Environments of others, Gymnasium's and PettingZoo's, as an `Env`. Their packages are extras."""
