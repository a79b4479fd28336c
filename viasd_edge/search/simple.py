"""Searches without a model of what they search: random, evenly spaced, greedy by sensitivity, a knapsack of blocks."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from viasd_edge.search.common import Scores, Units, overshoot_loss
from viasd_edge.search.space import Space

_TRIES = 100  # draws until a space counts as exhausted
_STEPS = 20  # the knapsack's resolution: of the cost of the cheapest unit


class Random:
    """Units in random order, as many as the share allows."""

    name: ClassVar[str] = "random"
    loss = staticmethod(overshoot_loss)

    def __init__(self, space: Space, share: float, *, seed: int = 0) -> None:
        self._space = space
        self._share = share
        self._random = np.random.default_rng(seed)
        self._seen: set[Units] = set()

    def ask(self) -> Units | None:
        """One that was not told yet; None if there seems to be none left."""
        for _ in range(_TRIES):
            units = self._space.fill(self._random.permutation(self._space.size).tolist(), self._share)
            if units and units not in self._seen:
                return units
        return None

    def tell(self, units: Units, scores: Scores) -> None:  # noqa: ARG002  # learns nothing
        self._seen.add(units)


class Even:
    """One mask: units of one kind after the other, evenly spaced over the depth of the model, as many as fit."""

    name: ClassVar[str] = "even"
    loss = staticmethod(overshoot_loss)

    def __init__(self, space: Space, share: float, *, seed: int = 0) -> None:  # noqa: ARG002  # nothing is drawn
        self._space = space
        layers = space.n_layer - 2
        count = min(int(share * space.n_layer + 1e-9), layers)
        chosen = [int((i + 0.5) * layers / count) for i in range(count)] if count else []
        self._left = [tuple(2 * layer + kind for layer in chosen for kind in (0, 1)) if space.blocks else tuple(chosen)]

    def ask(self) -> Units | None:
        return self._left.pop() or None if self._left else None

    def tell(self, units: Units, scores: Scores) -> None:
        """Learns nothing."""


class Singles:
    """Every unit skipped alone: what the searches that start from sensitivity ask first."""

    def __init__(self, space: Space) -> None:
        self._left = deque(range(space.size))
        self.damage: NDArray[np.float64] = np.full(space.size, np.nan)

    def ask(self) -> Units | None:
        return (self._left.popleft(),) if self._left else None

    def tell(self, units: Units, scores: Scores) -> None:
        if len(units) == 1:
            self.damage[units[0]] = overshoot_loss(scores)


class Sensitivity:
    """Greedy: the units that do the least damage alone for the cost they save; one more at a time up to the share."""

    name: ClassVar[str] = "sensitivity"
    loss = staticmethod(overshoot_loss)

    def __init__(self, space: Space, share: float, *, seed: int = 0) -> None:  # noqa: ARG002  # nothing is drawn
        self._space = space
        self._share = share
        self._singles = Singles(space)
        self._asked = False

    def ask(self) -> Units | None:
        if (single := self._singles.ask()) is not None:
            return single
        if self._asked:
            return None
        self._asked = True
        return greedy(self._space, self._singles.damage, self._share) or None

    def tell(self, units: Units, scores: Scores) -> None:
        self._singles.tell(units, scores)


def greedy(space: Space, damage: NDArray[np.float64], share: float) -> Units:
    """Units by their damage for the cost they save, as many as the share allows."""
    return space.fill(np.argsort(damage / space.costs, kind="stable").tolist(), share)


class Knapsack:
    """The set of units that saves the share for the least damage, damages of single units added up.

    KnapSpec's dynamic programme over blocks by measured milliseconds (arXiv 2602.20217). It follows hidden states
    through every branch and keeps those closest to the full model's; we add up what skipping each block alone does to
    the output instead: one evaluation a block, no access to hidden states. What blocks do together is not seen, so
    the solution is scored like any other mask, and so are those for somewhat smaller shares.
    """

    name: ClassVar[str] = "knapsack"
    loss = staticmethod(overshoot_loss)

    def __init__(self, space: Space, share: float, *, seed: int = 0) -> None:  # noqa: ARG002  # nothing is drawn
        self._space = space
        self._singles = Singles(space)
        self._shares = deque([share, 0.9 * share, 0.8 * share])
        self._told: set[Units] = set()

    def ask(self) -> Units | None:
        if (single := self._singles.ask()) is not None:
            return single
        while self._shares:
            units = least_damage(self._space, self._singles.damage, self._shares.popleft())
            if units is not None and units not in self._told:
                return units
        return None

    def tell(self, units: Units, scores: Scores) -> None:
        self._singles.tell(units, scores)
        self._told.add(units)


def least_damage(space: Space, damage: NDArray[np.float64], share: float) -> Units | None:
    """The units whose cost comes as close to `share` from below as any, within a unit, and whose damage is least.

    Invariant: after unit i, least[c] is the least damage of a set of units 0..i that costs c steps.
    """
    step = float(space.costs.min()) / _STEPS
    weights = np.ceil(space.costs / step - 1e-6).astype(int).tolist()
    room = int(share / step + 1e-6)
    least = np.full(room + 1, np.inf)
    least[0] = 0.0
    taken = np.zeros((space.size, room + 1), bool)
    for i, (weight, harm) in enumerate(zip(weights, damage.tolist(), strict=True)):
        if weight > room:
            continue
        with_it = np.full_like(least, np.inf)
        with_it[weight:] = least[: room + 1 - weight] + harm
        taken[i] = with_it < least
        least = np.minimum(least, with_it)
    reached = np.flatnonzero(np.isfinite(least[1:])) + 1
    if not len(reached):
        return None
    nearest = reached[reached > reached[-1] - _STEPS]
    left = int(nearest[np.argmin(least[nearest])])
    units = []
    for i in reversed(range(space.size)):
        if taken[i, left]:
            units.append(i)
            left -= weights[i]
    return tuple(reversed(units))
