"""The virtual engine: simulated time, one process, thousands of ranks, deterministic from its inputs."""
