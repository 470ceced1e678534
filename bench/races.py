"""The races of docs/results.md: real processes on this machine, DDP beside outpace. Run it on a quiet machine.

    python bench/races.py                     # all, about half an hour
    python bench/races.py --only sequences    # one

Prints each race's command and its table, ready for the docs. Ratios are within one race; the spread is that of seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

HYPERPLANE = ["--workload", "hyperplane", "--strategies", "ddp,eager-solo"]
RACES: dict[str, list[list[str]]] = {
    "sequences": [
        ["--workload", "sequences", "--strategies", "ddp,allreduce,eager-majority,eager-solo", "--repeat", "3"],
    ],
    "hyperplane": [
        [*HYPERPLANE, "--imbalance", f"random:k=1,delay_ms={delay}", "--compute-ms", base, "--epochs", "4"]
        for base in ("100", "406")
        for delay in (200, 300, 400)
    ],
    "rollouts": [
        [
            "--workload",
            "rollouts",
            "--strategies",
            "ddp,torch-post-local-sgd,local-sgd,d-psgd,sgp,wagma,nonblocking,eager-majority",
        ],
    ],
    "balanced": [
        ["--workload", name, "--strategies", "ddp,allreduce,eager-majority", "--repeat", "3", "--epochs", epochs]
        for name, epochs in (("hyperplane", "4"), ("vision", "3"))
    ],
    "code": [
        [
            *("--workload", "code", "--ranks", "2", "--compute-ms", "0"),
            *("--strategies", "ddp,allreduce,eager-majority,nonblocking", "--repeat", "3"),
        ],
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RACES)
    chosen = parser.parse_args().only
    for name, races in RACES.items():
        if chosen in (None, name):
            print(f"## {name}\n", flush=True)
            for options in races:
                report(raced(options))


def raced(options: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "outpace", "race", "--json", *options]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def report(race: dict[str, Any]) -> None:
    metric = race["metric"]
    print(f"    {race['command']}\n")
    print(f"| system | time | speed-up | to {shown(race['target'])} | {metric} | waited | late |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for system in race["systems"]:
        if system["error"] is not None:
            print(f"| {system['system']} | {system['error']} | | | | | |")
            continue
        to_target = system["seconds_to_target"]
        print(
            f"| {system['system']} | {system['seconds']:.1f} s | {system['speedup']:.2f}x "
            f"| {'-' if to_target is None else f'{to_target:.1f} s'} | {spread(system['finals'])} "
            f"| {system['waited_s']:.1f} s | {system['late_share']:.0%} |"
        )
    print(f"\n{race['verdict']}\n", flush=True)


def spread(values: list[float]) -> str:
    mean = shown(sum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} ({shown(min(values))} to {shown(max(values))})"


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main()
