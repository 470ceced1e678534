"""Races: one workload under several systems, on real ranks of this machine, one after the other."""
