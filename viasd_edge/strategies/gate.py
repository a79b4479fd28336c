"""Gates: what the slim verifier does with a drafted token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from viasd_edge.limits import ACCEPT, ESCALATE


class Decision(Enum):
    """Of the slim verifier, for one drafted token."""

    ACCEPT = "accept"  # the drafted token stands
    REGENERATE = "regenerate"  # the slim verifier's own choice replaces it
    ESCALATE = "escalate"  # the full model decides


@dataclass(frozen=True)
class RatioGate:
    """Judge a drafted token by r = slim(token) / max slim, the statistic of VIA-SD (arXiv 2606.12243).

    r >= accept: accept; r >= escalate: regenerate; else escalate. The paper's constants (0.5, 0.3), read as
    r >= 1 - alpha, leave the middle band empty, so the thresholds are explicit here, as in the reproduction
    nicolesplaining/viasd-rl, whose values are the defaults. Needs 0 <= escalate <= accept <= 1.
    """

    accept: float = ACCEPT
    escalate: float = ESCALATE

    def __post_init__(self) -> None:
        if not 0 <= self.escalate <= self.accept <= 1:
            raise ValueError(f"thresholds need 0 <= escalate <= accept <= 1, not {self.escalate} and {self.accept}")

    def judge(self, logits: NDArray[np.float32], drafted: Sequence[int]) -> list[Decision]:
        """One decision per drafted token; row i of the slim verifier's `logits` [n, n_vocab] judges drafted[i]."""
        rows = np.arange(len(drafted))
        ratios = np.exp(logits[rows, list(drafted)] - logits.max(axis=-1))  # softmax's sum cancels
        return [self._decide(float(ratio)) for ratio in ratios]

    def _decide(self, ratio: float) -> Decision:
        if ratio >= self.accept:
            return Decision.ACCEPT
        return Decision.REGENERATE if ratio >= self.escalate else Decision.ESCALATE
