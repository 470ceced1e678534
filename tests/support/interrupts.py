"""Exceptions, and other doings of signal handlers, at an instruction of one's choice.

Handlers of signals run between any two instructions of Python code. Here a trace function stands for them: it is called
at every instruction, so that the place can be chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """What the handler raises."""


@contextmanager
def handler_at(instruction: int, handler: Callable[[], None]) -> Iterator[list[int]]:
    """Calls it once, before that instruction of the package's code. Counts the instructions that there were."""
    passed = [0]

    def trace(frame: FrameType, kind: str, _: Any) -> Any:
        if "/outpace/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if kind == "opcode":
            passed[0] += 1
            if passed[0] == instruction:
                sys.settrace(None)
                handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)


def raising() -> None:
    raise Interrupted


@contextmanager
def interrupted_at(instruction: int) -> Iterator[None]:
    """What is done in here is ended at that instruction, if it has so many."""
    with suppress(Interrupted), handler_at(instruction, raising):
        yield
