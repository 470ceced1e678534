"""`python -m outpace.engines.cluster`: a host's agent, as its ranks start it."""

from outpace.engines.cluster.agent import main

if __name__ == "__main__":
    main()
