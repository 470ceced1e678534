"""State as plain values: what is declared comes back as it was, through JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from outpace.protocol.rules import Publishing, Rules
from outpace.protocol.state import Part


class Place(NamedTuple):
    row: int
    of: tuple[int, ...] = ()


@dataclass
class Record:
    name: str
    places: dict[tuple[int, int], Place]
    counts: Counter[int] = field(default_factory=Counter)
    found: list[int] = field(default_factory=list, init=False)  # made anew where it is needed


class Inner(Part):
    number: int

    def __init__(self, limit: int) -> None:
        self.limit, self.number = limit, 0


class Outer(Part):
    LIMIT: ClassVar[int] = 7
    records: list[Record]
    last: Place | None
    ranks: set[int]
    inner: Inner
    inners: list[Inner]

    def __init__(self) -> None:
        self.records, self.last, self.ranks, self.total = [], None, set(), 0
        self.inner, self.inners = Inner(1), [Inner(2), Inner(3)]

    def _restore_what_follows(self) -> None:
        self.total = sum(self.ranks)


def filled() -> Outer:
    outer = Outer()
    outer.records = [Record("a", {(0, 1): Place(3, (4, 5))}, Counter({2: 9})), Record("b", {})]
    outer.records[0].found = [1]
    outer.last, outer.ranks, outer.total = Place(8), {3, 1}, 4
    outer.inner.number, outer.inners[1].number = 11, 12
    return outer


def test_what_is_declared_comes_back_and_what_was_given_stays() -> None:
    outer = filled()
    again = Outer().with_state(json.loads(json.dumps(outer.to_state())))
    assert again.records == [Record("a", {(0, 1): Place(3, (4, 5))}, Counter({2: 9})), Record("b", {})]
    assert (again.last, again.ranks, again.total) == (Place(8), {1, 3}, 4)
    assert [(i.limit, i.number) for i in (again.inner, *again.inners)] == [(1, 11), (2, 0), (3, 12)]
    assert again.records[0].found == []
    assert again.to_state() == outer.to_state()


def test_a_state_is_of_its_time_whatever_happens_after() -> None:
    outer = filled()
    state = outer.to_state()
    before = json.dumps(state)
    outer.records[0].places[0, 2] = Place(1)
    outer.records.pop()
    outer.ranks.add(5)
    outer.inner.number = 0
    assert json.dumps(state) == before


def test_rules_come_back_from_another_process() -> None:
    rules = Rules(3, quorum=0.5, hosts=(0, 0, 1), publishes=Publishing(freeze="path", edges=((0, 1), (1, 2))))
    plain = json.loads(json.dumps(rules.to_dict()))
    assert plain == rules.to_dict()
    assert Rules.from_dict(plain) == rules
    assert Rules.from_dict(Rules(2).to_dict()) == Rules(2)
