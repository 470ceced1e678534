"""`outpace strategies`, `imbalances`, `networks`, `workloads`, `codecs`: what the names of options stand for.

Owns how they are shown. Everything shown about a name comes from its maker: the docstring, the arguments with their
defaults, and what the docstrings of its classes say of each ("grace: seconds to wait ..."), so that nothing here can be
out of date.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import cleandoc, getdoc, signature
from typing import Any, NamedTuple

from outpace.cli.parser import NAMES, listing, paragraph
from outpace.codecs import CODECS
from outpace.engines.virtual.network import NETWORKS
from outpace.imbalance import IMBALANCES
from outpace.spec import look_up
from outpace.strategies import STRATEGIES
from outpace.workloads import WORKLOADS

Makers = Mapping[str, Callable[..., Any]]

_MAKERS: dict[str, Makers] = {
    "strategies": STRATEGIES,
    "imbalances": IMBALANCES,
    "networks": NETWORKS,
    "workloads": WORKLOADS,
    "codecs": CODECS,
}
#: by command: what one of them is called, and who makes it
CATALOGUE = {command: (NAMES[command], makers) for command, makers in _MAKERS.items()}
ABOUT_NETWORKS = {
    "host": "One small machine, in whose memory all ranks meet.",
    "zero": "Communication takes no time.",
    "fixed": "A round takes the same time, whatever its size.",
    "ethernet": "Servers, with Ethernet between them.",
    "infiniband": "Servers, with InfiniBand between them.",
    "cluster": "Ethernet as outpace uses it itself: the log in one of torch's stores, a ring for sums, and rows that "
    "are sent when they are published.",
}
EVERYWHERE = {"seed": "Of what is drawn at random, the same on all ranks."}
_OPTIONS = re.compile(r"(?:^|(?<=[.;] ))((?:[a-z][a-z_0-9]*, )*[a-z][a-z_0-9]*): ", re.MULTILINE)


class Option(NamedTuple):
    default: Any  #: None: it follows from something else
    about: str

    @property
    def typed(self) -> str | None:
        """The default as it is written behind a name; None if it cannot be."""
        return None if self.default is None else re.sub("^(True|False)$", lambda m: m[0].lower(), str(self.default))


class Entry(NamedTuple):
    """What a name stands for, for people who choose one."""

    name: str
    about: str
    options: dict[str, Option]


def run(arguments: argparse.Namespace) -> int:
    command = arguments.command
    names = list(CATALOGUE[command][1]) if arguments.name is None else [arguments.name]
    found = [entry(command, name) for name in names]
    if arguments.json:
        print(json.dumps({one.name: _plain(one) for one in found}, indent=2))
    elif arguments.name is None:
        print(listing(command, ((one.name, one.about.partition("\n")[0]) for one in found)))
    else:
        print(in_words(found[0]))
    return 0


def entry(command: str, name: str) -> Entry:
    """Raises `UnknownName`, with names that are alike."""
    one, makers = CATALOGUE[command]
    maker = look_up(name, makers, one)
    made = maker.func if isinstance(maker, partial) else maker
    explained = {**EVERYWHERE}
    for each in reversed(getattr(made, "__mro__", ())):
        explained.update(_explained(each.__dict__.get("__doc__")))
    about = ABOUT_NETWORKS[name] if makers is NETWORKS else _without_options(getdoc(maker) or "")
    parameters = signature(maker).parameters
    return Entry(name, about, {key: Option(p.default, explained.get(key, "")) for key, p in parameters.items()})


def in_words(one: Entry) -> str:
    """What is known of a name, and its options as one would type them behind it."""
    rows = [
        (key if option.typed is None else f"{key}={option.typed}", option.about) for key, option in one.options.items()
    ]
    options = listing("options, with their defaults", rows) if rows else "It has no options."
    text = (part if part.startswith(" ") else paragraph(part) for part in one.about.split("\n\n"))
    return "\n\n".join((one.name, *text, options))


def _plain(one: Entry) -> dict[str, Any]:
    """JSON has no infinity."""
    options = {
        key: {"default": str(default) if default == math.inf else default, "about": about}
        for key, (default, about) in one.options.items()
    }
    return {"about": one.about, "options": options}


def _explained(doc: str | None) -> dict[str, str]:
    """What a docstring says of options: "every: H. outer_lr, outer_momentum: of the outer optimizer."."""
    found: dict[str, str] = {}
    for part in filter(_OPTIONS.match, cleandoc(doc or "").split("\n\n")):
        names = list(_OPTIONS.finditer(part))
        ends = [match.start() for match in names[1:]] + [len(part)]
        for match, end in zip(names, ends, strict=True):
            text = " ".join(part[match.end() : end].split())
            found.update(dict.fromkeys(match[1].split(", "), text))
    return found


def _without_options(doc: str) -> str:
    parts = doc.split("\n\n")
    return "\n\n".join(part for part in parts if not _OPTIONS.match(part) and not part.startswith(">>>"))
