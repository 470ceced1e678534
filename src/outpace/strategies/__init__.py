"""Strategies: one short file for each family of algorithms, reading like the paper's pseudo-code."""

from outpace.strategies.ad_psgd import ADPSGD
from outpace.strategies.base import Strategy
from outpace.strategies.decentlam import DecentLaM
from outpace.strategies.dropcompute import DropCompute
from outpace.strategies.eager import Eager
from outpace.strategies.gossip import ALDSGD, DPSGD, DSGDAAU, Matcha, NonBlockingDPSGD, NonBlockingMatcha
from outpace.strategies.local_sgd import DaSGD, LocalSGD, PostLocalSGD
from outpace.strategies.nonblocking import NonBlocking
from outpace.strategies.outer import DiLoCo, NoLoCo
from outpace.strategies.quorums import MSync, Rennala, Ringmaster
from outpace.strategies.registry import names, strategy
from outpace.strategies.sgp import SGP
from outpace.strategies.wagma import Wagma

__all__ = [
    "ADPSGD",
    "ALDSGD",
    "DPSGD",
    "DSGDAAU",
    "SGP",
    "DaSGD",
    "DecentLaM",
    "DiLoCo",
    "DropCompute",
    "Eager",
    "LocalSGD",
    "MSync",
    "Matcha",
    "NoLoCo",
    "NonBlocking",
    "NonBlockingDPSGD",
    "NonBlockingMatcha",
    "PostLocalSGD",
    "Rennala",
    "Ringmaster",
    "Strategy",
    "Wagma",
    "names",
    "strategy",
]
