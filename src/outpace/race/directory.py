"""A race's run directory: race.json, and a recording for each attempt. Owns its layout; believes nothing it reads."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from outpace.errors import InvalidRules, OutpaceError, TraceInvalid
from outpace.race.result import Attempt, Entry, Losses, Point, Race, RankResult
from outpace.race.settings import Settings
from outpace.workloads.base import Metric

FILE = "race.json"
FORMAT = 1  #: grows when a reader of today would misunderstand it

T = TypeVar("T")


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
    """Writes race.json whole, or not at all."""
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
    """The race of a run directory. Raises `TraceInvalid` for whatever is none."""
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
    except (KeyError, TypeError, ValueError, AttributeError, InvalidRules) as error:
        raise TraceInvalid(f"{path} is not what a race wrote: {type(error).__name__}: {error}") from error


def _race(document: dict[str, Any]) -> Race:
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']!r}, and this version of outpace reads {FORMAT}")
    known = _fields(Race, document)
    known["settings"] = Settings(**document["settings"])
    known["metric"] = Metric(*document["metric"])
    known["entries"] = tuple(_entry(entry) for entry in document["entries"])
    return Race(**known)


def _entry(plain: dict[str, Any]) -> Entry:
    return Entry(str(plain["system"]), str(plain["title"]), tuple(_attempt(a) for a in plain["attempts"]))


def _attempt(plain: dict[str, Any]) -> Attempt:
    known = _fields(Attempt, plain)
    known["curve"] = tuple(Point(*map(_number, point)) for point in plain["curve"])
    known["losses"] = tuple(Losses(*map(_number, point)) for point in plain["losses"])
    known["staleness"] = tuple((int(late), int(count)) for late, count in plain["staleness"])
    known["ranks"] = tuple(RankResult(**_fields(RankResult, rank)) for rank in plain["ranks"])
    if Path(known["directory"]).is_absolute() or ".." in Path(known["directory"]).parts:
        raise ValueError(f"{known['directory']!r} lies outside of the run directory")
    return Attempt(**known)


def _fields(kind: Callable[..., Any], plain: dict[str, Any]) -> dict[str, Any]:
    """What the document has of a dataclass; other keys are left out."""
    return {field.name: plain[field.name] for field in fields(kind)}  # type: ignore[arg-type]


def _number(value: object) -> float:
    """A number; what JSON had none for was not finite."""
    if value is not None and not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is no number")
    return math.nan if value is None else float(value)


def plain(value: Any) -> Any:
    """With None for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
