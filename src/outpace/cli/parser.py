"""Parsing shared by all commands."""

from __future__ import annotations

import argparse
import math
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from outpace.simulation.scenario import BALANCED, BOTH, DATA, SHARED, SPLIT

Tables = Mapping[str, Iterable[tuple[str, str]]]  #: by title: names with a line about each


def whole_number(text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
    return number


def at_least_one(text: str) -> int:
    return whole_number(text, least=1)


def quantity(unit: str) -> Callable[[str], float]:
    """What parses a number of this unit, 0 or more."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number of {unit}, 0 or more")
        return number

    return parse


milliseconds = quantity("milliseconds")
megabytes = quantity("megabytes")


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


def add_comparison(commands: Any, name: str, about: str, description: str, tables: Tables, *epilog: str) -> Any:
    """A command whose help ends with tables of names, and paragraphs about them."""
    lists = (listing(title, rows) for title, rows in tables.items())
    text, raw = "\n\n".join((*lists, *map(paragraph, epilog))), argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=about, description=paragraph(description), epilog=text, formatter_class=raw)


def add_settings(parser: argparse.ArgumentParser, usual: Any, systems: Sequence[str], **helps: str) -> Any:
    """The options that comparisons share. `usual` has their defaults, `helps` what some of them mean here.

    Returns the group that --ranks is in, for an option that says the same in other words.
    """
    option, size = parser.add_argument, parser.add_mutually_exclusive_group()
    default = str(usual.ranks)  # as text: else argparse took the same number, typed, for the default
    about = f"{helps['ranks']} (default: %(default)s)."
    size.add_argument("--ranks", type=at_least_one, default=default, metavar="N", help=about)
    about = f"{helps['compute']} (default: %(default)g)."
    option("--compute-ms", type=milliseconds, default=usual.compute_ms, metavar="MS", help=about)
    about = "Slows ranks down as this model says (default: %(default)s)."
    option("--imbalance", default=usual.imbalance, metavar="MODEL", help=about)
    about = f"{helps['strategies']} (default: {','.join(systems)})."
    option("--strategies", "--strategy", type=name_list, action="extend", metavar="NAMES", help=about)
    about = "Divides a step into N parts, for strategies that may end one early (default: %(default)d)."
    option("--microbatches", type=at_least_one, default=usual.microbatches, metavar="N", help=about)
    about = f"Draws {helps['seed']} from this seed (default: %(default)s)."
    option("--seed", type=int, default=usual.seed, metavar="N", help=about)
    option("--json", action="store_true", help="Prints one JSON document instead of a table.")
    add_quiet(parser)
    return size


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="Prints the result only, and no progress.")


def add_data(parser: argparse.ArgumentParser, usual: str | None = SPLIT) -> None:
    split = f"With {SPLIT}, every rank makes as many steps, as with DistributedSampler, and the slowest ends the run"
    shared = f"With {SHARED}, whoever is free takes the next step from one pool"
    balanced = f"{BALANCED} is {SPLIT} in batches of equal cost, and {BOTH} is one pool of such batches"
    unless = usual or "what the recording shows"
    parser.add_argument(
        "--data", choices=DATA, default=usual, help=f"{split}. {shared}. {balanced} (default: {unless})."
    )


def paragraph(text: str, first: str = "", others: str = "") -> str:
    """Wrapped text for raw help, with the prefixes of the first line and of the others."""
    columns = shutil.get_terminal_size().columns - 2  # as argparse has it
    return textwrap.fill(" ".join(text.split()), columns, initial_indent=first, subsequent_indent=others)


def listing(title: str, rows: Iterable[tuple[str, str]]) -> str:
    pairs = list(rows)
    width = max(len(name) for name, _ in pairs) + 2
    return "\n".join([f"{title}:", *(paragraph(text, f"  {name:{width}}", " " * (width + 2)) for name, text in pairs)])
