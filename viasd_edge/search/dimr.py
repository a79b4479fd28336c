"""DIMR, VIA-SD's mask search, and SWIFT's, which it takes its schedule from."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from viasd_edge.search.bayes import propose
from viasd_edge.search.common import Scores, Units, overshoot_loss
from viasd_edge.search.simple import Random, Singles, least_damage
from viasd_edge.search.space import Space

_FEW = 8  # masks of the share, fewer than which say nothing yet
_KAPPA = 1.0  # deviations that a Bayesian proposal may hope for
_PARENTS = 6  # of the best masks, whose neighbours are tried
_GREED = 0.4  # the chance that a neighbour of the best is tried and not of a worse one
_POOL = 240
_NOISE = (0.3, 1.0, 3.0, 1e3)  # by turns: how far a random order strays from that of sensitivity, in nats
_TRIES = 100
_LEANINGS = (0.0, 6.0, 2.0)  # by turns: how much dearer attention blocks look, in nats; with 6 they come last


class Dimr:
    """The mask of a given share of cost with the least overshoot (arXiv 2606.12243, Eq. 11-13; methods 1.7).

    Random proposals, every `theta`-th by Bayesian optimisation. Ours: proposals fill the share by measured cost; every
    unit is scored alone first, and random orders start from that sensitivity instead of from nothing (the paper's
    search has hours of a GPU, ours minutes of a laptop); from then on a random proposal is one of the best masks with a
    unit or two exchanged, and the Bayesian one is chosen among many of these and some random ones.
    """

    name: ClassVar[str] = "dimr"
    loss = staticmethod(overshoot_loss)

    def __init__(self, space: Space, share: float, *, seed: int = 0, theta: int = 2) -> None:
        if theta < 2:  # noqa: PLR2004  # some must be random
            raise ValueError(f"theta is {theta}; it must be at least 2")
        self._space = space
        self._share = share
        self._theta = theta
        self._random = np.random.default_rng(seed)
        self._singles = Singles(space)
        self._losses: dict[Units, float] = {}  # of masks of several units, in logarithms
        self._starts: list[Units] = []
        self._step = 0

    def ask(self) -> Units | None:
        if (single := self._singles.ask()) is not None:
            return single
        self._step += 1
        if self._step == 1:
            self._starts += self._first()
        while self._starts:
            if self._is_new(start := self._starts.pop()):
                return start
        if len(self._losses) < _FEW:
            return self._drawn()
        if self._step % self._theta == 0 and (pool := self._pool()):
            return propose(self._losses, pool, self._space, kappa=_KAPPA)
        return self._neighbour() or self._drawn()

    def tell(self, units: Units, scores: Scores) -> None:
        self._singles.tell(units, scores)
        if len(units) > 1:  # one alone says nothing of several; and the worst must not drown what tells the best apart
            self._losses[units] = math.log(self.loss(scores) + 1e-4)

    def _first(self) -> list[Units]:
        """What sensitivity says, the best last."""
        found = [self._space.fill(self._order(0.0, leaning), self._share) for leaning in _LEANINGS]
        summed = least_damage(self._space, self._singles.damage, self._share)
        return [units for units in [summed, *found] if units]

    def _is_new(self, units: Units) -> bool:
        """Not told yet; every unit alone was told before any other mask is sought."""
        return len(units) > 1 and units not in self._losses

    def _drawn(self) -> Units | None:
        """A random mask not seen yet; None if there seems to be none left."""
        for i in range(_TRIES):
            turn = self._step + i
            order = self._order(_NOISE[turn % len(_NOISE)], _LEANINGS[turn % len(_LEANINGS)])
            units = self._space.fill(order, self._share)
            if self._is_new(units):
                return units
        return None

    def _neighbour(self) -> Units | None:
        """One not seen yet of one of the best, the better the likelier; None if there seems to be none left."""
        parents = self._parents()
        for _ in range(_TRIES):
            rank = min(int(self._random.geometric(_GREED)), len(parents)) - 1
            units = self._exchanged(parents[rank])
            if self._is_new(units):
                return units
        return None

    def _order(self, noise: float, leaning: float = 0.0) -> list[int]:
        """All units, more or less by the damage they do alone for the cost they save.

        What attention blocks do adds up to far more than its sum, so orders lean away from them more or less.
        """
        prior = np.log(self._singles.damage / self._space.costs + 1e-6) + leaning * self._space.is_attention
        drawn = prior + noise * self._random.gumbel(size=self._space.size)
        return [int(unit) for unit in np.argsort(drawn, kind="stable")]

    def _parents(self) -> list[Units]:
        return sorted(self._losses, key=self._losses.__getitem__)[:_PARENTS]

    def _pool(self) -> list[Units]:
        """Masks not seen yet: the best with a unit or two exchanged, and random ones; in a fixed order."""
        parents = self._parents()
        found = dict.fromkeys(self._exchanged(parents[i % len(parents)]) for i in range(_POOL))
        found.update(dict.fromkeys(units for _ in range(_POOL // 4) if (units := self._drawn()) is not None))
        return [units for units in found if self._is_new(units)]

    def _exchanged(self, units: Units) -> Units:
        """Without one or two of its units, filled up again in random order."""
        dropped = set(self._random.choice(units, size=min(int(self._random.integers(1, 3)), len(units)), replace=False))
        kept = [unit for unit in units if unit not in dropped]
        others = [unit for unit in self._order(_NOISE[1]) if unit not in units]
        return self._space.fill([*kept, *others], self._share)


class Swift:
    """The mask under which most tokens are the full model's (arXiv 2410.06916; methods 3.1).

    Random masks of one size, every 25th by a Bayesian proposal; ends at 95 % agreement or 300 masks without gain.
    Ours: masks have one cost, not one count, since an attention block costs a fraction of an FFN block; the Bayesian
    proposal is chosen among random masks by a regression, not by a Gaussian process over all switches.
    """

    name: ClassVar[str] = "swift"
    interval: ClassVar[int] = 25
    enough: ClassVar[float] = 0.95
    patience: ClassVar[int] = 300

    def __init__(self, space: Space, share: float, *, seed: int = 0) -> None:
        self._space = space
        self._draws = Random(space, share, seed=seed)
        self._losses: dict[Units, float] = {}
        self._best = math.inf
        self._gainless = 0

    @staticmethod
    def loss(scores: Scores) -> float:
        """Tokens that are not the full model's."""
        return 1.0 - scores.agreement

    def ask(self) -> Units | None:
        if self._best <= 1.0 - self.enough or self._gainless > self.patience:
            return None
        if (len(self._losses) + 1) % self.interval == 0:
            drawn = [units for _ in range(_POOL) if (units := self._draws.ask()) is not None]
            if drawn:
                pool = list(dict.fromkeys(drawn))
                return propose(self._losses, pool, self._space, kappa=2.5)
        return self._draws.ask()

    def tell(self, units: Units, scores: Scores) -> None:
        self._draws.tell(units, scores)
        loss = self._losses[units] = self.loss(scores)
        self._gainless = 0 if loss < self._best else self._gainless + 1
        self._best = min(loss, self._best)
