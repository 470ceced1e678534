"""One run: a safety phase in which faults happen, then a liveness phase in which none do and all must end."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from outpace.engines.replay import OVERDUE_S
from outpace.engines.virtual.clock import Action, Clock
from outpace.engines.virtual.world import PROBE_NS, World
from outpace.protocol.rules import Rules
from outpace.replica.replica import OptimizerReplica
from outpace.vector import VectorLayout
from tests.fuzz.checkers import ALL, Checker
from tests.fuzz.faults import MS, Faults
from tests.fuzz.lives import BELOW_QUORUM, Life
from tests.fuzz.models import Data, one_thread, replica_parts
from tests.fuzz.plan import plan_of
from tests.fuzz.system import SOUND, System
from tests.fuzz.tally import Tally
from tests.fuzz.trace import Trace
from tests.fuzz.watch import Broken, Scene, Watch
from tests.support.protocol.reference import Reference

MOST_ACTIONS = 500_000  #: a run that plans more than this does not get on


@dataclass(frozen=True)
class Outcome:
    """What a run showed."""

    seed: int
    digest: str  #: of the log
    weights: str  #: a hash of all weights there were
    counts: Counter[str]
    broken: list[tuple[str, str]]  #: promises that did not hold: the checker's name, in words
    trace: str


class BoundedClock(Clock):
    """Ends a run that goes round in circles without letting time pass."""

    def at(self, time_ns: int, action: Action) -> None:
        self._check()
        super().at(time_ns, action)

    def after(self, nanoseconds: int, action: Action) -> None:
        self._check()
        super().after(nanoseconds, action)

    def _check(self) -> None:
        if self._count > MOST_ACTIONS:
            raise Broken([("Ends", f"more than {MOST_ACTIONS} actions were planned: the run does not get on")])


class Run:
    """All that belongs to the run of one seed."""

    def __init__(
        self,
        seed: int,
        system: System = SOUND,
        checkers: Sequence[type[Checker]] = ALL,
        keep: int | None = 40,
    ) -> None:
        self.plan = plan_of(seed)
        self.system = system
        self.clock = BoundedClock()
        self.data = Data(seed)
        self.steps_left = list(self.plan.steps)
        self.lives: list[Life] = []
        rules = self.plan.strategy.rules(self.plan.ranks)
        self.scene = self._scene(rules)
        self.world, self.tensors = self.scene.world, self.scene.tensors
        self.faults = Faults(self)
        self.tally = Tally()
        self.trace = Trace(self.clock, self.plan.ranks, keep)
        watchers = [self.trace, self.tally, *(checker(self.scene) for checker in checkers), self.faults]
        self.watch = Watch(self.scene, watchers)

    def _scene(self, rules: Rules) -> Scene:
        plan, scenario = self.plan, self.plan.scenario
        new_replica = partial(_replica, plan.model, plan.seed)
        vector = VectorLayout.of(new_replica().named_parameters())
        tensors = self.system.tensors(vector, rules, plan.model.max_grad_norm)
        ledger = self.system.ledger(rules)
        world = World(self.clock, ledger, scenario.links, scenario.payload_bytes, tensors)
        apply_ns = scenario.pace(0).apply_ns
        return Scene(rules, world, tensors, plan.model.max_grad_norm, apply_ns, new_replica, Reference(rules))

    def play(self) -> Outcome:
        """From the start to the end, or to the first promise that does not hold."""
        with one_thread():
            broken = self._broken()
        self.tally.counts["simulated ms"] = self.clock.now_ns // MS
        digest, weights = self.world.digest, self.tally.weights
        return Outcome(self.plan.seed, digest, weights, self.tally.counts, broken, self.trace.render())

    def _broken(self) -> list[tuple[str, str]]:
        try:
            self._live_through_faults()
            self._come_to_an_end()
        except Broken as problem:
            return problem.promises
        except Exception:
            return [("Raised", traceback.format_exc())]
        finally:
            for life in self.lives:
                life.task.kill()
        return []

    # -- lives -----------------------------------------------------------------------------------------------------

    def life(self, rank: int) -> Life | None:
        """The life of this rank that is now, if any."""
        return next((life for life in self.lives if life.rank == rank and life.is_living), None)

    def start(self, rank: int) -> None:
        """Begins a rank's life: its first, or the next one."""
        life = Life(self, rank, number=sum(life.rank == rank for life in self.lives))
        self.lives.append(life)
        life.task.start()

    def can_be_joined(self, life: Life) -> bool:
        """What a restarted rank needs: others who hold the memory, and a job that neither has ended nor gives up."""
        if not life.number:
            return True
        ledger = self.world.ledger
        is_held = any(other.is_living for other in self.lives if other is not life)
        gives_up = any(other.fate == BELOW_QUORUM for other in self.lives)
        return is_held and not gives_up and not (ledger.started and ledger.ended)

    # -- phases ----------------------------------------------------------------------------------------------------

    def _live_through_faults(self) -> None:
        for rank, joins_ms in enumerate(self.plan.joins_ms):
            self.clock.at(round(joins_ms * MS), partial(self.start, rank))
        self.clock.run(until_ns=self.faults.plan())

    def _come_to_an_end(self) -> None:
        self.faults.cease()
        self.clock.run(until_ns=self.clock.now_ns + self._bound_ns())
        self.watch.tell("end", self.lives)

    def _bound_ns(self) -> int:
        """Long enough for all that is left, were it done one step after the other, with every notice and retry."""
        scenario, rules, world = self.plan.scenario, self.scene.rules, self.world
        ranks = range(rules.world)
        compute = max(scenario.compute_ns(rank)(step) for rank in ranks for step in range(max(self.plan.steps) + 1))
        notice = round(world.network.notice_s(rules.world) * 1e9)
        reduce = world.network.reduce_ns(rules.world, [*ranks, *ranks], world.payload_bytes)
        grace = compute if rules.grace == "auto" else round(rules.grace * 1e9)
        apply = self.scene.apply_ns * (rules.max_staleness + 4)
        each = compute + world.arrive_ns + 4 * notice + (2 * rules.world + 1) * reduce + grace + apply
        steps = sum(self.steps_left) + 4 * rules.world + 10
        return steps * (each + round(OVERDUE_S * 1e9) + PROBE_NS) + 2000 * MS


def _replica(model: object, seed: int) -> OptimizerReplica:
    return OptimizerReplica(*replica_parts(model, seed))  # type: ignore[arg-type]
