"""Looking at air combats."""
