"""What torch, schedulers, scalers and frameworks do with an optimizer, done with ours."""

import copy
import io
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import outpace
from outpace.errors import ParametersChanged
from outpace.observe.reader import read_trace

STEPS = 5
MAKERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
}
AVERAGING = "local-sgd"


def made(name="SGD"):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    return model, MAKERS[name](model.parameters())


def wrapped(strategy="eager-solo", name="SGD", **options):
    model, inner = made(name)
    return model, outpace.DistributedOptimizer(inner, strategy, model=model, **options)


def backward(model, optimizer, step=0):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3) * (step + 1)).square().mean()
    loss.backward()
    return loss


def weights(model):
    return [p.detach().tolist() for p in model.parameters()]


# -- closures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["eager-solo", AVERAGING])
@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(MAKERS)), steps=st.integers(1, 6), is_closed=st.lists(st.booleans(), min_size=6))
def test_steps_with_and_without_closures_are_those_of_the_plain_optimizer(strategy, name, steps, is_closed):
    plain_model, plain = made(name)
    model, optimizer = wrapped(strategy, name)
    for step in range(steps):
        if is_closed[step]:
            calls = []

            def closure(model=model, optimizer=optimizer, step=step, calls=calls):
                calls.append(torch.is_grad_enabled())
                return backward(model, optimizer, step)

            with torch.no_grad():
                returned = optimizer.step(closure)
            assert calls == [True]
            assert torch.equal(returned, plain.step(lambda step=step: backward(plain_model, plain, step)))
        else:
            backward(model, optimizer, step)
            backward(plain_model, plain, step)
            assert optimizer.step() is None
            plain.step()
    assert weights(model) == weights(plain_model)
    optimizer.finish()


@pytest.mark.parametrize("returned", [None, "skipped", torch.ones(2), {"loss": 1.0}])
def test_what_a_closure_returns_need_not_be_a_loss(returned, tmp_path):
    model, optimizer = wrapped(log_dir=tmp_path)
    backward(model, optimizer)
    assert optimizer.step(lambda: returned) is returned
    optimizer.finish()
    assert [step.loss for step in read_trace(tmp_path).ranks[0].steps] == [None]


def test_the_loss_of_a_closure_is_recorded_and_its_time_is_computing(tmp_path):
    model, optimizer = wrapped(log_dir=tmp_path)
    losses = [optimizer.step(lambda step=step: backward(model, optimizer, step)).item() for step in range(STEPS)]
    optimizer.finish()
    assert [step.loss for step in read_trace(tmp_path).ranks[0].steps] == losses
    assert all(step.compute_s > 0 for step in read_trace(tmp_path).ranks[0].steps)


def test_an_exception_in_a_closure_contributes_nothing():
    model, optimizer = wrapped()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    backward(model, optimizer)
    optimizer.step()
    assert optimizer.stats.version == 1
    optimizer.finish()


def test_an_optimizer_that_calls_its_closure_again_is_refused_in_one_sentence():
    model, _ = made()
    with pytest.raises(outpace.OutpaceError) as refused:
        outpace.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), "eager-solo")
    assert str(refused.value).startswith("LBFGS calls its closure several times per step")
    assert "use an optimizer that takes one gradient per step" in str(refused.value)


# -- hooks, schedulers, scalers, compilers ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["eager-solo", AVERAGING])
def test_hooks_of_a_step_fire_once_for_each_step_of_ones_own(strategy):
    model, optimizer = wrapped(strategy)
    fired = []
    handles = [
        optimizer.register_step_pre_hook(lambda opt, *_: fired.append(("pre", opt is optimizer))),
        optimizer.register_step_post_hook(lambda opt, *_: fired.append(("post", opt is optimizer))),
        register_optimizer_step_pre_hook(lambda opt, *_: fired.append(("any pre", opt is optimizer))),
        register_optimizer_step_post_hook(lambda opt, *_: fired.append(("any post", opt is optimizer))),
    ]
    try:
        for step in range(STEPS):
            backward(model, optimizer, step)
            optimizer.step()
        optimizer.finish()
    finally:
        for handle in handles:
            handle.remove()
    assert fired == [(kind, True) for kind in ("any pre", "pre", "post", "any post")] * STEPS


