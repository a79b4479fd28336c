"""Decoding strategies: generators over token ids. They know no text, no files, no library.

* plain: the full model, one token a pass
* speculative: a drafter proposes, the full model verifies; the output is the full model's
* tiered: a drafter proposes, the slim verifier accepts or rewrites, the full model decides the rest (VIA-SD)
"""

from viasd_edge.strategies.common import Drafter, Stats, Tally, Target, Tier, Token
from viasd_edge.strategies.gate import Decision, RatioGate
from viasd_edge.strategies.plain import plain
from viasd_edge.strategies.speculative import speculative
from viasd_edge.strategies.tiered import tiered

__all__ = [
    "Decision",
    "Drafter",
    "RatioGate",
    "Stats",
    "Tally",
    "Target",
    "Tier",
    "Token",
    "plain",
    "speculative",
    "tiered",
]
