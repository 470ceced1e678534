"""Many cases in one launch: the same processes go through one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import outpace

Name = TypeVar("Name")


class CaseFailed(Exception):
    """Names the case in which a rank failed: the others of its launch have not been tried."""


def in_one_launch(
    fn: Callable[..., Any], ranks: int, cases: Mapping[Name, tuple[Any, ...]], hosts: int = 1
) -> dict[Name, list[Any]]:
    """What each rank returned, by case. `cases` are the arguments of each."""
    runs = outpace.spawn(one_after_the_other, ranks, (fn, dict(cases)), hosts=hosts)
    return {name: [run[name] for run in runs] for name in cases}


def several_in_one_launch(ranks: int, cases: Mapping[Name, tuple[Any, ...]], hosts: int = 1) -> dict[Name, list[Any]]:
    """As above, where each case names its own function before its arguments."""
    return in_one_launch(_called, ranks, cases, hosts)


def _called(fn: Callable[..., Any], *arguments: Any) -> Any:
    return fn(*arguments)


def one_after_the_other(fn: Callable[..., Any], cases: Mapping[Name, tuple[Any, ...]]) -> dict[Name, Any]:
    """What a rank does."""
    found = {}
    for name, arguments in cases.items():
        try:
            found[name] = fn(*arguments)
        except Exception as error:
            raise CaseFailed(f"{name}: {type(error).__name__}: {error}") from error
    return found
