"""The Bayesian part of a search: scikit-optimize proposes one of a pool of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from skopt import Optimizer
from skopt.space import Integer
from skopt.space import Space as Dimensions

from viasd_edge.search.common import Units
from viasd_edge.search.space import Space


class _Pool(Dimensions):
    """A space that is sampled by looking into a pool: the masks of one cost are a sliver of all switch settings."""

    pool: Sequence[Sequence[int]]

    def rvs(self, n_samples: int = 1, random_state: Any = None) -> list[Sequence[int]]:  # noqa: ARG002
        return list(self.pool)


def propose(told: Mapping[Units, float], pool: Sequence[Units], space: Space, *, kappa: float) -> Units:
    """The mask of `pool` with the lowest confidence bound of its loss (mean - kappa * deviation).

    The surrogate is a Bayesian linear regression on `_described` masks, fitted anew to all that was told, in some
    milliseconds. Of 128 masks of one cost of Qwen2.5-Coder 1.5B, 40 of them told, it ranks the others at a correlation
    of 0.7 with their scores, a Gaussian process over all switches at 0.5 to 0.6, a forest of trees at 0.4 to 0.5.
    """
    switches = _dimensions(space.size)
    described = FunctionTransformer(_described, kw_args={"kinds": 2 if space.blocks else 1})
    optimizer = Optimizer(
        switches,
        base_estimator=make_pipeline(described, BayesianRidge()),
        n_initial_points=0,
        acq_func="LCB",
        acq_func_kwargs={"kappa": kappa},
        acq_optimizer="sampling",
        random_state=0,  # nothing is drawn
        avoid_duplicates=False,  # the pool holds none
    )
    optimizer.space = _Pool(switches)
    optimizer.space.pool = [_switches(units, space.size) for units in pool]
    optimizer.tell([_switches(units, space.size) for units in told], list(told.values()))
    return tuple(unit for unit, skipped in enumerate(optimizer.ask()) if skipped)


@cache
def _dimensions(size: int) -> list[Integer]:
    """A switch a unit; to make them takes longer than the regression."""
    return [Integer(0, 1, name=f"unit {unit}") for unit in range(size)]


def _switches(units: Units, size: int) -> list[int]:
    skipped = set(units)
    return [int(unit in skipped) for unit in range(size)]


def _described(switches: Sequence[Sequence[int]], *, kinds: int) -> NDArray[np.float64]:
    """Of masks [n, size]: every unit, how many there are, and both of two neighbours, of one kind or of one layer."""
    units = np.asarray(switches, float)
    layers = units.reshape(len(units), -1, kinds)
    in_depth = (layers[:, 1:] * layers[:, :-1]).reshape(len(units), -1)
    in_layer = layers[:, :, 1:].reshape(len(units), -1) * layers[:, :, :-1].reshape(len(units), -1)
    return np.concatenate([units, units.sum(axis=1, keepdims=True), in_depth, in_layer], axis=1)
