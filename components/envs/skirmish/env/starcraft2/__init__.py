"""SMAC's package of the game's environment."""
