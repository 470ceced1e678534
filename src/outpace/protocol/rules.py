"""What a strategy chooses for its rounds. Owns the names and the checks of every choice; decides nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from outpace.errors import InvalidRules
from outpace.protocol.state import read_fields, write_fields
from outpace.spec import is_number

QUORUM_NAMES = ("auto", "solo", "majority", "majority-random", "full", "work")
LATE_NAMES = ("carry", "count", "drop")
REPAIR_NAMES = ("look-ahead", "discount", "none")
NORMALISE_NAMES = ("world", "contributors", "samples", "finished", "planned", "sum")
OF_SUMS = ("finished", "planned")  #: a row is the sum of its micro-batches' gradients, not their mean
HOST_MEANS = 3  #: rows of a host for group means: two used in turn, and one for barriers


@dataclass(frozen=True)
class Publishing:
    """How ranks publish weights, and when what is published is frozen for all.

    rows: of each rank; with more, a publication can be read for longer.
    freeze: "" never; "first": an iteration freezes when the first rank has published it and grace is over, but every
        `sync_every`-th only when all have; "path": when it connects parts of `edges` that were not connected yet.
    edges: pairs of ranks that read each other's publications, if only these do.
    groups: an iteration is averaged in groups of about `group_size` ranks (None: about the square root of all), and
        every `all_every`-th by all ranks. Between hosts, only host sums travel then, and only within a group.
    max_age: of a publication that is averaged, in iterations; 0 for any.
    once: a publication takes part only in the first iteration that freezes after it, so that nobody is pulled back by
        what a slow rank left long ago. Otherwise a frozen iteration has every rank's current publication.
    """

    rows: int = 3
    freeze: str = ""
    sync_every: int = 0
    max_age: int = 0
    once: bool = False
    edges: tuple[tuple[int, int], ...] = ()
    groups: bool = False
    group_size: int | None = None
    all_every: int = 0


@dataclass(frozen=True)
class Rules:
    """The rules of every round of one run, equal on all ranks."""

    world: int
    quorum: str | int | float = "majority"
    late: str = "carry"
    max_staleness: int = 8
    normalise: str = "world"
    grace: str | float = "auto"  #: seconds, or "auto" from the observed spread of arrivals
    min_ranks: int | None = None
    restarts: bool = False  #: ranks that die are restarted, so the end of training waits for them
    #: how to make up for late work: compute ahead of the weights ("look-ahead"), lower its weight ("discount"), "none"
    repair: str = "none"
    seed: int = 0
    codec: str = "none"  #: compression of gradients
    cumulative: bool = False  #: a rank may add to its contribution to the open round
    #: finished samples a round needs: with quorum "work" their number, 0 for all planned; else a share of all planned
    work: float = 0.0
    one_at_a_time: bool = False  #: a round takes one contribution, and the others queue
    publishes: Publishing | None = None  #: weights are published for others to read
    hosts: tuple[int, ...] = ()  #: the host of each rank, numbered from 0; empty for one machine
    strategy: str = ""  #: as text, for ranks to compare

    def __post_init__(self) -> None:
        _check(self.world >= 1, f"a world of {self.world} ranks cannot train")
        self._check_quorum()
        _check(self.work >= 0, f"work={self.work!r} must be 0 or more")
        check_name("late", self.late, LATE_NAMES)
        check_name("normalise", self.normalise, NORMALISE_NAMES)
        check_name("repair", self.repair, REPAIR_NAMES)
        good = isinstance(self.max_staleness, int) and self.max_staleness >= 1
        _check(good, f"max_staleness={self.max_staleness!r} must be a whole number of rounds, at least 1")
        if self.grace != "auto":
            good = is_number(self.grace) and 0 <= float(self.grace) < math.inf
            _check(good, f'grace={self.grace!r} must be "auto" or a number of seconds, 0 for none')
        _check(len(self.hosts) in (0, self.world), f"{len(self.hosts)} ranks have a host, of {self.world}")
        if self.min_ranks is not None:
            good = isinstance(self.min_ranks, int) and 1 <= self.min_ranks <= self.world
            _check(good, f"min_ranks={self.min_ranks!r} must lie between 1 and the world of {self.world}")

    def _check_quorum(self) -> None:
        quorum = self.quorum
        if isinstance(quorum, str):
            check_name("quorum", quorum, QUORUM_NAMES)
            return
        names = ", ".join(QUORUM_NAMES)
        _check(is_number(quorum), f"quorum={quorum!r} must be a name ({names}), a number of ranks or a fraction")
        if isinstance(quorum, float):
            _check(0 < quorum <= 1, f"quorum={quorum} as a fraction must lie in (0, 1]")
        else:
            _check(quorum >= 1, f"quorum={quorum} must be at least 1")
            _check(
                quorum <= self.world,
                f"quorum={quorum} is larger than the world of {self.world} ranks: no round could ever be "
                f'complete. Use quorum="full" for everybody, or start more ranks',
            )

    @cached_property
    def is_count(self) -> bool:
        """Whether the quorum is a plain number of ranks, however much each has done."""
        return self.work == 0 and self.quorum not in ("work", "majority-random")

    @cached_property
    def chooses(self) -> bool:
        """Whether the quorum is chosen from observed arrivals: with "auto", and where late work is repaired. A repair
        can make up for some late work; if more would be late, a round waits for more ranks."""
        is_repaired = self.discounts and self.late == "carry" and self.is_count and self.quorum != "full"
        return self.quorum == "auto" or (is_repaired and not (self.cumulative or self.one_at_a_time or self.publishes))

    @cached_property
    def averages_hosts(self) -> bool:
        """Whether agents compute group means from host sums; otherwise each rank reads the others' rows."""
        return self.publishes is not None and self.publishes.groups and len(set(self.hosts)) > 1

    @cached_property
    def neighbours(self) -> dict[int, set[int]]:
        """For each rank, the ranks that may read its publications without being named: along `edges`."""
        found: dict[int, set[int]] = {}
        for pair in self.publishes.edges if self.publishes is not None else ():
            for one, other in (pair, reversed(pair)):
                found.setdefault(one, set()).add(other)
        return found

    @property
    def published_rows(self) -> int:
        """Rows of all ranks, and of their host for means."""
        if self.publishes is None:
            return 0
        return self.publishes.rows * self.world + (HOST_MEANS if self.averages_hosts else 0)

    @cached_property
    def least_ranks(self) -> int:
        """How many ranks must be alive or finished for training to go on."""
        if self.min_ranks is not None:
            return self.min_ranks
        return 1 if self.restarts else needed("majority" if self.quorum == "auto" else self.quorum, self.world)

    @property
    def needs_pace(self) -> bool:
        """Whether any decision depends on when contributions arrive."""
        return self.chooses or (self.grace == "auto" and self.quorum != "full")

    @property
    def rows(self) -> int:
        """Rows of each rank: one to write while the ledger holds another, and a third if a late one may be held while
        the rank adds to its contribution to the open round."""
        return 3 if self.cumulative and self.late == "carry" else 2

    @cached_property
    def of_sums(self) -> bool:
        """Whether rows are sums over micro-batches, not means."""
        return self.normalise in OF_SUMS

    @cached_property
    def discounts(self) -> bool:
        """Whether late work gets less weight. In a plain sum nothing is weighted."""
        return self.repair != "none" and self.normalise != "sum"

    @cached_property
    def looks_ahead(self) -> bool:
        return self.repair == "look-ahead" and self.publishes is None

    @cached_property
    def usual_lag(self) -> int:
        """How late a contribution may be at full weight. If a round takes one contribution, those of equally fast ranks
        are world - 1 rounds late; and looking ahead makes up for one round."""
        return (self.world - 1 if self.one_at_a_time else 0) + self.looks_ahead

    @cached_property
    def rest_follows(self) -> bool:
        """Whether what is not in a round comes in a later one, so that smaller rounds are more of them. Rounds that
        need so much work are more of them, too, where the rest is thrown away."""
        return self.late != "drop" or self.quorum == "work"

    def too_late(self, lag: int) -> bool:
        return lag > 0 and (self.late == "drop" or lag > self.max_staleness)

    def counts(self, lag: int) -> bool:
        """Whether a contribution this many rounds late counts toward the quorum, and its rank waits for the round."""
        return lag == 0 or (self.late == "count" and lag <= self.max_staleness)

    def host_of(self, rank: int) -> int:
        return self.hosts[rank] if self.hosts else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for ranks to compare their rules."""
        values: dict[str, Any] = json.loads(json.dumps(write_fields(self)))  # lists, as they come from another rank
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Rules:
        return cls(**read_fields(cls, values))


@lru_cache(typed=True)  # called in every round; 1 is one rank, 1.0 all of them
def needed(quorum: str | int | float, ranks: int) -> int:
    """How many on-time arrivals make the quorum among this many ranks, for quorums that are a count.

    "auto" depends on observed arrivals, and "majority-random" is drawn: as lower bounds they count as one.
    """
    if quorum == "majority":
        return max(1, -(-ranks // 2))
    if quorum == "full":
        return max(1, ranks)
    if isinstance(quorum, str):
        return 1
    if isinstance(quorum, float):
        return max(1, math.ceil(quorum * ranks - 1e-9))
    return quorum


def _check(good: bool, message: str) -> None:
    if not good:
        raise InvalidRules(message)


def check_name(field: str, value: str, names: tuple[str, ...]) -> None:
    _check(value in names, f"{field}={value!r} is unknown; choose one of {', '.join(names)}")
