"""How bytes get from node to node: one contract, three transports."""
