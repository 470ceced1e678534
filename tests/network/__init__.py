"""Real networks on one machine: hosts are network namespaces on a bridge, which can be slowed down and cut off."""
