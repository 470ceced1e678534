"""A race's run directory: race.json, and a recording for each attempt. Owns its layout; trusts nothing it reads."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from outpace.errors import InvalidRules, OutpaceError, TraceInvalid
from outpace.race.result import Attempt, Entry, Losses, Point, Race, RankResult, Settings
from outpace.spec import is_number
from outpace.workloads.base import Metric

FILE = "race.json"
FORMAT = 1  #: grows when a reader of today would misunderstand it


def make(path: str | Path | None) -> Path:
    """A new run directory. One that was given must be empty or not there; else it is named after the time."""
    chosen = Path("runs", time.strftime("race-%Y%m%d-%H%M%S")) if path is None else Path(path)
    try:
        chosen.mkdir(parents=True, exist_ok=path is not None)
        if any(chosen.iterdir()):
            raise InvalidRules(f"{chosen} is not empty, and a race overwrites nothing; give another directory")
    except OSError as error:
        raise OutpaceError(f"the run directory {chosen} cannot be made: {error.strerror}. Give another one") from error
    return chosen


def save(race: Race, directory: Path) -> None:
    document = {"format": FORMAT, **asdict(race)}
    write_whole(directory / FILE, json.dumps(plain(document), indent=1, allow_nan=False))


def write_whole(path: Path, text: str) -> None:
    """A file that is never seen half-written."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(directory: str | Path) -> Race:
    """The race of a run directory. Raises `TraceInvalid` if it has none."""
    path = Path(directory) / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise TraceInvalid(
            f"{directory} is not the run directory of a race: {FILE} cannot be read ({why}). `outpace race` makes one, "
            "and says where"
        ) from error
    try:
        return _race(document)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidRules, OverflowError) as error:
        raise TraceInvalid(f"{path} was not written by a race: {type(error).__name__}: {error}") from error


def _race(document: dict[str, Any]) -> Race:
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']!r}, and this version of outpace reads {FORMAT}")
    settings = _known(Settings, document["settings"])
    name, higher_is_better, is_share = document["metric"]
    return Race(
        **_known(Race, document),
        settings=Settings(**settings, arguments=tuple(map(str, document["settings"]["arguments"]))),
        metric=Metric(str(name), bool(higher_is_better), bool(is_share)),
        entries=tuple(_entry(entry) for entry in document["entries"]),
    )


def _entry(plain: dict[str, Any]) -> Entry:
    tried = tuple((_number(factor), _number(metric)) for factor, metric in plain.get("tried", ()))
    return Entry(**_known(Entry, plain), attempts=tuple(_attempt(a) for a in plain["attempts"]), tried=tried)


def _attempt(plain: dict[str, Any]) -> Attempt:
    attempt = Attempt(
        **_known(Attempt, plain),
        curve=tuple(Point(*map(_number, point)) for point in plain["curve"]),
        losses=tuple(Losses(*map(_number, point)) for point in plain["losses"]),
        staleness=tuple((int(late), int(count)) for late, count in plain["staleness"]),
        ranks=tuple(RankResult(**_known(RankResult, rank)) for rank in plain["ranks"]),
    )
    if Path(attempt.directory).is_absolute() or ".." in Path(attempt.directory).parts:
        raise ValueError(f"{attempt.directory!r} lies outside of the run directory")
    if attempt.error is None and not (attempt.ranks and attempt.seconds > 0):
        raise ValueError("an attempt without an error has ranks that trained")
    return attempt


def _known(kind: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """The plain values of a dataclass, each of its type; what else the document has is left out."""
    known = {}
    for field in fields(kind):
        kinds = tuple(_PLAIN[name] for name in str(field.type).split(" | ") if name in _PLAIN)
        if kinds and (field.name in plain or field.default is MISSING):  # what older versions did not write is as usual
            value = plain[field.name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise ValueError(f"it has {field.name}={value!r}")
            known[field.name] = float(value) if "float" in str(field.type) and value is not None else value
    return known


_PLAIN: dict[str, Any] = {"int": int, "float": int | float, "str": str, "bool": bool, "None": type(None)}


def _number(value: object) -> float:
    """A number; null stands for one that is not finite."""
    if value is not None and not is_number(value):
        raise ValueError(f"{value!r} is not a number")
    return math.nan if value is None else float(value)


def plain(value: Any) -> Any:
    """With None for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
