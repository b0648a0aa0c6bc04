"""Analysis of a recorded run: stories, statistics, comparison, export."""
