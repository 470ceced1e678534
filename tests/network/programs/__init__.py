"""Scripts that run on the hosts, each a program of its own."""
