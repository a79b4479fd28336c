"""What a search may skip: whole layers, or attention and FFN blocks one by one; first and last layer are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from viasd_edge.mask import LayerMask


@dataclass(frozen=True)
class Space:
    """Units that can be skipped, numbered from 0 by layer; with `blocks`, a layer's attention before its FFN.

    `attention_cost` and `ffn_cost` are what a block costs, in any unit: shares of cost are of all the model's layers.
    """

    n_layer: int
    blocks: bool = False
    attention_cost: float = 1.0
    ffn_cost: float = 1.0

    def __post_init__(self) -> None:
        if self.n_layer < 3:  # noqa: PLR2004  # first and last are kept
            raise ValueError(f"a search needs a model of at least 3 layers, not {self.n_layer}")

    @property
    def size(self) -> int:
        """Number of units."""
        return (self.n_layer - 2) * (2 if self.blocks else 1)

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """Each unit's share of the cost of all layers, float64 [size]."""
        layer = self.attention_cost + self.ffn_cost
        unit = [self.attention_cost / layer, self.ffn_cost / layer] if self.blocks else [1.0]
        return np.tile(unit, self.n_layer - 2) / self.n_layer

    @cached_property
    def is_attention(self) -> NDArray[np.bool_]:
        """Which units are attention blocks, bool [size]; none of whole layers."""
        return np.arange(self.size) % 2 == 0 if self.blocks else np.zeros(self.size, bool)

    def share(self, units: Iterable[int]) -> float:
        """The share of the layers' cost that skipping `units` saves."""
        return float(self.costs[list(units)].sum())

    def fills(self, units: Sequence[int], share: float) -> bool:
        """Whether `units` save no more than `share`, and not much less: fewer units always do less damage.

        Less by a quarter or by a unit is near enough: whole layers and the knapsack's steps do not come closer.
        """
        left = share + 1e-9 - self.share(units)
        return left >= 0 and (left < max(share / 4, self.costs.max()) or len(units) == self.size)

    def mask(self, units: Iterable[int]) -> LayerMask:
        """The mask that skips `units`."""
        chosen = sorted(set(units))
        if not self.blocks:
            layers = tuple(unit + 1 for unit in chosen)
            return LayerMask(layers, layers)
        return LayerMask(
            tuple(unit // 2 + 1 for unit in chosen if unit % 2 == 0),
            tuple(unit // 2 + 1 for unit in chosen if unit % 2 == 1),
        )

    def fill(self, order: Sequence[int], share: float) -> tuple[int, ...]:
        """Units taken in `order` as long as they save at most `share` of the layers' cost together, ascending."""
        left = share + 1e-9
        taken = []
        for unit in order:
            if self.costs[unit] <= left:
                left -= self.costs[unit]
                taken.append(unit)
        return tuple(sorted(taken))
