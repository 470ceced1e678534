"""What a rank writes to its standard error: passed on as it comes, and its end kept. Owns no decision.

A thread of its own reads each rank, so that a terminal that does not scroll on holds up nothing but those who write.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import suppress
from typing import IO

KEPT_BYTES = 1 << 16
LINES_WITHOUT_TRACEBACK = 20
DRAIN_S = 1.0  #: for what a rank wrote last; longer only if somebody else holds its standard error
_BEGIN = re.compile(r"^(?:  \+ Exception Group )?Traceback \(most recent call last\):$", re.MULTILINE)
_LINKS = ("The above exception was the direct cause", "During handling of the above exception")
_NOISE = re.compile(rb"^(?:Traceback \(most recent call last\):|Exception ignored in|Fatal Python error)", re.MULTILINE)


def say(words: str) -> None:
    """A line of the launcher's own."""
    pass_on(f"outpace run: {words}\n".encode())


def pass_on(text: bytes) -> None:
    """To the launcher's standard error, if anybody still reads that."""
    with suppress(OSError):
        sys.stderr.flush()
        while text:
            text = text[os.write(2, text) :]


def last_words(text: str) -> str:
    """The last traceback with all that led to it, or the last lines where there is none.

    >>> print(last_words("step 7\\nTraceback (most recent call last):\\n  ...\\nValueError: no"))
    Traceback (most recent call last):
      ...
    ValueError: no
    """
    begins = [match.start() for match in _BEGIN.finditer(text)]
    while len(begins) > 1 and any(link in text[begins[-2] : begins[-1]] for link in _LINKS):
        begins.pop()
    if begins:
        return text[begins[-1] :].rstrip()
    return "\n".join(text.rstrip().splitlines()[-LINES_WITHOUT_TRACEBACK:])


class Tail:
    """The standard error of one process."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = b""
        self._held = b""
        self._is_interrupted = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def expect_interrupt(self) -> None:
        """Ctrl-C was pressed: a traceback that only says so is not shown."""
        self._is_interrupted = True

    def end(self, code: int) -> str:
        """The process has ended with this exit code: waits for the rest of its words, and returns the last ones."""
        self._thread.join(DRAIN_S)
        if code > 0 and not self._held.rstrip().rpartition(b"\n")[2].startswith(b"KeyboardInterrupt"):
            pass_on(self._held)
        return self._kept.decode(errors="replace")

    def _read(self) -> None:
        with suppress(OSError), self._pipe:
            while chunk := os.read(self._pipe.fileno(), 65536):
                self._kept = (self._kept + chunk)[-KEPT_BYTES:]
                if self._is_interrupted and (self._held or _NOISE.search(chunk)):
                    self._held += chunk
                else:
                    pass_on(chunk)
