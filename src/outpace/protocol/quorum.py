"""When the open round has its quorum. Owns that decision: a function of the round, the rules and what was observed."""

from __future__ import annotations

from outpace.protocol.open_round import OpenRound
from outpace.protocol.pace import Pace
from outpace.protocol.rules import Rules


def is_met(rules: Rules, number: int, open_round: OpenRound, enough: int, pace: Pace) -> bool:
    """Whether enough are on time for the open round; more than can come are never asked for.

    number: of the open round. enough: arrivals that make the quorum, where it is a plain count.
    """
    if rules.is_count:
        here = len(open_round.present)
        return here >= enough or (here > 0 and open_round.everybody_is_here)
    quorum = rules.quorum
    if quorum == "work":
        planned = open_round.planned * len(open_round.unfinished)
        return open_round.samples >= (rules.work or planned) > 0
    if not open_round.on_time:
        return False
    if quorum == "adaptive":
        enough = pace.best_quorum(number, open_round.unfinished)
    if open_round.everybody_is_here:
        return True
    if quorum == "majority-random":
        return open_round.initiator(rules.seed * 1_000_003 + number) in open_round.present
    enough_done = open_round.samples >= rules.work * open_round.planned * len(open_round.unfinished)
    return enough_done and len(open_round.present) >= enough
