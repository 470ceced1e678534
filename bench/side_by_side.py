"""`python -m bench.side_by_side OTHER`: this checkout's rounds against another checkout's, alternating in one run.

Each repeat measures both, one right after the other and in turn the first, so that a busy machine disturbs both alike.
Prints the median of the ratios: above 1, this checkout is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench.collectives import MEASURES, SIZES
from bench.figures import Samples, ratio
from bench.run import Run

HERE = Path(__file__).resolve().parent.parent
CASES = ((8, "4 B"), (8, "64 KB"), (8, "1 MB"), (8, "25 MB"), (4, "1 MB"), (4, "25 MB"), (2, "25 MB"))
ONCE = """
import json, sys
from bench.collectives import once
if __name__ == "__main__":
    print(json.dumps(once(int(sys.argv[1]), sys.argv[2], with_open_mpi=False)))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of another commit")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sizes", nargs="*", choices=SIZES, help="only these")
    given = parser.parse_args()
    if not (given.other / "bench" / "collectives.py").is_file():
        parser.error(f"{given.other} is no checkout of this project")
    cases = [case for case in CASES if not given.sizes or case[1] in given.sizes]
    run, here, there = Run(given.repeat), Samples(), Samples()
    with run.until_ctrl_c():
        for index in run.repeats("side by side"):
            for case in cases:
                run.say(f"{case[0]} ranks, {case[1]}")
                both = [(HERE, here), (given.other.resolve(), there)]
                for checkout, samples in both if index % 2 else reversed(both):
                    samples.add(case, _once(checkout, *case))
    print("times as fast as the other checkout, median (lowest to highest of the repeats):")
    for case, mine in here.items():
        theirs = there.by_key.get(case, {})
        found = {name: ratio(theirs[name], mine[name]) for name in (*MEASURES, "gloo") if name in theirs}
        told = (f"{name} {f['median']:.2f} ({f['low']:.2f} to {f['high']:.2f})" for name, f in found.items())
        print(f"  {case[0]} ranks, {case[1]:6} {'; '.join(told)}")
    return 130 if run.interrupted else 0


def _once(checkout: Path, ranks: int, size: str) -> dict[str, float]:
    path = os.pathsep.join([str(checkout / "src"), str(checkout)])
    command = [sys.executable, "-c", ONCE, str(ranks), size]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
