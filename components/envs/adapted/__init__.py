"""Environments of Gymnasium and PettingZoo as an `Env`. Their packages are extras."""
