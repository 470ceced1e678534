"""Codecs: lossy coding that makes a round cheaper to send. One short file each, reading like its paper's pseudo-code.

This file is the table of their names; adding a codec is adding a line.
"""

from __future__ import annotations

from collections.abc import Callable

from outpace.codecs.base import Bfloat16, Codec, contribution_seed
from outpace.codecs.global_qsgd import GlobalQSGD
from outpace.codecs.ok_topk import OkTopk
from outpace.errors import InvalidRules
from outpace.spec import build

__all__ = ["CODECS", "Codec", "codec", "contribution_seed", "names"]

CODECS: dict[str, Callable[..., Codec]] = {
    "none": Codec,
    "bf16": Bfloat16,
    "global-qsgd": GlobalQSGD,
    "ok-topk": OkTopk,
}


def names() -> list[str]:
    return sorted(CODECS)


def codec(choice: str | Codec) -> Codec:
    """A new codec from its name with options. A codec object is returned as it is; it belongs to one rank.

    >>> codec("ok-topk:density=0.02")
    OkTopk(density=0.02)
    """
    if isinstance(choice, Codec):
        return choice
    if not isinstance(choice, str):
        raise InvalidRules(f"codec={choice!r} must be a name ({', '.join(names())}) or a Codec")
    return build(choice, CODECS, "codec")
