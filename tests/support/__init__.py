"""What tests share: the programs of ranks, hands to start and disturb them with, and worlds made by hand.

Whatever runs in processes of its own is started by `outpace.spawn`, or by its path with `processes.finding_tests`.
"""
