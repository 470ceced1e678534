"""Parsing shared by all commands. Owns how a wrong command line is answered: in one line."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where help is, and exits with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def at_least_one(text: str) -> int:
    """A whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return number


def milliseconds(text: str) -> float:
    """A duration, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of milliseconds, 0 or more")
    return number


def name_list(text: str) -> list[str]:
    """Names between commas. An option=value belongs to the name before it, so that names may have several.

    >>> name_list("ddp,eager:quorum=3,late=drop,eager-solo")
    ['ddp', 'eager:quorum=3,late=drop', 'eager-solo']
    """
    names: list[str] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        if names and "=" in piece and ":" not in piece:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    if not names:
        raise argparse.ArgumentTypeError("at least one name is needed")
    return names
