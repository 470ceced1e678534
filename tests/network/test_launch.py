"""torchrun on several hosts with plain Gloo: what the harness does to the network is what the ranks see."""

import json
from pathlib import Path

import pytest

from tests.network.commands import NetworkError
from tests.network.host import resume, stop
from tests.network.launch import Job, plain, torchrun

FLOWS = Path(__file__).parent / "programs" / "flows.py"
MBIT_PER_S = 200
SHAPED_BYTES = 4_000_000
SLOWEST = 1.5  #: times as long as the rate allows; headers, and a busy machine, take their share
REPEATS = 5


def flows(job: Job) -> list[float]:
    """Seconds of each operation so far."""
    lines = job.said(0).splitlines(keepends=True)
    return [json.loads(line)["seconds"] for line in lines if "seconds" in line and line.endswith("\n")]


def goes_on(job: Job, count: int = 1) -> list[float]:
    """Seconds of operations that began from now on."""
    before = len(flows(job)) + 1  # one is under way
    job.until(lambda: len(flows(job)) >= before + count, f"{count} more operations are done")
    return flows(job)[before:]


@pytest.fixture(params=[torchrun, plain])
def launcher(request):
    return request.param


def test_ranks_are_numbered_by_host_and_bytes_on_the_link_are_those_of_the_allreduce(two_hosts, launcher):
    payload, times = 8_000_000, 10
    before = [host.traffic() for host in two_hosts]
    with launcher(two_hosts, FLOWS, "allreduce", str(payload), str(times), ranks=2, plain_gloo=True) as job:
        reports = job.reports()
    assert [report["rank"] for report in reports] == [0, 1, 2, 3]
    assert [report["group_rank"] for report in reports] == [0, 0, 1, 1]
    ring = 2 * 3 / 4 * payload * times  # what each of four ranks sends to the next, one of them to the other host
    for host, then in zip(two_hosts, before, strict=True):
        traffic = host.traffic().since(then)
        assert ring < traffic.sent_bytes < 1.06 * ring
        assert ring < traffic.received_bytes < 1.06 * ring


@pytest.mark.parametrize("source", [0, 1], ids=["sending", "receiving"])
def test_a_shaped_link_has_its_rate_in_both_directions_and_only_as_long_as_it_is_shaped(two_hosts, source):
    allowed_s = SHAPED_BYTES * 8 / (MBIT_PER_S * 1e6)
    with plain(two_hosts, FLOWS, "broadcast", str(source), str(SHAPED_BYTES), ranks=1, plain_gloo=True) as job:
        free_s = min(goes_on(job, REPEATS))
        two_hosts[0].shape(MBIT_PER_S)
        shaped_s = min(goes_on(job, REPEATS))
        two_hosts[0].unshape()
        free_again_s = min(goes_on(job, REPEATS))
    assert 0.9 * allowed_s < shaped_s < SLOWEST * allowed_s
    assert max(free_s, free_again_s) < shaped_s / 4


def test_ranks_of_a_host_that_is_cut_off_stand_still_and_go_on_when_it_is_restored(two_hosts):
    one, other = two_hosts
    with torchrun(two_hosts, FLOWS, "allreduce", "4000", ranks=1, plain_gloo=True) as job:
        goes_on(job)
        other.cut()
        at_most = len(flows(job)) + 1
        received = other.traffic().received_bytes
        assert not one.reaches(other)
        assert len(flows(job)) <= at_most
        assert other.traffic().received_bytes == received
        other.restore()
        goes_on(job, REPEATS)
        assert job.codes() == [None, None]


def test_a_stopped_rank_holds_up_gloo_until_it_goes_on(two_hosts, launcher):
    with launcher(two_hosts, FLOWS, "allreduce", "4000", ranks=2, plain_gloo=True) as job:
        goes_on(job)
        stopped = job.pid(3)
        stop(stopped)
        at_most = len(flows(job)) + 1
        assert two_hosts[0].reaches(two_hosts[1])
        assert len(flows(job)) <= at_most
        resume(stopped)
        goes_on(job, REPEATS)
        assert len({job.pid(rank) for rank in range(4)}) == 4


def test_a_killed_host_ends_gloo_on_the_other_with_an_error_that_is_collected(two_hosts):
    with plain(two_hosts, FLOWS, "allreduce", "4000", ranks=1, plain_gloo=True) as job:
        goes_on(job)
        two_hosts[1].kill()
        assert job.wait(60) == [1, -9]
        with pytest.raises(NetworkError, match=r"exit codes \[1, -9\]\n-- rank 0:\n(.|\n)* in all_reduce\n"):
            job.reports()


def test_a_job_that_does_not_end_in_time_says_so_and_is_gone_after_its_block(two_hosts):
    with torchrun(two_hosts, FLOWS, "allreduce", "4000", ranks=1, plain_gloo=True) as job:
        goes_on(job)
        with pytest.raises(NetworkError, match="after 0 s it was not so that all processes have ended"):
            job.wait(timeout_s=0)
    assert [host.pids() for host in two_hosts] == [[], []]
    assert None not in job.codes()


def test_a_job_whose_processes_have_all_ended_is_not_waited_for(two_hosts):
    said = r"exit codes \[1, 1\], and it is not so that 1 more operations are done\n-- rank 0:\nTraceback"
    with (
        plain(two_hosts, FLOWS, "nonsense", ranks=1, plain_gloo=True) as job,
        pytest.raises(NetworkError, match=said),
    ):
        goes_on(job)
