"""What all commands share that run one system after the other and compare them: their course and their report.

Owns what happens at Ctrl-C, the command that repeats a run, and how tables and notes are printed.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outpace.cli.progress import ShowStep, Watcher

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

S = TypeVar("S", bound="DataclassInstance")
R = TypeVar("R")


@dataclass
class ComparisonBase(ABC, Generic[S, R]):
    """The systems that are compared, and what came of those that ran."""

    settings: S  #: what they have in common
    systems: list[str]
    outcomes: list[R] = field(default_factory=list)
    interrupted: bool = False

    def run(self, watch: Watcher, one: Callable[[str, ShowStep], R]) -> None:
        """Runs one system after the other; Ctrl-C ends the current one and keeps what is there. Blocks."""
        try:
            for index, name in enumerate(self.systems):
                with watch.follow(index) as show:
                    self.outcomes.append(one(name, show))
        except KeyboardInterrupt:
            self.interrupted = True

    @abstractmethod
    def command(self) -> str:
        """What repeats this run."""

    def header(self) -> dict[str, Any]:
        """What every document for scripts begins with."""
        from outpace import __version__

        return {
            "outpace": __version__,
            "command": self.command(),
            "settings": asdict(self.settings),
            "interrupted": self.interrupted,
        }

    def report(self, as_json: bool, to_json: Callable[[Self], dict[str, Any]], show: Callable[[Self], None]) -> int:
        """Prints what was found, for scripts or for people, and returns the exit code."""
        if as_json:
            print(json.dumps(to_json(self), indent=2))
        else:
            show(self)
        return 130 if self.interrupted else 0

    def print_report(self, what: str, table: Callable[[int], Table], notes: Callable[[], Mapping[str, str]]) -> None:
        """How many ran if not all did, the table, what its columns mean and how to repeat it, on standard output.

        `what` is compared, in the plural; the table is told how many columns the terminal has.
        """
        console = Console(highlight=False, markup=False, emoji=False)
        if self.interrupted:
            ran = f"{len(self.outcomes)} of {len(self.systems)} {what} ran to their end"
            console.print(f"Interrupted: {ran}.", style="yellow")
        if not self.outcomes:
            return
        console.print()
        console.print(table(console.width))
        described = notes()
        console.print(notes_grid(described))
        # Not wrapped, so that it can be copied whole.
        repeat = "repeat".ljust(max(map(len, described)) + 2)
        console.print(Text.assemble((repeat, "bold"), self.command()), soft_wrap=True)


def replay(command: str, settings: S, usual: S, **others: str) -> str:
    """The command line with these settings. What is as usual is left out, except the seed; a tuple comes last."""
    words, last = ["outpace", command], list[str]()
    for option in fields(settings):
        value = getattr(settings, option.name)
        if isinstance(value, tuple):
            last += ["--", *value] if value else []
        elif value != getattr(usual, option.name) or option.name == "seed":
            words += [f"--{option.name.replace('_', '-')}", *([] if value is True else [_typed(value)])]
    for name, text in others.items():
        words += [f"--{name}", text]
    return shlex.join(words + last)


def _typed(value: object) -> str:
    """As one would type it, and exactly."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def notes_grid(notes: Mapping[str, str]) -> Table:
    """Words, and what they mean."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True, width=max(map(len, notes)))
    grid.add_column()
    for name, text in notes.items():
        grid.add_row(name, text)
    return grid
