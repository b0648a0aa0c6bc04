"""Recording: from the events of a node's actors to records in memory or in a file."""
