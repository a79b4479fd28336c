"""Decoding strategies: generators over token ids. They know no text, no files, no library.

* plain: the full model, one token a pass
* speculative: a drafter proposes, the full model verifies; under the rule `Exact` the output is the full model's
* tiered: a drafter proposes, the slim verifier accepts or rewrites, the full model decides the rest (VIA-SD)
"""

from viasd_edge.strategies.common import (
    Draft,
    Drafter,
    Guess,
    Planner,
    Round,
    Stats,
    Tally,
    Target,
    Tier,
    Token,
)
from viasd_edge.strategies.gate import GATES, Decision, Gate, Ratio, gate_text, parse_gate
from viasd_edge.strategies.plain import plain
from viasd_edge.strategies.rules import EntropyWindow, Exact, Rollback, Rule, TokenV3
from viasd_edge.strategies.sampling import Chooser, Greedy, Sampling
from viasd_edge.strategies.speculative import speculative
from viasd_edge.strategies.tiered import tiered

__all__ = [
    "GATES",
    "Chooser",
    "Decision",
    "Draft",
    "Drafter",
    "EntropyWindow",
    "Exact",
    "Gate",
    "Greedy",
    "Guess",
    "Planner",
    "Ratio",
    "Rollback",
    "Round",
    "Rule",
    "Sampling",
    "Stats",
    "Tally",
    "Target",
    "Tier",
    "Token",
    "TokenV3",
    "gate_text",
    "parse_gate",
    "plain",
    "speculative",
    "tiered",
]
