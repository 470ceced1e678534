"""What a round costs on a host with accelerators, on paper: `python -m bench.staging_model`, for docs/accelerators.md.

Nothing here is measured but `CORE`: a round of eight ranks and 25 MB on two cores takes 14.7 ms (docs/benchmarks.md).
The rest are data-sheet speeds, times what copies reach of them in practice.
"""

from __future__ import annotations

from typing import NamedTuple

RANKS = 8
CORE = 9 * 25e6 / 14.7e-3 / 2  # bytes a second that one core reads and writes when it adds up rows
BUS = {"PCIe 4 x16": 25e9, "PCIe 5 x16": 50e9}  # bytes a second, one direction
MEMORY = {"PCIe 4 x16": 0.7 * 16 * 25.6e9, "PCIe 5 x16": 0.7 * 16 * 38.4e9}  # 16 channels of DDR4-3200, DDR5-4800
NVLINK = 300e9  # what NCCL reaches for one GPU of eight
PAYLOADS = {"25M parameters, float32": 1e8, "100M parameters, float32": 4e8, "1B parameters, bfloat16": 2e9}


class Cost(NamedTuple):
    """Seconds of a round."""

    down: float
    reduce: float
    up: float

    @property
    def total(self) -> float:
        return sum(self)


def cost(nbytes: float, bus: str, sharing: int = 1, remote: float = 1.0) -> Cost:
    """`sharing` ranks have one link between them; `remote`: how much longer copies take from the other socket."""
    copy = nbytes * sharing / BUS[bus] * remote
    all_copies = RANKS * nbytes / MEMORY[bus]
    summed = (RANKS + 1) * nbytes / min(RANKS * CORE, MEMORY[bus])
    return Cost(max(copy, all_copies), summed, max(copy, all_copies))


def allreduce(nbytes: float, speed: float) -> float:
    return 2 * (RANKS - 1) / RANKS * nbytes / speed


def main() -> None:
    print(f"| {RANKS} ranks | bus | down | sum | up | a round | the same by NCCL, NVLink | over the bus |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for what, nbytes in PAYLOADS.items():
        for bus in BUS:
            found = cost(nbytes, bus)
            times = (*found, found.total, allreduce(nbytes, NVLINK), allreduce(nbytes, BUS[bus] / 2))
            print(f"| {what} | {bus} | {' | '.join(f'{1e3 * t:,.1f} ms' for t in times)} |")
    nbytes, bus = PAYLOADS["100M parameters, float32"], "PCIe 4 x16"
    for what, found in {
        "two GPUs behind one switch": cost(nbytes, bus, sharing=2),
        "rows on the other socket (copies 1.6 times as long)": cost(nbytes, bus, remote=1.6),
    }.items():
        print(f"{what}: {1e3 * found.total:.0f} ms instead of {1e3 * cost(nbytes, bus).total:.0f}")


if __name__ == "__main__":
    main()
