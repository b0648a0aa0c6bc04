"""Air combats shown in the terminal and as pictures."""
