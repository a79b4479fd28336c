"""The Bayesian part of a search: scikit-optimize proposes one of a pool of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skopt import Optimizer
from skopt.learning import ExtraTreesRegressor
from skopt.space import Integer
from skopt.space import Space as Dimensions

from viasd_edge.search.common import Units

_TREES = 40


class _Pool(Dimensions):
    """A space that is sampled by looking into a pool: the masks of one cost are a sliver of all switch settings."""

    pool: Sequence[Sequence[int]]

    def rvs(self, n_samples: int = 1, random_state: Any = None) -> list[Sequence[int]]:  # noqa: ARG002
        return list(self.pool)


def propose(told: Mapping[Units, float], pool: Sequence[Units], *, size: int, seed: int, kappa: float = 1.96) -> Units:
    """The mask of `pool` with the lowest confidence bound of its loss (mean - kappa * deviation).

    The surrogate is a forest of extremely randomised trees over `size` switches, fitted anew to all that was told: a
    Gaussian process over as many binary dimensions takes longer than scoring a mask does.
    """
    switches = [Integer(0, 1, name=f"unit {unit}") for unit in range(size)]
    forest = ExtraTreesRegressor(n_estimators=_TREES, min_samples_leaf=2, random_state=seed)
    optimizer = Optimizer(
        switches,
        base_estimator=forest,
        n_initial_points=0,
        acq_func="LCB",
        acq_func_kwargs={"kappa": kappa},
        acq_optimizer="sampling",
        random_state=seed,
        avoid_duplicates=False,  # the pool holds none
    )
    optimizer.space = _Pool(switches)
    optimizer.space.pool = [_switches(units, size) for units in pool]
    optimizer.tell([_switches(units, size) for units in told], list(told.values()))
    return tuple(unit for unit, skipped in enumerate(optimizer.ask()) if skipped)


def _switches(units: Units, size: int) -> list[int]:
    skipped = set(units)
    return [int(unit in skipped) for unit in range(size)]
