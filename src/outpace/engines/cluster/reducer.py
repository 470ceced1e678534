"""Sums a sealed round over all hosts into this host's slot: host sums first, then one vector a host on the wire.

All agents of a group work on the same attempts in the same order and end each that they have begun, also one that was
given up meanwhile: operations of a group are matched by their order alone. Sums are made in private memory, piece by
piece, so that summing and sending overlap, and a result that is not wanted any more is written nowhere.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from outpace.engines.arena.kernel import Arena
from outpace.engines.arena.memory import Holds, tag
from outpace.engines.cluster.group import Abandoned, Group
from outpace.engines.cluster.wire import Piece, wire_of
from outpace.engines.sums import RowSums, Terms, done, join_meta, merged_meta, split_meta
from outpace.protocol.events import Attempt, Done, Event, Refuse
from outpace.protocol.round import Round
from outpace.vector import accumulator

PIECE_CHUNKS = 8  #: of half a megabyte each: shorter ones cost more calls, longer ones overlap less
DEPTH = 3  #: pieces under way at once


class HostReducer:
    def __init__(
        self,
        memory: Arena,
        sums: RowSums,
        holds: Holds,
        host: int,
        hosts: tuple[int, ...],
        tensors: int,
        is_current: Callable[[Round], bool],
        users: Callable[[], list[int]],
        free_slots: Callable[[], list[int]],
    ) -> None:
        self._memory, self._sums, self._holds = memory, sums, holds
        self._host, self._hosts = host, hosts
        self._tensors = tensors
        self._is_current, self._users, self._free_slots = is_current, users, free_slots
        self._wire = wire_of(sums)
        self._pieces = [self._made_pieces() for _ in range(DEPTH)]

    def reduce(self, group: Group, sealed: Round) -> Event | None:
        """Takes part in one attempt to its end. Returns what this host has to say about it, if anything."""
        terms = self._terms(sealed)
        self._holds.take(sealed)
        try:
            is_free = not self._holds.others_use(sealed.slot, tag(sealed), self._users())
            meta = self._begin_meta(group, sealed)
            squares = self._sum(group, sealed, terms, is_free)
            blob = self._end_meta(group, *meta)
            result = self._result(sealed, terms, squares, blob, is_free)
            is_well = group.is_well_everywhere(isinstance(result, Done))
            if isinstance(result, Done) and not (is_well and group.host == group.hosts[0]):
                return None  # another host says it for all, or has to say something else
            return result
        except (Abandoned, RuntimeError):
            self._pieces = [self._made_pieces() for _ in range(DEPTH)]  # an old group may still write into these
            raise
        finally:
            self._holds.release()

    def _result(self, sealed: Round, terms: Terms, squares: list[float], blob: bytes, is_free: bool) -> Event | None:
        """What there is to say of an attempt that has ended here, if it is still wanted. `Done` if all is well."""
        if not self._is_current(sealed):
            return None
        if not is_free:
            return self._another_attempt(sealed)
        value = self._sums.clip(squares)
        if math.isnan(value) and (refusal := self._refusal(sealed, terms)) is not None:
            return refusal
        self._memory.write_meta(self._memory.layout.slot_meta(sealed.slot), blob)
        return done(self._host, sealed, value)

    def _terms(self, sealed: Round) -> Terms:
        layout, mine = self._memory.layout, self._mine(sealed)
        offsets = [layout.row(sealed.contributions[i].rank, sealed.contributions[i].row) for i in mine]
        for offset in (*offsets, layout.slot(sealed.slot)):
            self._memory.touch(offset, layout.vector_bytes)
        return self._sums.terms(sealed, offsets, mine)

    def _mine(self, sealed: Round) -> list[int]:
        return [i for i, c in enumerate(sealed.contributions) if self._hosts[c.rank] == self._host]

    def _sum(self, group: Group, sealed: Round, terms: Terms, is_free: bool) -> list[float]:
        squares: list[float] = []
        out = self._sums.chunks_at(self._memory.layout.slot(sealed.slot)) if is_free else None
        local, count = terms if terms.rows else None, len(sealed.contributions)
        under_way: deque[tuple[Piece, Any]] = deque()
        for turn in range(len(self._pieces[0])):
            if len(under_way) == DEPTH:
                squares += self._take(group, *under_way.popleft(), terms.scale, out)
            piece = self._pieces[turn % DEPTH][turn]
            under_way.append((piece, self._wire.begin(group, piece, local, count)))
        while under_way:
            squares += self._take(group, *under_way.popleft(), terms.scale, out)
        return squares

    def _take(
        self, group: Group, piece: Piece, begun: Any, scale: float, out: list[torch.Tensor] | None
    ) -> list[float]:
        """Scales a piece that has arrived into the slot, if it may be written. Returns the sums of squares."""
        self._wire.end(group, piece, begun)
        squares = []
        for index, chunk in piece.numbered():
            squares.append(self._sums.sum_of_squares(chunk, scale))
            if out is not None:
                torch.mul(chunk, scale, out=out[index]) if out[index].dtype == chunk.dtype else out[index].copy_(
                    chunk.mul_(scale)
                )
        return squares

    def _made_pieces(self) -> list[Piece]:
        """The vector in pieces of one dtype each; pieces of one turn share memory with those of others."""
        chunks, pieces, start = self._sums.chunks, [], 0
        longest: dict[torch.dtype, torch.Tensor] = {}
        while start < len(chunks):
            dtype = chunks[start].dtype
            end = start
            while end < min(len(chunks), start + PIECE_CHUNKS) and chunks[end].dtype == dtype:
                end += 1
            sizes = [chunk.elements for chunk in chunks[start:end]]
            if dtype not in longest:  # the first piece of a dtype is its longest
                longest[dtype] = torch.zeros(sum(sizes), dtype=accumulator(dtype))
            whole = longest[dtype][: sum(sizes)]
            pieces.append(Piece(start, list(torch.split(whole, sizes)), whole))
            start = end
        return pieces

    def _begin_meta(self, group: Group, sealed: Round) -> tuple[torch.Tensor, Any]:
        """Which parameters had gradients, and the hyper-parameters, as numbers that can be summed: bytes of one host,
        and zeros of all others."""
        layout, mine = self._memory.layout, [sealed.contributions[i] for i in self._mine(sealed)]
        blobs = [self._memory.read_meta(layout.row_meta(c.rank, c.row)) for c in mine]
        present, hyper = split_meta(merged_meta(sealed._replace(contributions=tuple(mine)), blobs))
        numbers = torch.zeros(self._tensors + 4 + layout.meta_bytes)
        coded = [*(present or bytes(self._tensors)), *len(hyper).to_bytes(4, "little"), *hyper]
        numbers[: len(coded)] = torch.tensor(coded, dtype=torch.float32)
        return numbers, group.add_up(numbers)

    def _end_meta(self, group: Group, numbers: torch.Tensor, begun: Any) -> bytes:
        group.end(begun)
        tensors = self._tensors
        present = bytes(int(value > 0) for value in numbers[:tensors].tolist())
        length = int.from_bytes(bytes(map(int, numbers[tensors : tensors + 4].tolist())), "little")
        return join_meta(present, bytes(map(int, numbers[tensors + 4 : tensors + 4 + length].tolist())))

    def _refusal(self, sealed: Round, terms: Terms) -> Event | None:
        mine = sealed._replace(contributions=tuple(sealed.contributions[i] for i in self._mine(sealed)))
        found = (self._sums.culprit(index, terms, mine) for index in range(len(self._sums.chunks)))
        bad = next((each for each in found if each is not None), None)
        return None if bad is None else Refuse(bad.rank, bad.incarnation, bad.step, sealed.number)

    def _another_attempt(self, sealed: Round) -> Event | None:
        """A rank that is stopped still uses the slot: another one is needed."""
        users = self._users()
        free = next((s for s in self._free_slots() if not self._holds.others_use(s, 0, users)), None)
        return None if free is None else Attempt(sealed.number, sealed.attempt + 1, free)
