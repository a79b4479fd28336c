"""Verification rules: what of a draft stands, given the full model's logits for all of it.

`Exact` keeps what the full model would have chosen itself. The others are lossy rules of other systems, here to be
compared with; they are greedy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from viasd_edge.strategies.common import Row, greedy
from viasd_edge.strategies.sampling import Chooser

Logits = NDArray[np.float32]


class Rule(Protocol):
    """Decides a draft. Row i of `logits` [n + 1, n_vocab] is the full model's after i drafted tokens."""

    def verify(self, logits: Logits, drafted: Sequence[int]) -> list[int]:
        """The drafted tokens that stand, then one token of the full model's own."""
        ...


@dataclass(frozen=True)
class Exact:
    """The full model's own tokens, as `chooser` takes them (Leviathan et al., arXiv 2211.17192).

    A drafted token stands if it is what the full model's choice (or draw, one a token) comes to: a guess is a point
    mass, for which this is the paper's acceptance rule.
    """

    chooser: Chooser

    def verify(self, logits: Logits, drafted: Sequence[int]) -> list[int]:
        kept: list[int] = []
        for row, guess in zip(logits, [*drafted, None], strict=True):
            kept.append(self.chooser.choose(row))
            if kept[-1] != guess:
                break
        return kept


@dataclass(frozen=True)
class TokenV3:
    """Speculative cascades, rule Token v3 (arXiv 2405.19261), greedy: v stands if full(v) >= (1 - alpha) max full.

    alpha 0 is exact.
    """

    alpha: float = 0.3

    def verify(self, logits: Logits, drafted: Sequence[int]) -> list[int]:
        bound = math.log(max(1 - self.alpha, 1e-30))
        return _stand(logits, drafted, lambda row, token: float(row[token] - row.max()) >= bound)


@dataclass(frozen=True)
class Rollback:
    """BiLD's rollback (arXiv 2302.07863): v stands unless -log full(v) > `nats`; its fallback is the drafter's part."""

    nats: float = 2.0

    def verify(self, logits: Logits, drafted: Sequence[int]) -> list[int]:
        return _stand(logits, drafted, lambda row, token: _nats(row, token) <= self.nats or token == row.argmax())


@dataclass(frozen=True)
class EntropyWindow:
    """FLy (arXiv 2511.22972): a mismatch stands if the full model is unsure and goes along with what follows.

    Unsure: the entropy over its `top` tokens is at least `entropy` nats. Goes along: it agrees with the next
    `window` - 1 drafted tokens. A mismatch nearer to the draft's end cannot be judged and does not stand.
    """

    entropy: float = 0.3
    window: int = 6
    top: int = 3

    def verify(self, logits: Logits, drafted: Sequence[int]) -> list[int]:
        chosen = greedy(logits)
        for i, token in enumerate(drafted):
            if token == chosen[i]:
                continue
            follows = slice(i + 1, i + self.window)
            agrees = i + self.window <= len(drafted) and list(drafted[follows]) == chosen[follows]
            if not (agrees and self._entropy(logits[i]) >= self.entropy):
                return [*drafted[:i], chosen[i]]
        return [*drafted, chosen[-1]]

    def _entropy(self, row: Row) -> float:
        best = np.partition(row, -self.top)[-self.top :].astype(np.float64)
        weights = np.exp(best - best.max())
        weights /= weights.sum()
        return float(-(weights * np.log(weights)).sum())


def _stand(logits: Logits, drafted: Sequence[int], stands: Callable[[Row, int], bool]) -> list[int]:
    """The drafted tokens up to the first that does not stand, then the full model's first choice."""
    n = next((i for i, token in enumerate(drafted) if not stands(logits[i], token)), len(drafted))
    return [*drafted[:n], int(logits[n].argmax())]


def _nats(row: Row, token: int) -> float:
    top = row.max()
    return float(top + np.log(np.exp(row - top).sum()) - row[token])