def test_hooks_of_the_inner_optimizer_fire_with_each_round():
    model, inner = made()
    fired = []
    inner.register_step_post_hook(lambda *_: fired.append(len(fired)))
    with outpace.DistributedOptimizer(inner, "eager-solo", model=model) as optimizer:
        for _ in range(STEPS):
            backward(model, optimizer)
            optimizer.step()
    assert len(fired) == optimizer.stats.version == STEPS


def test_hooks_of_states_fire_on_the_wrapper_and_what_they_change_counts():
    _, optimizer = wrapped()
    fired = []
    optimizer.register_state_dict_pre_hook(lambda _: fired.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: fired.append(state.pop("note")))
    optimizer.register_load_state_dict_post_hook(lambda _: fired.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.finish()
    assert fired == ["save", 1, "loaded"]


@pytest.mark.parametrize("is_of_inner", [True, False])
def test_schedulers_step_quietly_whichever_optimizer_they_were_made_for(is_of_inner):
    model, inner = made()
    scheduler = torch.optim.lr_scheduler.LinearLR(inner, 1.0, 0.1, total_iters=10) if is_of_inner else None
    with outpace.DistributedOptimizer(inner, "eager-solo", model=model) as optimizer, warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = scheduler or torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
        for _ in range(10):
            optimizer.step(lambda: backward(model, optimizer))
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_scaler_steps_it_like_the_plain_optimizer():
    ends = []
    for model, optimizer in (made(), wrapped()):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(4, 3) * (step + 1)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(weights(model))
    assert ends[0] == ends[1]


COMPILED = """
import torch, outpace
weight = torch.nn.Parameter(torch.ones(3))
optimizer = outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-solo")
graphs = []
def backend(graph, _):
    graphs.append(graph)
    return graph.forward
@torch.compile(backend=backend)
def train(x):
    loss = (weight * x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
model = torch.compile(lambda x: (weight * x).sum(), backend=backend)
def closure():
    loss = model(torch.ones(3))
    loss.backward()
    return loss
step = torch.compile(optimizer.step, backend=backend)
for _ in range(2):
    train(torch.ones(3))
assert graphs, "nothing was compiled"
before = len(graphs)
step(closure)
assert len(graphs) > before, "a compiled model is not compiled in a closure"
assert optimizer.stats.version == 3
assert torch.allclose(weight, torch.full((3,), 0.7)), weight
optimizer.finish()
"""


def test_a_compiled_train_step_leaves_the_optimizers_step_alone():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_converted_after_wrapping_is_named():
    model, optimizer = wrapped()
    model.bfloat16()
    with pytest.raises(ParametersChanged, match=r"weight was torch.float32 when .* and is torch.bfloat16 now"):
        optimizer.step()
    optimizer.finish()


# -- states and copies -------------------------------------------------------------------------------------------------


def test_copies_and_pickles_are_plain_optimizers_with_the_same_state():
    model, optimizer = wrapped(name="AdamW")
    for step in range(STEPS):
        backward(model, optimizer, step)
        optimizer.step()
    state = optimizer.state_dict()
    saved = io.BytesIO()
    torch.save(optimizer, saved)
    saved.seek(0)
    copies = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), torch.load(saved, weights_only=False)]
    for other in copies:
        assert type(other) is torch.optim.AdamW
        assert str(other.state_dict()) == str(optimizer.inner.state_dict())
    assert str(copy.deepcopy(state)) == str(pickle.loads(pickle.dumps(state))) == str(state)
    optimizer.finish()


def load_own_state(only_rank):
    """Accelerate does so when it prepares an optimizer; here one rank alone. Would wait for ever, if it waited."""
    model, optimizer = wrapped("allreduce", timeout_s=30)
    rank = optimizer.stats.rank
    if rank == only_rank:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(STEPS):
        backward(model, optimizer, step + rank)
        optimizer.step()
    optimizer.finish()
    return optimizer.stats.version, weights(model)


def test_a_rank_that_loads_its_own_state_before_its_first_step_meets_nobody():
    one, other = outpace.spawn(load_own_state, 2, (1,))
    assert one == other
    assert one[0] == STEPS
