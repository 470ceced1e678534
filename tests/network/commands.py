"""Runs `ip` and `tc`. Owns saying clearly what failed; imports nothing but the standard library."""

from __future__ import annotations

import shlex
import subprocess

TIMEOUT_S = 30.0


class NetworkError(Exception):
    """The network could not be built, changed or taken down."""


def run(*command: str) -> str:
    """What the command printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError:
        raise NetworkError(f"`{command[0]}` is not installed; it is in the package iproute2") from None
    except subprocess.TimeoutExpired:
        raise NetworkError(f"`{shlex.join(command)}` was not done after {TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or "nothing"
        raise NetworkError(f"`{shlex.join(command)}` ended with exit code {done.returncode} and said: {said}")
    return done.stdout
