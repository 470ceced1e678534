"""Timing on a machine that is busy: what is measured comes before everything else.

    BENCH_PRIORITY=5 python -m bench.shared_data     # needs root

`nice` is not enough where the kernel groups processes by their session. Only for programs that sleep most of the time:
nobody else gets a core meanwhile.
"""

import os


def come_first() -> None:
    """All threads of this process, and those that they start, if BENCH_PRIORITY says so."""
    priority = int(os.environ.get("BENCH_PRIORITY", "0"))
    for thread in os.listdir("/proc/self/task") if priority else ():
        os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(priority))
