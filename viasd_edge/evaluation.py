"""What drafter and slim verifier say where the full model has spoken: the ground that gates are calibrated on.

Everything is teacher-forced: the state at every position is the full model's own, its KV included; the slim verifier
looks at windows of it under the mask, as it does when it decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from viasd_edge.mask import LayerMask
from viasd_edge.runner import Logits, Runner
from viasd_edge.strategies.gate import RowDistribution

WINDOW = 32  # tokens the slim verifier sees at a time


@dataclass(frozen=True)
class Sample:
    """A text: `tokens` are judged one by one, each after all before it, `prompt` (at least one token) included."""

    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class Summary:
    """What gates ask of a distribution, at one token: see strategies.gate.Distribution."""

    max: float
    token_ratio: float
    token_distance: float = 0.0  # to the other distribution of the position

    def ratio(self, token: int) -> float:  # noqa: ARG002  # the one it was made for
        return self.token_ratio

    def probability(self, token: int) -> float:  # noqa: ARG002
        return self.token_ratio * self.max

    def distance(self, other: object) -> float:  # noqa: ARG002
        return self.token_distance


@dataclass(frozen=True)
class Position:
    """The three tiers at one position: their first choices, and what gates need to know of the drafted token."""

    full: int
    draft: int
    slim: int
    draft_summary: Summary
    slim_summary: Summary

    @property
    def confidence(self) -> float:
        """The drafter's, in its token."""
        return self.draft_summary.max


def observe(target: Runner, draft: Runner, mask: LayerMask, sample: Sample) -> list[Position]:
    """All positions of a sample; ends with the runners holding it."""
    tokens = [*sample.prompt, *sample.tokens]
    first = len(sample.prompt) - 1
    positions: list[Position] = []
    target.rewind(0)
    target.decode(tokens[:first], rows=0)
    draft.rewind(0)
    draft.decode(tokens[:first], rows=0)
    for start in range(first, len(tokens) - 1, WINDOW):
        window = tokens[start : min(start + WINDOW, len(tokens) - 1)]
        slim = target.decode(window, mask=mask).copy()
        target.rewind(start)
        full = target.decode(window)
        positions += _positions(full, draft.decode(window), slim)
    return positions


def _positions(full: Logits, draft: Logits, slim: Logits) -> Iterator[Position]:
    for full_row, draft_row, slim_row in zip(full, draft, slim, strict=True):
        token = int(draft_row.argmax())
        of_draft, of_slim = RowDistribution(draft_row, token), RowDistribution(slim_row, token)
        yield Position(
            full=int(full_row.argmax()),
            draft=token,
            slim=int(slim_row.argmax()),
            draft_summary=Summary(of_draft.max, 1.0, of_draft.distance(of_slim)),
            slim_summary=Summary(of_slim.max, of_slim.ratio(token)),
        )


def text_samples(tokens: Sequence[int], *, n_prompt: int, n_tokens: int) -> list[Sample]:
    """A text cut into samples, one after the other; a rest that is too short is dropped."""
    size = n_prompt + n_tokens
    starts = range(0, len(tokens) - size + 1, size)
    return [Sample(list(tokens[at : at + n_prompt]), list(tokens[at + n_prompt : at + size])) for at in starts]


def agreement(positions: Sequence[Position], tier: str) -> float:
    """The share of positions at which a tier ("draft" or "slim") and the full model have the same first choice."""
    return float(np.mean([getattr(position, tier) == position.full for position in positions]))
