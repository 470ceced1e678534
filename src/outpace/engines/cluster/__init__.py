"""The cluster engine: several hosts, each with an arena and an agent, joined by torch.distributed.

Ranks fold a log in their host's memory exactly as on one machine. Only who writes that log differs: the host's agent
copies it, record by record, from the one log of all hosts, which lies in the store that torchrun provides. A record
that goes with data, such as published weights, is written only when the data is here. So whatever a rank finds in its
log it also finds in its memory, and no strategy can tell how many hosts there are.
"""
