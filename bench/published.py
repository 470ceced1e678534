"""What was published of these strategies, and what the simulator says: paper and ours side by side.

    python bench/published.py                       all tables but the one of 1,024 ranks, in some minutes
    python bench/published.py --only hyperplane     one table; names are listed by --help
    python bench/published.py --only rollouts       1,024 ranks, some minutes more

Tables go to standard output as markdown, a line for each run to standard error. Times are simulated, by the papers' own
step times and injected delays; see docs/results.md for what is assumed and where the two differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import torch

from outpace.cli.simulate import Comparison
from outpace.protocol.events import Done, Event
from outpace.simulation import BASELINE, SHARED, Scenario, full_round_s, simulate_timing, simulate_training
from outpace.workloads import workload

ARIES = "zero:latency_us=1.5,overhead_us=0.5,gbps=80,ranks_per_host=1"  #: one rank for each host; an assumption
OWN_OF_8 = "cluster:latency_us=1.5,overhead_us=0.5,gbps=80"  #: the same links under outpace's own engine
OWN = f"{OWN_OF_8},ranks_per_host=1"
BYTES = 4e-6  #: megabytes of a float32 parameter
MS_PER_MINUTE = 60_000

SOLO, MAJORITY = "eager-solo:grace=0,repair=none", "eager-majority:grace=0,repair=none"
RANDOM = "eager:quorum=majority-random,grace=0,repair=none"
WAGMA, LOCAL = "wagma:sync=wait,grace=0", "local-sgd:every=1"


class Outcome(NamedTuple):
    """Of one run."""

    steps_per_s: float  #: of all ranks together, whose contribution was applied
    updates_per_s: float  #: rounds, in the middle eight tenths of the run; 0 where there are none


def limited(ranks: int) -> str:
    """Eager-SGD's released code: 32 rounds with whoever is there, then one of all. In time, these groups are that."""
    return f"wagma:group_size={ranks},sync_every=33,sync=wait,grace=0"


# -- running ----------------------------------------------------------------------------------------------------------

_known: dict[tuple[str, Scenario], Outcome] = {}


def run(strategy: str, scenario: Scenario) -> Outcome:
    """Each strategy goes through each scenario once."""
    if (strategy, scenario) not in _known:
        ends: list[int] = []

        def watch(event: Event, _: object) -> None:
            if isinstance(event, Done):
                ends.append(event.time_ns)

        began = time.perf_counter()
        timing = simulate_timing(strategy, scenario, watch=watch)
        _known[strategy, scenario] = Outcome(timing.throughput, _middle_rate(ends))
        _progress(strategy, scenario, f"{timing.throughput:.4g} steps/s", began)
    return _known[strategy, scenario]


def _middle_rate(ends: list[int]) -> float:
    first, last = len(ends) // 10, len(ends) * 9 // 10
    return (last - first) / (ends[last] - ends[first]) * 1e9 if last > first else 0.0


def _progress(strategy: str, scenario: Scenario, result: str, began: float) -> None:
    what = f"{strategy}, {scenario.ranks:,} ranks x {scenario.steps:,} steps, {scenario.imbalance}"
    print(f"{what}: {result} ({time.perf_counter() - began:.1f} s)", file=sys.stderr, flush=True)


def gain(strategy: str, over: str, scenario: Scenario) -> float:
    """At equal work: applied steps per second, as a ratio."""
    return run(strategy, scenario).steps_per_s / run(over, scenario).steps_per_s


def gain_in_updates(strategy: str, over: str, scenario: Scenario) -> float:
    """In updates per second, however many contributions are in one."""
    return run(strategy, scenario).updates_per_s / run(over, scenario).updates_per_s


def undisturbed_ms(step_ms: float, scenario: Scenario) -> float:
    """Computing of a step that takes so long with a round of all ranks."""
    return round(step_ms - full_round_s(scenario) * 1000, 1)


# -- writing ----------------------------------------------------------------------------------------------------------


def command(scenario: Scenario, strategies: Sequence[str], task: str | None = None) -> str:
    """What `outpace simulate` would say repeats these runs."""
    is_extra = BASELINE not in strategies
    return Comparison(
        scenario, [BASELINE] * is_extra + [*strategies], workload=task, baseline_is_extra=is_extra
    ).command()


