"""Hosts on one machine: network namespaces with links that can be cut, and a ssh server in each of them."""
