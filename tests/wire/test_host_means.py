"""Means over the hosts of a group: exact, the same bits on all of them, and whoever reads too slowly notices."""

import os
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.engines.arena.kernel import Arena
from outpace.engines.arena.layout import NOTES_BYTES, ArenaLayout
from outpace.engines.cluster.host_means import HostMeans
from outpace.mixing.schedules import Placement, group, host_group, placed_group
from outpace.protocol.published import Frozen, Publication
from outpace.protocol.rules import Publishing, Rules
from outpace.vector import SUPPORTED, VectorLayout, accumulator
from tests.support.made_hosts import everywhere

NUMBER, ROWS = 7, 3


class Host:
    """The memory of one host with its ranks' rows, and what makes its means."""

    def __init__(self, host: int, rules: Rules, vector: VectorLayout, rows: dict[int, list[torch.Tensor]]) -> None:
        layout = ArenaLayout.of(
            rules.world, 1, 64, 1, 1, 8, 0, 0, 64, published_rows=rules.published_rows, published_bytes=vector.nbytes
        )
        fd = os.memfd_create("means")
        os.truncate(fd, layout.total_bytes)
        self.arena, self.vector = Arena(fd, layout), vector
        os.close(fd)
        self.means = HostMeans(self.arena, vector.chunks(), rules, host)
        for rank, tensors in rows.items():
            if rules.hosts[rank] == host:
                for there, tensor in zip(self.row(rank * ROWS), tensors, strict=True):
                    there.copy_(tensor)

    def row(self, row: int) -> list[torch.Tensor]:
        layout = self.arena.layout
        return self.vector.views(self.arena.region(layout.published(row), layout.published_bytes))

    def notes(self, row: int) -> list[float]:
        numbers = self.arena.numbers(self.arena.layout.notes(row), NOTES_BYTES // 8, "d")
        return list(numbers[1 : 1 + int(numbers[0])])


def made(of: tuple[int, ...], shapes: list[int], dtypes: list[torch.dtype], seed: int) -> dict[int, list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return {
        rank: [torch.randn(n, generator=draw).to(dtype) for n, dtype in zip(shapes, dtypes, strict=True)]
        for rank in range(len(of))
    }


def averaged(of, fresh, shapes, dtypes, averaging, seed=0):
    """(the rows, the mean and its notes on each of the hosts that average)."""
    rules = Rules(len(of), hosts=of, publishes=Publishing(rows=ROWS, freeze="first", groups=True))
    rows = made(of, shapes, dtypes, seed)
    vector = VectorLayout.of((str(i), tensor) for i, tensor in enumerate(rows[0]))
    frozen = Frozen(NUMBER, {rank: Publication(rank, NUMBER, rank * ROWS, 1) for rank in sorted(fresh)})
    at = len(of) * ROWS

    def live(connected):
        mine = Host(connected.host, rules, vector, rows)
        if connected.host in averaging:
            mine.means.average(connected, averaging, frozen, at)
        return [tensor.clone() for tensor in mine.row(at)], mine.notes(at)

    found = everywhere(max(of) + 1, live)
    return rows, [found[host] for host in averaging]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_hosts_of_a_group_have_the_mean_of_all_rows_that_are_in_it(data):
    counts = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    of = tuple(host for host, count in enumerate(counts) for _ in range(count))
    fresh = data.draw(st.sets(st.integers(0, len(of) - 1)))
    averaging = data.draw(st.sets(st.integers(0, len(counts) - 1), min_size=1))
    shapes = data.draw(st.lists(st.sampled_from([1, 3, 100, 5000]), min_size=1, max_size=3))
    dtypes = [data.draw(st.sampled_from(SUPPORTED)) for _ in shapes]
    rows, found = averaged(of, fresh, shapes, dtypes, sorted(averaging))
    chosen = [rank for rank in sorted(fresh) if of[rank] in averaging]
    for tensors, notes in found:
        assert notes == ([NUMBER, len(chosen)] if chosen else [])
        for index, tensor in enumerate(tensors if chosen else []):
            expected = torch.stack([rows[rank][index].to(torch.float64) for rank in chosen]).mean(0)
            near = 1e-5 if accumulator(tensor.dtype) == tensor.dtype else 2**-7
            torch.testing.assert_close(tensor.to(torch.float64), expected, rtol=near, atol=near)
            assert torch.equal(tensor, found[0][0][index])


def test_what_a_row_held_is_taken_for_no_mean_while_it_is_written_again():
    rules = Rules(2, hosts=(0, 1), publishes=Publishing(rows=ROWS, freeze="first", groups=True))
    vector = VectorLayout.of([("w", torch.zeros(4))])
    mine = Host(0, rules, vector, {0: [torch.ones(4)]})
    mine.means._note(6, 5, 2)
    assert mine.notes(6) == [5, 2]
    mine.means.forget(6)
    assert mine.notes(6) == []


@pytest.mark.parametrize(("hosts", "each"), [(2, 1), (8, 1), (7, 1), (4, 4), (6, 2), (5, 3)])
@pytest.mark.parametrize("size", [None, 4])
def test_groups_of_a_step_are_made_of_whole_hosts_and_cover_the_world(hosts, each, size):
    placement = Placement([rank // each for rank in range(hosts * each)])
    for step in range(12):
        found = {placed_group(rank, step, placement, size) for rank in range(hosts * each)}
        assert Counter(rank for members in found for rank in members) == Counter(range(hosts * each))
        for rank in range(hosts * each):
            its = host_group(rank // each, step, placement, size)
            assert placed_group(rank, step, placement, size) == tuple(r for h in its for r in placement.ranks[h])
            assert len(its) > 1


@pytest.mark.parametrize("world", [2, 5, 8, 12])
def test_with_one_rank_a_host_groups_are_those_of_the_paper(world):
    placement = Placement(range(world))
    for size in range(2, world + 1):
        for step in range(8):
            for rank in range(world):
                assert host_group(rank, step, placement, size) == group(rank, step, world, size)
    assert host_group(0, 9, placement, 2, all_every=5) == tuple(range(world))
