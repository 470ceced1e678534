"""Local steps and now and then an average: local SGD, post-local SGD, DaSGD, DiLoCo and NoLoCo."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outpace.engines.engine import Engine
from outpace.interface import Contents, Work
from outpace.mixing.schedules import pairs
from outpace.strategies import strategy as by_name
from tests.support.by_hand import Maker, Table, Walk, assert_near, at, first_only, noise, plain, quadratics, sgd, walk

MINIMA = noise(4, 3, seed=9)
CURVATURES = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)
START = [1.0, -2.0, 0.5]
UNEVEN = Table(80, 112, 96, 168)
STEPS = 12
SGD, MOMENTUM = sgd(0.1), sgd(0.1, momentum=0.9)
WAYS = pytest.mark.parametrize("make", [SGD, MOMENTUM], ids=["sgd", "momentum"])


def trained(choice: str, make: Maker = SGD, world: int = 4, steps: int = STEPS, **options: object) -> list[Walk]:
    options = {"start": START, "make": make, "imbalance": UNEVEN, **options}
    return walk(choice, world, steps, quadratics(MINIMA, CURVATURES), **options)  # type: ignore[arg-type]


def slopes(x: Tensor, world: int = 4) -> Tensor:
    return CURVATURES[:world, None] * (x - MINIMA[:world])


def start(world: int = 4) -> Tensor:
    return torch.tensor(START, dtype=torch.float64).expand(world, 3).clone()


# -- local SGD ---------------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize(
    "choice", ["local-sgd:every=1", "post-local-sgd:start=100", "dasgd:every=1,delay=0", "wagma:sync_every=1,sync=wait"]
)
def test_an_average_after_every_step_is_allreduce(choice: str, make: Maker) -> None:
    local, together = trained(choice, make), trained("allreduce", make)
    for step in range(STEPS):
        assert_near(at(local, step), at(together, step))


def test_with_adam_it_is_not() -> None:
    def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.1)

    assert (at(trained("local-sgd:every=1", adam), 11) - at(trained("allreduce", adam), 11)).abs().max() > 1e-3


@WAYS
@pytest.mark.parametrize(
    ("choice", "due"), [("local-sgd:every=4", {4, 8, 12}), ("post-local-sgd:start=3,every=5", {1, 2, 3, 5, 10})]
)
def test_ranks_are_equal_bit_for_bit_after_an_average_and_only_then(choice: str, due: set[int], make: Maker) -> None:
    walks = trained(choice, make)
    for step in range(STEPS):
        equal = all(torch.equal(mine.weights[step], walks[0].weights[step]) for mine in walks)
        assert equal == (step + 1 in due), step


@pytest.mark.parametrize("every", [3, 4])
def test_local_sgd_does_what_its_formula_says(every: int) -> None:
    walks, x = trained(f"local-sgd:every={every}"), start()
    for step in range(STEPS):
        x = x - 0.1 * slopes(x)
        if (step + 1) % every == 0:
            x = x.mean(0).expand_as(x)
        assert_near(at(walks, step), x)


@pytest.mark.parametrize("choice", ["local-sgd:every=5", "diloco:every=5,outer_lr=1,outer_momentum=0"])
def test_what_is_left_over_at_the_end_is_averaged_over_all_ranks(choice: str) -> None:
    walks = trained(choice)
    assert not torch.equal(walks[0].weights[-1], walks[1].weights[-1])
    for mine in walks:
        assert_near(mine.end, at(walks, STEPS - 1).mean(0))


# -- DaSGD -------------------------------------------------------------------------------------------------------------


@WAYS
def test_without_delay_dasgd_is_local_sgd(make: Maker) -> None:
    for merge in ("delta", "lerp"):
        delayed, local = trained(f"dasgd:every=3,delay=0,merge={merge}", make), trained("local-sgd:every=3", make)
        assert all(torch.equal(at(delayed, step), at(local, step)) for step in range(STEPS))


@pytest.mark.parametrize(("every", "delay"), [(3, 1), (3, 2), (4, 4), (1, 1)])
@pytest.mark.parametrize("merge", ["delta", "lerp"])
def test_dasgd_merges_the_mean_of_then_with_what_was_done_since(every: int, delay: int, merge: str) -> None:
    walks = trained(f"dasgd:every={every},delay={delay},merge={merge},xi=0.25")
    x, then, due = start(), None, 0
    for step in range(STEPS):
        x = x - 0.1 * slopes(x)
        if then is not None and step == due:
            mean = then.mean(0)
            x = mean + (x - then) if merge == "delta" else 0.25 * x + 0.75 * mean
            then = None
        if (step + 1) % every == 0:
            then, due = x, step + delay
        assert_near(at(walks, step), x)


def test_a_delta_merge_keeps_the_sum_and_a_lerp_does_not() -> None:
    def gradient(rank: int, step: int, x: Tensor) -> Tensor:
        return MINIMA[rank].clone()

    for merge, keeps in (("delta", True), ("lerp", False)):
        walks = walk(f"dasgd:every=3,delay=2,merge={merge}", 4, 12, gradient, start=START, finishes=False)
        drift = [
            float((at(walks, step).sum(0) - start().sum(0) + 0.1 * (step + 1) * MINIMA.sum(0)).abs().max())
            for step in range(12)
        ]
        assert (max(drift) < 1e-12) == keeps


def test_without_drift_a_lerp_keeps_the_sum_too() -> None:
    walks = walk("dasgd:every=2,delay=1,merge=lerp", 4, 8, first_only(MINIMA), start=START, finishes=False)
    for step in range(8):
        assert_near(at(walks, step).sum(0), start().sum(0) - 0.1 * MINIMA.sum(0))


# -- DiLoCo ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_diloco_of_single_steps_is_nesterov_sgd(mu: float) -> None:
    walks = trained(f"diloco:every=1,outer_lr=0.7,outer_momentum={mu}")
    expected = plain(
        sgd(0.7 * 0.1, momentum=mu, nesterov=mu > 0), START, lambda _, x: slopes(x.expand(4, 3)).mean(0), STEPS
    )
    for step in range(STEPS):
        assert_near(at(walks, step), expected[step].expand(4, 3), 1e-14)


@WAYS
@pytest.mark.parametrize("every", [1, 3])
def test_a_plain_outer_step_is_local_sgd(every: int, make: Maker) -> None:
    outer = trained(f"diloco:every={every},outer_lr=1,outer_momentum=0", make)
    local = trained(f"local-sgd:every={every}", make)
    for step in range(STEPS):
        assert_near(at(outer, step), at(local, step), 1e-14)


def test_diloco_does_what_its_formula_says_and_ranks_are_equal_after_each_outer_step() -> None:
    walks = trained("diloco:every=4,outer_lr=0.7,outer_momentum=0.9")
    x, slow, m = start(), start()[0], torch.zeros(3, dtype=torch.float64)
    for step in range(STEPS):
        x = x - 0.1 * slopes(x)
        if (step + 1) % 4 == 0:
            delta = (slow - x).mean(0)
            m = 0.9 * m + delta
            slow = slow - 0.7 * (delta + 0.9 * m)
            x = slow.expand(4, 3)
            assert all(torch.equal(mine.weights[step], walks[0].weights[step]) for mine in walks)
        assert_near(at(walks, step), x)


# -- NoLoCo ------------------------------------------------------------------------------------------------------------


def test_noloco_of_two_is_diloco_with_a_heavy_ball() -> None:
    walks = trained("noloco:every=3,outer_lr=0.7,outer_momentum=0.5", world=2)
    x, slow, m = start(2), start(2)[0], torch.zeros(3, dtype=torch.float64)
    for step in range(STEPS):
        x = x - 0.1 * slopes(x, 2)
        if (step + 1) % 3 == 0:
            m = 0.5 * m + 0.7 * (x.mean(0) - slow)
            slow = slow + m
            x = slow.expand(2, 3)
        assert_near(at(walks, step), x, 1e-14)


@pytest.mark.parametrize("world", [3, 4])
def test_noloco_does_what_its_formula_says_in_the_pairs_that_all_draw(world: int) -> None:
    walks = trained("noloco:every=2,outer_lr=0.7,outer_momentum=0.5,seed=3", world=world)
    x, slow, m = start(world), start(world), torch.zeros(world, 3, dtype=torch.float64)
    for step in range(STEPS):
        x = x - 0.1 * slopes(x, world)
        if (step + 1) % 2 == 0:
            partner = list(pairs(step // 2, world, 3))
            delta = x - slow
            m = 0.5 * m + 0.7 * (delta + delta[partner]) / 2 + 0.7 * ((slow + slow[partner]) / 2 - slow)
            slow = slow + m
            x = slow
        assert_near(at(walks, step), x)


def test_the_consensus_term_keeps_the_sum_of_the_slow_weights() -> None:
    """Without gradients only the first outer step, where the ranks go apart, moves their sum."""
    walks = walk("noloco:every=1,outer_lr=0.7,outer_momentum=0", 4, 20, first_only(MINIMA), start=START, finishes=False)
    total = start().sum(0) - 0.7 * 0.1 * MINIMA.sum(0)
    for step in range(20):
        assert_near(at(walks, step).sum(0), total)
    assert at(walks, 19).std(0).max() < 0.01 * at(walks, 0).std(0).max()


def test_nolocos_final_model_is_the_mean() -> None:
    walks = trained("noloco:every=3")
    for mine in walks:
        assert_near(mine.end, at(walks, STEPS - 1).mean(0))
        assert torch.equal(mine.end, walks[0].end)


# -- ranks that join in the middle of local steps ----------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 0.9])
@pytest.mark.parametrize("every", [1, 3, 5])
def test_whenever_and_by_whomever_a_snapshot_is_written_diloco_goes_on_from_the_slow_weights_of_all(
    every: int, mu: float
) -> None:
    def captured(engine: Engine) -> tuple[int, list[Tensor]]:
        contents = engine.replica.capture()
        return engine.version, [t.clone() for t in (contents.tensors[0], *_outer_momentum(contents))]

    walks = trained(f"diloco:every={every},outer_momentum={mu}", MOMENTUM, look=captured)
    of_version: dict[int, list[Tensor]] = {}
    for mine in walks:
        for version, tensors in mine.seen:
            assert all(map(torch.equal, of_version.setdefault(version, tensors), tensors))
    assert len(of_version) == STEPS // every + (every > 1)


def _outer_momentum(contents: Contents) -> list[Tensor]:
    return contents.tensors[len(contents.tensors) - contents.plain["outer"] :]


@pytest.mark.parametrize("choice", ["diloco", "noloco"])
def test_a_rank_that_adopts_in_the_middle_of_local_steps_begins_at_the_slow_weights(choice: str) -> None:
    writer, reader = (
        by_name(choice).replica(MOMENTUM([torch.nn.Parameter(torch.full((2,), start))]), None) for start in (1.0, 5.0)
    )
    writer.parameters[0].grad = torch.ones(2)
    writer.local_step(Work())
    reader.adopt(writer.capture(), 3, is_beginning=True)
    assert reader.parameters[0].tolist() == reader._slow[0].tolist() == writer._slow[0].tolist() == [1.0, 1.0]
    assert reader.version == 3


def test_dasgd_forgets_what_it_gave_before_it_adopted() -> None:
    first, second = (
        by_name("dasgd").replica(SGD([torch.nn.Parameter(torch.full((2,), start))]), None) for start in (1.0, 5.0)
    )
    second.deposit([torch.empty(2)], Work())
    second.adopt(first.capture(), 1, is_beginning=False)
    mean = torch.full((2,), 7.0)
    second._take([second.parameters[0].detach()], [mean])
    assert torch.equal(second.parameters[0], mean)