def write(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], commands: Sequence[str]) -> None:
    print(f"\n### {title}\n")
    for line in commands:
        print(f"    {line}")
    print("\n| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def off(ours: float, paper: float) -> str:
    return f"{(ours / paper - 1) * 100:+.0f} %"


BOTH = ("ours, at equal work", "", "ours, in updates", "")


def both(strategy: str, scenario: Scenario, paper: float) -> list[str]:
    """The cells of these columns: the speed-up over allreduce in either measure, and how far it is from the paper's."""
    work, updates = gain(strategy, BASELINE, scenario), gain_in_updates(strategy, BASELINE, scenario)
    return [times(work), off(work, paper), *([times(updates), off(updates, paper)] if updates else ["-", "-"])]


# -- eager-SGD (PPoPP 2020) -------------------------------------------------------------------------------------------


def microbenchmark(seed: int) -> None:
    scenario = Scenario(ranks=32, steps=1, compute_ms=0, imbalance="skew", network="zero", seed=seed)
    drawn = [f"{RANDOM},seed={initiator}" for initiator in range(1000)]

    def waited_ms(strategy: str) -> float:
        return fmean(simulate_timing(strategy, scenario).waited_s) * 1000

    print("32 ranks, 1 step, once and with 1,000 drawn initiators", file=sys.stderr)

    rows = [
        ["MPI_Allreduce", "15.5 ms", f"{waited_ms('allreduce'):.2f} ms", "(P - 1) / 2 = 15.5"],
        ["majority, random initiator", "5.3 ms", f"{fmean(map(waited_ms, drawn)):.2f} ms", "(P² - 1) / 6P = 5.33"],
        ["majority, counted exactly", "-", f"{waited_ms(MAJORITY):.2f} ms", "h (h - 1) / 2P = 3.75, h = P / 2"],
        ["solo", "~0.2 ms", f"{waited_ms(SOLO):.2f} ms", "0"],
    ]
    commands = [command(scenario, ["allreduce", MAJORITY, SOLO]) + " --json"]  # of RANDOM it would show one draw
    write(
        "Microbenchmark: mean wait of 32 ranks, rank r late by r ms",
        ["", "paper, 64 B", "ours", "by hand"],
        rows,
        commands,
    )


HYPERPLANE = Scenario(steps=768, compute_ms=406.2, payload_mb=round(8193 * BYTES, 6), network=ARIES, data=SHARED)


def hyperplane(seed: int) -> None:
    rows, commands = [], []
    for delay, paper_sync, paper in ((200, 468.9, 1.50), (300, 545.1, 1.75), (400, 625.3, 2.01)):
        scenario = replace(HYPERPLANE, imbalance=f"random:k=1,delay_ms={delay}", seed=seed)
        sync, solo = (768 / run(name, scenario).updates_per_s for name in ("allreduce", SOLO))
        rows.append(
            [
                *(f"{delay} ms", f"{paper_sync} s", f"{sync:.1f} s", "~312 s", f"{solo:.1f} s"),
                *(times(paper), *both(SOLO, scenario, paper)),
            ]
        )
        commands.append(command(scenario, ["allreduce", SOLO]))
    columns = ["delay", "synchronous, paper", "ours", "solo, paper", "ours", "speed-up, paper", *BOTH]
    write("Hyperplane: 768 updates, 8 ranks, 1 random one delayed at each step", columns, rows, commands)


def hyperplane_loss(seed: int) -> None:
    scenario = replace(HYPERPLANE, steps=192, imbalance="random:k=1,delay_ms=400", seed=seed)
    rows = []
    for title, strategy in (("synchronous", "allreduce"), ("solo", SOLO)):
        began, task = time.perf_counter(), workload("hyperplane", seed)
        trained = simulate_training(strategy, scenario, task)
        _progress(strategy, scenario, f"loss {trained.held_out.loss:.4f}", began)
        rows.append([title, "~4.7", f"{trained.held_out.loss:.4f}", f"{trained.seconds:.1f} s"])
    floor = workload("hyperplane", seed).noise_floor()
    columns = [
        "",
        "loss, paper (48 epochs)",
        f"held-out loss, ours (12 epochs; {floor:.4f} is the noise)",
        "simulated time",
    ]
    commands = ["OMP_NUM_THREADS=1 " + command(scenario, ["allreduce", SOLO], "hyperplane")]
    write("Hyperplane: the loss, 400 ms", columns, rows, commands)


RESNET_MB = round(25_559_081 * BYTES, 3)


def resnet(seed: int) -> None:
    steps = 90 * 1_281_167 / 8192
    published = (
        (300, "Deep500", 233, 187),
        (300, "Horovod", 213, 187),
        (460, "Deep500", 252, 196),
        (460, "Horovod", 249, 196),
    )
    rows, commands = [], []
    for delay, baseline, minutes, eager_minutes in published:
        idle = Scenario(ranks=64, steps=331, payload_mb=RESNET_MB, network=ARIES, data=SHARED, seed=seed)
        base = undisturbed_ms(minutes * MS_PER_MINUTE / steps - delay, idle)
        scenario = replace(idle, compute_ms=base, imbalance=f"random:k=4,delay_ms={delay}")
        paper, held = minutes / eager_minutes, gain(limited(64), "allreduce", scenario)
        rows.append(
            [
                *(f"{delay} ms", baseline, f"{base} ms", f"{minutes} / {eager_minutes} min"),
                *(times(paper), *both(SOLO, scenario, paper), times(held), off(held, paper)),
            ]
        )
        commands.append(command(scenario, ["allreduce", SOLO, limited(64)]))
    columns = ["delay", "baseline", "base step", "minutes, baseline / eager", "speed-up, paper", *BOTH]
    columns += ["solo with the released limiter", ""]
    write("ResNet-50: 64 ranks, 4 random ones delayed at each step", columns, rows, commands)


def cifar(seed: int) -> None:
    idle = Scenario(steps=800, payload_mb=round(467_194 * BYTES, 3), network=ARIES, data=SHARED, seed=seed)
    base = undisturbed_ms(11_128_000 / (190 * 50_000 / 512) - 400, idle)
    scenario = replace(idle, compute_ms=base, imbalance="shifting-skew")
    published = (
        ("majority", MAJORITY, 1.29),
        ("majority, random initiator", RANDOM, 1.29),
        ("solo", SOLO, 11_128 / 3534),
    )
    _eager_table(f"CIFAR-10: 8 ranks, all delayed by 50 to 400 ms in turn (base step {base} ms)", scenario, published)


def ucf101(seed: int) -> None:
    scenario = Scenario(
        steps=991,
        compute_ms=1235,
        payload_mb=round(34_663_525 * BYTES, 3),
        network=ARIES,
        data=SHARED,
        imbalance="lengths",
        seed=seed,
    )
    published = (
        ("majority", MAJORITY, 1.27),
        ("majority, random initiator", RANDOM, 1.27),
        ("solo", SOLO, 1.64),
        ("solo with the released limiter", limited(8), 1.64),
    )
    step_s = 8 / run("allreduce", scenario).steps_per_s
    paper_s = 9227 / (50 * 9537 / 128)
    both = f"a synchronous step: {paper_s:.2f} s in the paper, {step_s:.2f} s here"
    title = f"UCF101: 8 ranks, videos of unequal length ({both})"
    _eager_table(title, scenario, published)


def _eager_table(title: str, scenario: Scenario, published: Sequence[tuple[str, str, float]]) -> None:
    rows = []
    for name, strategy, paper in published:
        rows.append([name, times(paper), *both(strategy, scenario, paper)])
    columns = ["over synchronous", "paper", *BOTH]
    write(title, columns, rows, [command(scenario, ["allreduce", *(strategy for _, strategy, _ in published)])])


def accuracy(seed: int) -> None:
    paper = {
        "lengths": ("UCF101, test top-1", {"allreduce": "69.6 %", MAJORITY: "69.7 %", SOLO: "60.6 %"}),
        "shifting-skew": ("CIFAR-10", {"allreduce": "92.6 %", MAJORITY: "90.0 %", SOLO: "58.0 %"}),
    }
    rows, commands = [], []
    for imbalance, (task, published) in paper.items():
        short = Scenario(steps=200, compute_ms=200, network="zero", data=SHARED, imbalance=imbalance, seed=seed)
        lengths = (short, replace(short, steps=320))
        for strategy, figure in published.items():
            rows.append([f"`{imbalance}`", strategy, f"{task}: {figure}", *(_of_seeds(strategy, s) for s in lengths)])
        commands += ["OMP_NUM_THREADS=1 " + command(scenario, [*published], "digits") for scenario in lengths]
    columns = ["imbalance", "strategy", "paper, on its task", "ours, on 8 x 8 digits: 200 steps", "320 steps"]
    write("Accuracy after equal work: 8 ranks, mean and range of 3 seeds", columns, rows, commands)


def _of_seeds(strategy: str, scenario: Scenario) -> str:
    found = [_accuracy(strategy, replace(scenario, seed=scenario.seed + i)) for i in range(3)]
    return f"{fmean(found):.1%} ({min(found):.1%} to {max(found):.1%})".replace("%", " %")


def _accuracy(strategy: str, scenario: Scenario) -> float:
    began = time.perf_counter()
    found = simulate_training(strategy, scenario, workload("digits", scenario.seed)).held_out.metric
    _progress(strategy, scenario, f"accuracy {found:.3f}", began)
    return found


# -- WAGMA-SGD (TPDS 2021) --------------------------------------------------------------------------------------------


def wagma(seed: int) -> None:
    idle = Scenario(ranks=64, steps=301, payload_mb=RESNET_MB, network=ARIES, data=SHARED, seed=seed)
    imbalance = "random:k=2,delay_ms=320"
    batch_8192 = replace(idle, compute_ms=undisturbed_ms(1000 / 1.52, idle), imbalance=imbalance)
    published = {"allreduce": 1.26, LOCAL: 1.25, "d-psgd": 1.23, "sgp:peers=2": 1.25, SOLO: 1.13}
    _wagma_table(
        f"WAGMA-SGD, ResNet-50: 64 ranks, 128 images each (base step {batch_8192.compute_ms} ms)", batch_8192, published
    )
    steps = 90 * 1_281_167 / 4096
    base = undisturbed_ms(377 * MS_PER_MINUTE / steps - 320, idle)
    minutes = {"allreduce": 377, LOCAL: 357, "d-psgd": 324, "sgp:peers=2": 334, SOLO: 311, "ad-psgd": 165}
    published = {name: value / 231 for name, value in minutes.items()}
    title = f"WAGMA-SGD, ResNet-50: 64 ranks, 64 images each (base step {base} ms)"
    _wagma_table(title, replace(batch_8192, compute_ms=base), published)
    kimg = {"allreduce": 32.6, LOCAL: 32.5, "d-psgd": 35.9, "sgp:peers=2": 36.4, SOLO: 32.6, "ad-psgd": 52.7}
    published = {name: 44.5 / value for name, value in kimg.items()}
    title = "WAGMA-SGD, ResNet-50: 256 ranks, 128 images each (paper: read off a figure)"
    _wagma_table(title, replace(batch_8192, ranks=256, steps=201), published)


def rollouts(seed: int) -> None:
    """On ideal links, and on those of outpace's engine for several hosts, with its log, store and agents."""
    scenario = Scenario(
        ranks=1024, steps=81, compute_ms=0, payload_mb=round(8_476_421 * BYTES, 3), data=SHARED, seed=seed
    )
    published = {LOCAL: 2.33, "d-psgd": 1.88, "sgp:peers=4": 2.10, "ad-psgd": 49 / 82}
    on_engine = dict(list(published.items())[:3])
    places = {"": (ARIES, published), " on 1,024 hosts": (OWN, on_engine), " on 128 hosts of 8": (OWN_OF_8, on_engine)}
    for where, (network, others) in places.items():
        title = f"WAGMA-SGD, reinforcement learning: 1,024 ranks{where}"
        found = replace(scenario, network=network, imbalance="rollouts")
        _wagma_table(title, found, others, "wagma:sync_every=8,sync=wait,grace=0")


def _wagma_table(title: str, scenario: Scenario, published: dict[str, float], strategy: str = WAGMA) -> None:
    rows = []
    for other, paper in published.items():
        ours, step_s = gain(strategy, other, scenario), scenario.ranks / run(other, scenario).steps_per_s
        rows.append([f"over {other}", times(paper), times(ours), off(ours, paper), f"{step_s * 1000:,.0f} ms"])
    step_s = scenario.ranks / run(strategy, scenario).steps_per_s
    rows.append([f"{strategy} itself", "", "", "", f"{step_s * 1000:,.0f} ms"])
    columns = ["speed-up of WAGMA-SGD", "paper", "ours", "", "a step of the other, ours"]
    write(title, columns, rows, [command(scenario, [*published, strategy])])


# -- Non-blocking SGD (arXiv 2211.00889) ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delay:
    """An imbalance of eight ranks whose undisturbed step takes a second, and its rates by hand."""

    title: str
    imbalance: str
    full: str
    first: str
    seven: str
    microbatches: int = 8
    compute_ms: float = 1000


SECOND = Scenario(steps=400, compute_ms=1000, network="zero", data=SHARED)
DELAYS = (
    Delay("rank 0 always twice as slow, B = 8", "slow:k=1,factor=2", "4.00", "7.50", "7.00"),
    Delay("rank 0 always twice as slow, B = 1", "slow:k=1,factor=2", "4.00", "7.50", "7.00", microbatches=1),
    Delay("each rank twice as slow in 1 of 8 steps, B = 8", "pauses:every=8,pause_ms=1000", "4.83", "7.11", "5.54"),
    Delay(
        "a step is the sum of 8 exponential times, B = 8",
        "gamma:mean_ms=1000,sd_ms=353.6",
        "5.15",
        "8.00",
        "5.41",
        compute_ms=0,
    ),
)


def nonblocking(seed: int) -> None:
    rows, commands = [], []
    for delay in DELAYS:
        scenario = replace(
            SECOND, imbalance=delay.imbalance, compute_ms=delay.compute_ms, microbatches=delay.microbatches, seed=seed
        )
        by_hand = {"allreduce": delay.full, "nonblocking": delay.first, "m-sync:m=7": delay.seven}
        rates = {name: run(name, scenario).steps_per_s for name in by_hand}
        rows.append([delay.title, *(f"{by_hand[name]} / {rate:.2f}" for name, rate in rates.items())])
        commands.append(command(scenario, [*by_hand]))
    columns = ["delays", "full barrier", "first finisher (`nonblocking`)", "first 7 of 8 (`m-sync:m=7`)"]
    write("Non-blocking SGD: steps/s of 8 ranks, by hand / ours", columns, rows, commands)


def gossip(seed: int) -> None:
    imbalances = (
        "slow:k=1,factor=2",
        "slow:k=1,factor=3",
        "slow:k=4,factor=2",
        "pauses:every=8,pause_ms=1000",
        "exponential:mean_ms=500",
        "exponential:mean_ms=1000",
    )
    pairs = (("d-psgd", "nonblocking-dpsgd"), ("matcha", "nonblocking-matcha"))
    rows, commands = [], []
    for imbalance in imbalances:
        scenario = replace(SECOND, imbalance=imbalance, seed=seed)
        cells = []
        for blocking, other in pairs:
            before, after = (run(name, scenario).steps_per_s for name in (blocking, other))
            cells += [f"{before:.2f}", f"{after:.2f}", times(after / before)]
        rows.append([f"`{imbalance}`", *cells])
        commands.append(command(scenario, [name for pair in pairs for name in pair]))
    columns = ["imbalance", "D-PSGD", "non-blocking", "speed-up", "MATCHA", "non-blocking", "speed-up"]
    write('Non-blocking against D-PSGD and MATCHA: steps/s of 8 ranks (paper: "up to 2x")', columns, rows, commands)


TABLES: dict[str, Callable[[int], None]] = {
    "microbenchmark": microbenchmark,
    "hyperplane": hyperplane,
    "hyperplane-loss": hyperplane_loss,
    "resnet": resnet,
    "cifar": cifar,
    "ucf101": ucf101,
    "accuracy": accuracy,
    "wagma": wagma,
    "rollouts": rollouts,
    "nonblocking": nonblocking,
    "gossip": gossip,
}
SLOW = ("rollouts",)  #: made only when asked for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, metavar="NAME", help=f"one of: {', '.join(TABLES)}")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (%(default)d, as in docs/results.md)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # models are tiny, and threads would only get into each other's way
    for name, table in TABLES.items():
        if name == arguments.only or (arguments.only is None and name not in SLOW):
            table(arguments.seed)


if __name__ == "__main__":
    main()
