"""A ledger as plain values, and back: what a snapshot carries for ranks that cannot read the whole log.

Owns the names of the values. Whatever a ledger knows must be here, or be derived from what is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outpace.protocol.discount import Discount
from outpace.protocol.hosts import Hosts
from outpace.protocol.members import Members
from outpace.protocol.pace import Pace
from outpace.protocol.published import Published
from outpace.protocol.results import Results
from outpace.protocol.round import Round, contributions_from
from outpace.protocol.snapshots import Snapshots
from outpace.protocol.sync import Sync

if TYPE_CHECKING:
    from outpace.protocol.ledger import Ledger


def state_of(ledger: Ledger, covered: int) -> dict[str, Any]:
    """The state as plain values, for a replica of version `covered`."""
    return {
        "members": ledger.members.to_state(),
        "pace": ledger.pace.to_state(),
        "round": ledger.round,
        "on_time": ledger.on_time,
        "carried": ledger.carried,
        "met_ns": ledger.met_ns,
        "grace_ns": ledger.grace_ns,
        "reducing": None if ledger.reducing is None else ledger.reducing.to_state(),
        "completed": ledger.results.to_state(covered),
        "hyper_step": ledger.hyper_step,
        "discount": ledger.discount.to_state(),
        "sync": ledger.sync.to_state(),
        "hosts": ledger.hosts.to_state(),
        "done_by": sorted(ledger.done_by),
        "snapshots": [snapshots.to_state() for snapshots in ledger.snapshots_at],
        "published": ledger.published.to_state(),
        "told": [[rank, *key, value] for rank, said in sorted(ledger.told.items()) for key, value in said.items()],
        "started": ledger.started,
        "over": ledger.over,
        "rows": sorted(ledger.open.rows),
    }


def restore(ledger: Ledger, state: dict[str, Any]) -> None:
    """Puts a state into a ledger that has read nothing yet. What is derived from the members is not in it."""
    rules = ledger.rules
    ledger.members = Members.from_state(state["members"])
    ledger.pace = Pace.from_state(rules.needs_pace, state["pace"])
    ledger.round = state["round"]
    for contribution in contributions_from(state["on_time"]):
        ledger.open.add(contribution)
    for contribution in contributions_from(state["carried"]):
        ledger.open.carry(contribution, is_part=not contribution.late)
    ledger.met_ns, ledger.grace_ns = state["met_ns"], state["grace_ns"]
    ledger.reducing = None if state["reducing"] is None else Round.from_state(state["reducing"])
    ledger.results = Results.from_state(rules, state["completed"])
    ledger.hyper_step = state["hyper_step"]
    ledger.discount = Discount.from_state(rules, state["discount"])
    ledger.sync = Sync.from_state(state["sync"])
    ledger.hosts = Hosts.from_state(rules, state["hosts"])
    ledger.done_by = set(state["done_by"])
    ledger.snapshots_at = [Snapshots.from_state(rules.world, snapshots) for snapshots in state["snapshots"]]
    ledger.published = Published.from_state(rules, ledger.members, ledger.pace, state["published"])
    for rank, step, index, value in state["told"]:
        ledger.told.setdefault(rank, {})[step, index] = value
    ledger.started, ledger.over = state["started"], state["over"]
    ledger.open.rows = {(rank, row) for rank, row in state["rows"]}
