"""Collectives that are not outpace's are measured while something is recorded, and named by where they are called."""

import time

import pytest
import torch
import torch.distributed as dist

import outpace
from outpace.observe import live_figures
from outpace.observe.live import Follower


@pytest.fixture
def group(tmp_path):
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(**options):
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return outpace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "eager-solo", **options)


def wait_twice():
    for _ in range(2):
        dist.barrier()
    dist.all_gather_object([None], {"loss": 1.0})  # made of other collectives: counted once


def test_stats_and_watch_name_who_waits_elsewhere(group, tmp_path, monkeypatch):
    monkeypatch.setattr(live_figures, "WORTH_SAYING_S", 0.0)
    plain = dist.barrier
    with made(log_dir=tmp_path / "run") as optimizer:
        wait_twice()
        optimizer.step()
        found = {each.site: each.calls for each in optimizer.stats.elsewhere}
        line = wait_twice.__code__.co_firstlineno
        assert found == {
            f"barrier at test_collectives.py:{line + 2}": 2,
            f"all_gather_object at test_collectives.py:{line + 3}": 1,
        }
        assert "beside that it waited" in str(optimizer.stats)
    assert dist.barrier is plain
    assert "test_collectives.py" in Follower(tmp_path / "run").poll().elsewhere_words


def test_the_time_in_it_is_counted_also_if_it_fails(group, tmp_path, monkeypatch):
    def broken(*_, **__):
        time.sleep(0.05)
        raise RuntimeError("the other rank is gone")

    monkeypatch.setattr(dist, "all_reduce", broken)
    with made(log_dir=tmp_path / "run") as optimizer:
        with pytest.raises(RuntimeError, match="is gone"):
            dist.all_reduce(torch.ones(1))
        optimizer.step()
        (wait,) = optimizer.stats.elsewhere
        assert wait.seconds >= 0.05
    assert dist.all_reduce is broken


def test_nothing_is_wrapped_where_nothing_is_recorded(group):
    plain = dist.barrier
    with made() as optimizer:
        assert dist.barrier is plain
        optimizer.step()
        assert optimizer.stats.elsewhere == ()
