"""What cannot work is refused before anything is trained, in words that say what to do instead."""

from __future__ import annotations

import pytest
import torch

from outpace.errors import InvalidRules, RankFailed, UnknownName
from outpace.protocol.events import Arrive, Event
from outpace.simulation import Scenario, simulate_timing
from outpace.strategies import names, strategy
from tests.support.by_hand import Table, sgd, walk, walk_in_rounds

WRONG = {
    "wagma:group_size=5": "groups of 5 cannot be made of 4 ranks.*choose a size from 1 to 4",
    "wagma:group_size=0": "groups of 0 cannot be made",
    "wagma:sync_every=0": "sync_every=0 must be a whole number, at least 1",
    "wagma:order=backwards": "choose one of step-average, average-step",
    "wagma:sync=never": "choose one of avoid, wait",
    "d-psgd:graph=0-1+2-3": "falls into 2 parts.*link them, for example with 1-2",
    "d-psgd:graph=0-1+1-7": "7",
    "d-psgd:graph=moebius": "no graph is called 'moebius'; known are ring",
    "d-psgd:mixing=even": "no mixing weights are called 'even'; known are metropolis",
    "d-psgd:order=cta": "choose one of atc, awc",
    "ad-psgd:graph=0-1+2-3": "falls into 2 parts.*link them, for example with 1-2",
    "dsgd-aau:graph=0-1+2-3": "falls into 2 parts.*link them, for example with 1-2",
    "al-dsgd:graph=0-1+2-3": "falls into 2 parts.*link them, for example with 1-2",
    "al-dsgd:c1=0.8,c2=0.3": "c1 \\+ c2 and p1 \\+ p2 at most 1",
    "al-dsgd:p1=-0.1": "shares from 0 to 1",
    "nonblocking-dpsgd:graph=0-1+2-3": "falls into 2 parts.*link them, for example with 1-2",
    "matcha:budget=0": "budget=0 is not a share.*use 0.5 for half",
    "matcha:budget=1.5": "budget=1.5 is not a share",
    "nonblocking-matcha:budget=0": "budget=0 is not a share",
    "decentlam:order=awc": "steps first and averages then",
    "sgp:peers=0": "peers=0 must be a whole number, at least 1",
    "sgp:overlap=-1": "overlap=-1 must be a whole number of steps, 0 or more",
    "nonblocking:work=1.5": "must be a share of the planned work, from 0 to 1",
    "nonblocking:busy=wait": "choose one of carry, again",
    "nonblocking:rest=keep": "choose one of carry, drop",
    "nonblocking:normalise=world": "must be finished or planned",
    "dropcompute:tau_ms=0": 'must be "auto" or more than 0 milliseconds',
    "dropcompute:tau_ms=-5": 'must be "auto" or more than 0 milliseconds',
    "dropcompute:tau_ms=soon": 'must be "auto" or more than 0 milliseconds',
    "dropcompute:calibrate=0": "at least 1",
    "m-sync:m=5": "larger than the world of 4 ranks",
    "m-sync:m=0": "must be at least 1",
    "m-sync:m=1.5": "must lie in \\(0, 1\\]",
    "rennala:batch=0": "must be a whole number of gradients, at least 1",
    "ringmaster:delay=0": "must be a whole number, at least 1",
    "ringmaster:normalise=contributors": "must be world or sum",
    "local-sgd:every=0": "every=0 must be a whole number, at least 1",
    "post-local-sgd:start=0": "start=0 must be a whole number, at least 1",
    "dasgd:delay=5,every=4": "must be a number of steps from 0 to every=4",
    "dasgd:merge=sum": "choose one of delta, lerp",
    "dasgd:xi=1.0": "from 0 to less than 1",
    "diloco:outer_lr=0": "outer_lr=0 must be more than 0",
    "diloco:outer_momentum=1": "outer_momentum=1 in \\[0, 1\\)",
    "noloco:outer_momentum=-0.5": "outer_momentum=-0.5 in \\[0, 1\\)",
    "noloco:every=0": "every=0 must be a whole number, at least 1",
    "eager:quorum=5": "larger than the world of 4 ranks",
    "eager:late=never": "choose one of carry, count, drop",
    "local-sgd:min_ranks=5": "must lie between 1 and the world of 4",
    "eager-solo:quorum=3": "has no option 'quorum'",
}


@pytest.mark.parametrize("choice", WRONG)
def test_what_cannot_work_is_refused_in_words(choice: str) -> None:
    with pytest.raises(InvalidRules, match=WRONG[choice]):
        strategy(choice).rules(world=4)


@pytest.mark.parametrize("name", [name for name in names() if not strategy(name).sends_gradients])
def test_weights_are_not_coded(name: str) -> None:
    with pytest.raises(InvalidRules, match=r"is for gradients.*averages weights.*use a gradient strategy"):
        strategy(f"{name}:codec=bf16")


def test_a_name_that_is_nearly_right_is_recognised() -> None:
    with pytest.raises(UnknownName, match="did you mean d-psgd"):
        strategy("dpsgd")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_every_name_works_in_every_world_without_options(name: str, world: int) -> None:
    assert strategy(name).rules(world).world == world


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda parameters: torch.optim.Adam(parameters), "Adam"),
        (sgd(0.1, momentum=0.9, nesterov=True), "SGD"),
        (sgd(0.1, momentum=0.9, dampening=0.5), "SGD"),
    ],
)
def test_decentlam_refuses_an_optimizer_whose_step_it_cannot_make(make: object, named: str) -> None:
    with pytest.raises(InvalidRules, match=f"cannot wrap {named}.*or use d-psgd"):
        walk("decentlam", 2, 1, lambda rank, step, x: x, make=make)  # type: ignore[arg-type]


def test_a_threshold_shorter_than_one_micro_batch_is_refused_before_anything_is_dropped() -> None:
    with pytest.raises(
        RankFailed, match=r"shorter than one micro-batch, which takes 12.5 ms.*Choose a larger one"
    ) as e:
        walk_in_rounds("dropcompute:tau_ms=5", [range(64)] * 2, 8, lambda rank, piece, x: x, imbalance=Table(100, 200))
    assert isinstance(e.value.__cause__, InvalidRules)


def test_a_threshold_shorter_than_one_micro_batch_is_refused_in_timing_alone_too() -> None:
    arrived: list[Event] = []
    with pytest.raises(InvalidRules, match="shorter than one micro-batch"):
        simulate_timing(
            "dropcompute:tau_ms=5",
            Scenario(ranks=2, steps=10, network="zero"),
            watch=lambda event, _: arrived.append(event) if isinstance(event, Arrive) else None,
        )
    assert not arrived
