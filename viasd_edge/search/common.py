"""What every search shares: it asks for scores of masks, and is told them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

Units = tuple[int, ...]
"""Skipped units of a Space, ascending."""


@dataclass(frozen=True)
class Scores:
    """What a mask scored on the calibration text, teacher-forced; means over tokens.

    `dimr`: VIA-SD's overshoot cost (methods 1.7, Eq. 11), nats; `kl`: KL(full || slim), nats; `agreement`: share of
    equal first choices; `coverage`: share of the drafter's tokens that the ratio gate accepts within the stated error
    (without a drafter: of the full model's own choices); `tokens_per_s`: predicted from costs and acceptance; `share`:
    of the layers' cost, skipped.
    """

    dimr: float
    kl: float
    agreement: float
    coverage: float
    tokens_per_s: float
    share: float

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Scores:
        """Raises TypeError, ValueError."""
        return cls(**{key: float(value) for key, value in table.items()})

    def to_dict(self) -> dict[str, float]:
        return {key: round(float(value), 6) for key, value in asdict(self).items()}


class Search(Protocol):
    """A search over a Space: deterministic given its seed and what it is told, so that it can be replayed to resume.

    `ask` and `tell` take turns. A mask asked for again is answered from the cache and costs nothing.
    """

    name: ClassVar[str]

    def ask(self) -> Units | None:
        """The units of the next mask to score; None when the search has ended."""
        ...

    def tell(self, units: Units, scores: Scores) -> None: ...

    def loss(self, scores: Scores) -> float:
        """What it makes small."""
        ...


def overshoot_loss(scores: Scores) -> float:
    """VIA-SD's."""
    return scores.dimr
