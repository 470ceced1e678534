"""Names with options, as people type them: "eager:quorum=3,late=carry". Owns the syntax and its error messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, TypeGuard, TypeVar

from outpace.errors import InvalidRules, UnknownName

T = TypeVar("T")


def look_up(name: str, makers: Mapping[str, T], what: str) -> T:
    if name not in makers:
        near = difflib.get_close_matches(name, makers, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        raise UnknownName(f"no {what} is called {name!r}{hint} Known: {', '.join(sorted(makers))}")
    return makers[name]


def build(text: str, makers: Mapping[str, Callable[..., T]], what: str) -> T:
    name, _, rest = text.partition(":")
    maker = look_up(name.strip(), makers, what)
    options = _options(rest, text)
    known = list(signature(maker).parameters)
    for option in options:
        if option not in known:
            raise InvalidRules(f"{what} {name!r} has no option {option!r}; it has {', '.join(known) or 'none'}")
    return maker(**options)


def _options(rest: str, text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise InvalidRules(f"{part!r} in {text!r} is not of the form option=value")
        if key.strip() in options:
            raise InvalidRules(f"option {key.strip()!r} appears twice in {text!r}")
        options[key.strip()] = _value(value.strip())
    return options


def _value(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or is_whole(value)
