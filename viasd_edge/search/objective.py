"""What masks are scored by, and the memory of what they scored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from viasd_edge.calibration import forecasts
from viasd_edge.curves import Curve, Curves
from viasd_edge.evaluation import Position, Teacher, View, agreement, divergence, overshoot
from viasd_edge.folders import write_atomically
from viasd_edge.limits import DRAFT_MAX
from viasd_edge.mask import LayerMask
from viasd_edge.search.common import Scores
from viasd_edge.search.prices import Prices
from viasd_edge.search.space import Space
from viasd_edge.strategies.gate import Chow, Confident, Diff, Gate, Ratio, TokenV1, TokenV3Gate

ALPHA, BETA = 0.5, 0.3  # of Eq. 11: what is charged is more than twice the full model's probability, or 3.3 times
_FORMAT = 1
_QUICK: tuple[Gate, ...] = (
    *(TokenV3Gate(alpha) for alpha in (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)),
    *(Ratio(accept, escalate) for accept in (0.3, 0.6, 0.9) for escalate in (0.1, 0.3, 0.6) if escalate < accept),
    *(Confident(accept, sure) for accept in (0.3, 0.6, 0.9) for sure in (0.6, 0.8, 0.95)),
    *(kind(alpha) for kind in (Chow, Diff, TokenV1) for alpha in (0.01, 0.05, 0.1, 0.2)),
)
"""Gates that a mask's speed is predicted with while searching; the winner is calibrated with all there are."""


class Journal:
    """Scores by mask, kept in a JSON lines file as they come: an interrupted search goes on where it was.

    The first line is a header: what the search works on. Its last line may be torn; it then counts as not written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Of a new search. What was at `path` is replaced."""
        self.path = path
        self.header = dict(header)
        self.scores: dict[str, Scores] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"format": _FORMAT, **header}) + "\n")

    @classmethod
    def load(cls, path: Path) -> Journal | None:
        """Of an earlier search; None if there is none that can be read."""
        try:
            first, *lines = path.read_text(encoding="utf-8").split("\n")
            header = json.loads(first)
            if header.pop("format") != _FORMAT:
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        journal = cls.__new__(cls)
        journal.path, journal.header, journal.scores = path, header, {}
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):  # torn
                entry = json.loads(line)
                journal.scores[entry["mask"]] = Scores.from_dict(entry["scores"])
        return journal

    def add(self, mask: LayerMask, scores: Scores) -> None:
        """Remember, and write it down before anything else happens."""
        self.scores[str(mask)] = scores
        line = json.dumps({"mask": str(mask), "scores": scores.to_dict()})
        with self.path.open("r+b") as file:
            file.seek(0, 2)
            file.seek(file.tell() - 1)
            torn = file.read(1) != b"\n"  # by whoever was interrupted before
            file.write(b"\n" * torn + line.encode() + b"\n")


@dataclass
class Objective:
    """Scores masks on what a Teacher knows, one window of each sample, at measured prices.

    `error` is the share of emitted tokens that may differ from the full model's choice. Deterministic: a mask's scores
    depend on nothing else, and what the journal has is not measured again.
    """

    teacher: Teacher
    space: Space
    prices: Prices
    error: float
    journal: Journal
    evaluations: int = field(default=0, init=False)  # of this run

    def score(self, mask: LayerMask) -> Scores:
        known = self.journal.scores.get(str(mask))
        if known:
            return known
        views = list(chain.from_iterable(self.teacher.views(mask, quick=True)))
        scores = Scores(
            **measures(views, self.error),
            tokens_per_s=self.tokens_per_s(mask, [view.positions for view in views]),
            share=share_of(mask, self.space),
        )
        self.journal.add(mask, scores)
        self.evaluations += 1
        return self.journal.scores[str(mask)]

    def tokens_per_s(self, mask: LayerMask, samples: Sequence[Sequence[Position]]) -> float:
        """Predicted: of tiered mode by the best of some gates, without a drafter of drafting under the mask."""
        curves = self.prices.under(mask)
        return predicted(samples, curves, self.error, _QUICK)


def measures(views: Sequence[View], error: float) -> dict[str, float]:
    """`dimr`, `kl`, `agreement` and `coverage` of a slim verifier, see Scores; means over all positions."""
    full, slim = (np.concatenate([getattr(view, tier) for view in views]) for tier in ("full", "slim"))
    positions = list(chain.from_iterable(view.positions for view in views))
    return {
        "dimr": float(overshoot(slim, full, ALPHA, BETA).mean()),
        "kl": float(divergence(full, slim).mean()),
        "agreement": agreement(positions, "slim"),
        "coverage": coverage(positions, error),
    }


def share_of(mask: LayerMask, space: Space) -> float:
    """The share of the layers' cost that `mask` skips, at the space's costs, whatever the space's units are."""
    layer = space.attention_cost + space.ffn_cost
    saved = len(mask.attention) * space.attention_cost + len(mask.ffn) * space.ffn_cost
    return saved / layer / space.n_layer


def coverage(positions: Sequence[Position], error: float) -> float:
    """The share of drafted tokens that the ratio gate can accept with at most `error` of all of them wrong."""
    ordered = sorted(positions, key=lambda position: -position.slim_summary.token_ratio)
    ratios = np.array([position.slim_summary.token_ratio for position in ordered])
    wrong = np.cumsum([position.draft != position.full for position in ordered])
    ends = np.append(ratios[1:] < ratios[:-1], True)  # tokens of one ratio are accepted together
    within = np.flatnonzero(ends & (wrong <= error * len(ordered)))
    return float((within[-1] + 1) / len(ordered)) if len(within) else 0.0


def predicted(
    samples: Sequence[Sequence[Position]],
    curves: Curves,
    error: float,
    gates: Sequence[Gate] | None = None,
    *,
    keep_kv: bool = True,
) -> float:
    """Tokens per second of tiered mode by the best of `gates` (default: all there are).

    Plain decoding's if none stays within the error; without a drafter, of drafting under the mask.
    """
    if curves.draft is None:
        return self_speculation(agreement(list(chain.from_iterable(samples)), "slim"), curves.full, curves.slim)
    within = [
        1.0 / entry.seconds for entry in forecasts(samples, curves, gates, keep_kv=keep_kv) if entry.error <= error
    ]
    return max(within, default=1.0 / curves.full.at(1))


def self_speculation(acceptance: float, full: Curve, slim: Curve) -> float:
    """Tokens per second of drafting under a mask, at the best draft length; 0: plain decoding (methods 7)."""
    drafts = range(DRAFT_MAX)
    tokens = np.cumsum([acceptance**n for n in drafts])
    return max(float(tokens[n]) / (n * slim.at(1) + full.at(n + 1)) for n in drafts)
