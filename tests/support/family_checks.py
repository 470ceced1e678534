"""How each strategy of the family is trained in tests, and what holds of each afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.family import Seen

# What has to happen now and then happens within a few steps here.
CHOICES = {
    "diloco": "diloco:every=4,outer_momentum=0.5",
    "dropcompute": "dropcompute:calibrate=6",
    "local-sgd": "local-sgd:every=4",
    "noloco": "noloco:every=4",
    "post-local-sgd": "post-local-sgd:start=6,every=4",
    "wagma": "wagma:sync_every=5",
    # and nobody can be too late, on however busy a machine: there are never so many rounds
    **{name: f"{name}:max_staleness=256" for name in ("eager", "eager-majority", "eager-solo", "nonblocking")},
}
MAY_GO_WITHOUT = ("m-sync", "rennala")  # a rank that is too slow never contributes
DROPS = ("m-sync", "rennala", "ringmaster", "wagma")
NEVER_LATE = ("allreduce", "dasgd", "diloco", "dropcompute", "local-sgd", "post-local-sgd")  # all wait for all


def check(seen: Sequence[Seen], name: str) -> None:
    assert len({s.met for s in seen}) == 1, "weights or buffers differ after synchronize()"
    assert len({s.final for s in seen}) == 1, "weights or buffers differ after finish()"
    assert all(s.is_finite for s in seen)
    assert seen[0].after < 0.75 * seen[0].before, "it did not learn"
    for s in seen:
        check_stats(s, name)


def check_stats(seen: Seen, name: str) -> None:
    stats = seen.stats
    assert [r.rank for r in stats.ranks] == list(range(len(stats.ranks)))
    assert {r.state for r in stats.ranks} == {"finished"}
    assert sum(r.share for r in stats.ranks) == pytest.approx(1)
    assert sum(stats.staleness.values()) == sum(r.on_time + r.carried for r in stats.ranks)
    assert seen.steps > 0
    if name not in MAY_GO_WITHOUT:
        assert all(r.share > 0 for r in stats.ranks), "a rank never contributed"
    if name not in DROPS:
        assert all(r.dropped == 0 for r in stats.ranks)
    if name in NEVER_LATE:
        assert all(r.carried == 0 for r in stats.ranks), "a round did not wait for all"
