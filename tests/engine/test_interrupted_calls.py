"""An exception from a signal handler, at any instruction of any call: the optimizer goes on, or says that it cannot."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outpace
from tests.support.interrupts import handler_at, interrupted_at, raising

CALLS = ("step", "synchronize", "load_state_dict", "finish")


class Counting:
    """One rank whose weight counts the contributions that were applied to it."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(1))
        inner = torch.optim.SGD([self.weight], lr=1.0)  # weights count contributions, so that each must weigh one
        self.opt = outpace.DistributedOptimizer(inner, "eager-majority:repair=none", timeout_s=5.0)
        self.saved, self.before = self.opt.state_dict(), 0

    def call(self, name: str) -> None:
        self.weight.grad = torch.full((1,), -1.0)
        if name == "load_state_dict":
            self.weight.data.zero_()  # the model's weights first, as in a script
            self.opt.load_state_dict(self.saved)
            self.before = self.contributions()
        else:
            getattr(self.opt, name)()

    def contributions(self) -> int:
        """That are in complete rounds."""
        (own,) = self.opt.stats.ranks
        return own.on_time + own.carried


def instructions_of(name: str) -> int:
    counting = Counting()
    with handler_at(0, raising) as passed:
        counting.call(name)
    counting.opt.finish()
    return passed[0]


TOTAL = {name: instructions_of(name) for name in CALLS}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before it was
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(CALLS), st.floats(0, 1, exclude_max=True), st.integers(0, 2))
def test_a_call_interrupted_at_any_instruction_can_be_made_again_or_is_refused(name, where, steps):
    counting = Counting()
    for _ in range(steps):
        counting.call("step")
    with interrupted_at(1 + int(where * TOTAL[name])):
        counting.call(name)
    try:
        counting.call(name)
        if name != "finish":
            counting.call("step")
            counting.opt.finish()
    except outpace.OutpaceError as error:
        counting.opt.__exit__(type(error))
        message = str(error)
    else:
        message = ""
    assert "interrupted" in message or counting.weight.item() == counting.contributions() - counting.before
