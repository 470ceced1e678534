"""State as JSON values, and back: what a snapshot carries for ranks that cannot read the whole log.

Driven by declared types: the annotations of a class list its state, and determine how each value is written and read.
Named tuples and dataclasses are written as lists of their fields, dicts as lists of pairs, sets in order.
"""

from __future__ import annotations

import dataclasses
import types
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

P = TypeVar("P", bound="Part")

Write = Callable[[Any], Any]
Read = Callable[[Any, Any], Any]  #: from a plain value, and the value that it replaces


class Part:
    """Base of classes whose annotations are their state. All other attributes are given to it or follow from that."""

    def to_state(self, **instead: Any) -> dict[str, Any]:
        """The state as plain values. `instead` replaces attributes."""
        own = {**vars(self), **instead}
        return {name: write(own[name]) for name, (write, _) in _declared(type(self)).items()}

    def with_state(self: P, state: dict[str, Any]) -> P:
        """Restores what `to_state` wrote, and returns itself."""
        for name, (_, read) in _declared(type(self)).items():
            setattr(self, name, read(state[name], getattr(self, name)))
        self._restore_what_follows()
        return self

    def _restore_what_follows(self) -> None:
        """Rebuilds what is derived from the state."""


def write_fields(value: Any) -> dict[str, Any]:
    return {name: write(getattr(value, name)) for name, (write, _) in _declared(type(value)).items()}


def read_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    return {name: read(values[name], None) for name, (_, read) in _declared(kind).items()}


def _find_declared(kind: Any) -> dict[str, tuple[Write, Read]]:
    """How to write and read each declared attribute. Fields of a dataclass that are not in `__init__` are not state."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    else:
        names = [name for name, hint in hints.items() if get_origin(hint) is not ClassVar]
    return {name: _codec(hints[name]) for name in names}


_declared: Callable[[Any], dict[str, tuple[Write, Read]]] = cache(_find_declared)


@cache
def _codec(hint: Any) -> tuple[Write, Read]:
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        (kind, *more) = [kind for kind in arguments if kind is not type(None)]
        return _optional(*_codec(kind)) if not more else (_as_it_is, _as_it_was)
    if issubclass(origin, Part):
        return lambda part: part.to_state(), lambda state, part: part.with_state(state)
    if dataclasses.is_dataclass(origin) or hasattr(origin, "_fields"):
        return _record(origin)
    if origin in (dict, Counter):
        return _pairs(origin, *(arguments if origin is dict else (*arguments, int)))
    if origin is tuple and arguments[-1:] != (...,):
        return _each(arguments)
    if origin in (list, set, tuple):
        return _many(origin, arguments[0])
    return _as_it_is, _as_it_was


def _as_it_is(value: Any) -> Any:
    """For immutable values that JSON has."""
    return value


def _as_it_was(plain: Any, _: Any) -> Any:
    return plain


def _optional(write: Write, read: Read) -> tuple[Write, Read]:
    def write_some(value: Any) -> Any:
        return None if value is None else write(value)

    def read_some(plain: Any, before: Any) -> Any:
        return None if plain is None else read(plain, before)

    return _as_it_is if write is _as_it_is else write_some, read_some


def _record(kind: Any) -> tuple[Write, Read]:
    declared = _declared(kind)
    writes = [(place, write) for place, (write, _) in enumerate(declared.values()) if write is not _as_it_is]
    reads = [(place, read) for place, (_, read) in enumerate(declared.values()) if read is not _as_it_was]
    is_tuple = hasattr(kind, "_fields")
    fields = iter if is_tuple else attrgetter(*declared)

    def write(value: Any) -> list[Any]:
        plain = list(fields(value))
        for place, write in writes:
            plain[place] = write(plain[place])
        return plain

    def read(plain: Any, _: Any) -> Any:
        values = list(plain)
        for place, read in reads:
            values[place] = read(values[place], None)
        return kind(*values)

    return write if writes or not is_tuple else _as_it_is, read


def _pairs(kind: Any, key: Any, value: Any) -> tuple[Write, Read]:
    (write_key, read_key), (write_value, read_value) = _codec(key), _codec(value)

    def write(values: Any) -> list[Any]:
        if write_key is write_value is _as_it_is:
            return list(values.items())
        return [(write_key(k), write_value(v)) for k, v in values.items()]

    def read(plain: Any, _: Any) -> Any:
        if read_key is read_value is _as_it_was:
            return kind(dict(plain))
        return kind({read_key(k, None): read_value(v, None) for k, v in plain})

    return write, read


def _each(hints: tuple[Any, ...]) -> tuple[Write, Read]:
    codecs = [_codec(hint) for hint in hints]
    if all(read is _as_it_was for _, read in codecs):
        return _as_it_is, lambda plain, _: tuple(plain)

    def write(values: Any) -> list[Any]:
        return [write(value) for (write, _), value in zip(codecs, values, strict=True)]

    def read(plain: Any, _: Any) -> Any:
        return tuple(read(value, None) for (_, read), value in zip(codecs, plain, strict=True))

    return write, read


def _many(kind: Any, hint: Any) -> tuple[Write, Read]:
    write_one, read_one = _codec(hint)
    is_part = isinstance(hint, type) and issubclass(hint, Part)

    def write(values: Any) -> list[Any]:
        if kind is set:
            return sorted(values)
        return list(values) if write_one is _as_it_is else [write_one(value) for value in values]

    def read(plain: Any, before: Any) -> Any:
        if read_one is _as_it_was:
            return kind(plain)
        return kind(map(read_one, plain, before if is_part else repeat(None)))

    return _as_it_is if kind is tuple and write_one is _as_it_is else write, read
