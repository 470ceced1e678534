"""Contributions that count themselves, until the board says that it is enough. The last line is the report, as JSON.

counting.py STRATEGY BOARD [COMPUTE_S] [TIMEOUT_S]
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tests.support.host_faults import count_until_ended


def main(strategy: str, board: str, compute_s: str = "0.002", timeout_s: str = "25") -> None:
    report = count_until_ended(strategy, board, float(compute_s), float(timeout_s))
    told = {
        "rank": report.rank,
        "final": report.final,
        "digests": report.digests,
        "rounds": report.rounds,
        "steps": report.extra,
        "applied": [sum(row) for row in report.counts],
        "ranks": [{**dataclasses.asdict(stats), "rank": stats.rank} for stats in report.stats.ranks],
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
