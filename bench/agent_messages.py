"""What an agent works for a short message to or from another one: processor time of two real ends of a relay.

    python -m bench.agent_messages            two processes of this machine, joined by Gloo over loopback

A message has one batch of a few records, as a rank's arrival is one, and the next goes when the last has arrived.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import threading
import time
from multiprocessing.queues import Queue
from typing import Any

from torch.distributed import FileStore  # type: ignore[attr-defined]

from bench.figures import Samples, spread
from bench.run import Run

MESSAGES, QUICK_MESSAGES = 3000, 50
RECORDS = 2
WAIT_S = 120.0


def measure(run: Run) -> dict[str, Any]:
    """Microseconds of processor time for each message, of who sends and of who receives."""
    messages = QUICK_MESSAGES if run.quick else MESSAGES
    samples = Samples()
    for _ in run.repeats("messages", most=3):
        samples.add("all", _once(messages))
    return {"messages": messages, **{name: spread(values) for name, values in samples.by_key["all"].items()}}


def _once(messages: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.NamedTemporaryFile() as file:
        ends = [context.Process(target=_end, args=(file.name, host, messages, answers)) for host in (0, 1)]
        for end in ends:
            end.start()
        found = dict(answers.get(timeout=WAIT_S) for _ in ends)
        for end in ends:
            end.join(WAIT_S)
    return {"send_us": found[0] / messages * 1e6, "receive_us": found[1] / messages * 1e6}


def _end(path: str, host: int, messages: int, answers: Queue[tuple[int, float]]) -> None:
    """Host 0 sends and host 1 receives; what comes back, so that the next may go, is not a message of agents."""
    from outpace.engines.arena.log import RECORD_BYTES
    from outpace.engines.cluster.group import Group
    from outpace.engines.cluster.relay import Relay
    from outpace.protocol.shared_log import Batch, Forward

    group = Group(FileStore(path, 2), "127.0.0.1", (0, 1), host, WAIT_S)
    arrived = threading.Semaphore(0)
    relay = Relay(group, lambda message: arrived.release())
    batch = Batch(0, 1, 0, bytes(RECORDS * RECORD_BYTES))
    time.sleep(0.2)
    began = time.process_time()
    for _ in range(messages):
        if host == 0:
            relay.forward(Forward(1, 1, (batch,)))
        else:
            arrived.acquire()
        time.sleep(0.0005)  # no two at once: what is busy is not woken up
    used_s = time.process_time() - began
    answers.put((host, used_s - _asleep_s(messages)))
    answers.close()
    answers.join_thread()
    group.exchange([0])  # nobody leaves before the other is done
    os._exit(0)  # threads of the relay wait for messages that never come


def _asleep_s(times: int) -> float:
    """What the pauses themselves cost."""
    began = time.process_time()
    for _ in range(times):
        time.sleep(0.0005)
    return time.process_time() - began


def main() -> None:
    """As JSON."""
    print(json.dumps(measure(Run(3, quick=False)), indent=1))


if __name__ == "__main__":
    main()
