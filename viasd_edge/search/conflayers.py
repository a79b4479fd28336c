"""ConfLayers (arXiv 2604.14612): skip the layers whose outputs are less confident than their neighbours'.

The decision rule is the released code's (Apache-2.0, described in our own words), in float64: its z-scores magnify what
float16 rounds away. Confidences come from passes that run anyway, see native/src/layer-probe.h: no trial passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from viasd_edge.search.common import Scores, Units
from viasd_edge.search.space import Space

LAMBDA_STEP = 0.05
_WIDEST = 5  # what a window can grow by, times the number of equal values the curvature starts with


def layer_scores(confidences: NDArray[np.floating]) -> NDArray[np.float64]:
    """Scores of layers 1 to n_layer - 2, float64: attention and FFN confidence added, tokens averaged.

    `confidences` is [..., n_layer, 2]; where a token has no value (NaN) the others count. NaN: no token has one.
    """
    tokens = np.asarray(confidences, np.float64)[..., 1:-1, :].sum(axis=-1).reshape(-1, confidences.shape[-2] - 2)
    known = ~np.isnan(tokens)
    counts = known.sum(axis=0)
    sums = np.where(known, tokens, 0.0).sum(axis=0)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def find_skip_layers(scores: NDArray[np.float64], lam: float) -> tuple[int, ...]:
    """The layers that the rule skips at `lam`, ascending; the higher it is, the fewer. `scores`: see `layer_scores`."""
    return tuple(int(i) + 1 for i in np.flatnonzero(critical_lambdas(scores) > lam))


def critical_lambdas(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lambda below which each layer is skipped, float64 [n_layer - 2].

    The rule skips a layer if its z-score is under mean - lambda * std of the z-scores in a window around it, itself
    left out, so the sets of all lambdas are nested. A window without spread (the first layer's has one neighbour)
    leaves lambda no say: infinite. Without neighbours the mean counts as 0.
    """
    n = len(scores)
    z = (scores - scores.mean()) / (scores.std() + 1e-6)
    found = np.empty(n)
    for i, half in enumerate(_windows(z) // 2):
        near = np.concatenate((z[max(0, i - half) : i], z[i + 1 : i + half + 1]))
        below = (near.mean() if len(near) else 0.0) - z[i]
        spread = near.std() if len(near) else 0.0
        found[i] = below / spread if spread > 0 else np.inf if below > 0 else -np.inf
    return found


def _windows(z: NDArray[np.float64]) -> NDArray[np.int64]:
    """Widths of the windows: 2 and more where the scores fluctuate (second-order gradient), and with depth."""
    n = len(z)
    if n < 2:  # noqa: PLR2004  # a gradient needs two
        return np.full(n, 2)
    bend = np.gradient(np.gradient(z))
    differing = np.flatnonzero(bend != bend[0])
    n_equal = int(differing[0]) if len(differing) else n
    bend = (bend - bend.min()) / (bend.max() - bend.min() + 1e-8)
    bend = np.clip(bend + 0.5 - bend.mean(), 0.0, 1.0)
    n_layer = n + 2
    # the bound by a third of the layers is for Qwen models in the released code; without it a small model is one window
    most = min(n_layer // 3, _WIDEST * n_equal)
    return 2 + (most * bend * np.arange(1, n + 1) / n_layer).astype(np.int64)


class ConfLayers:
    """Offline: the sets of the rule for one text, as lambda moves from 0 towards a share of the layers' cost.

    `confidences` is [n_layer, 2], means over the text's tokens in a full-model pass. Ends with the set at which the
    share is crossed: coming from above, all but the last save more than the share.
    """

    name: ClassVar[str] = "conflayers"

    def __init__(self, space: Space, confidences: NDArray[np.floating], share: float) -> None:
        if confidences.shape != (space.n_layer, 2):
            raise ValueError(f"confidences are {confidences.shape}, not {(space.n_layer, 2)}")
        scores = layer_scores(confidences)
        if np.isnan(scores).any():
            raise ValueError("confidences of some layers are missing")
        self._space = space
        self._critical = critical_lambdas(scores)
        self._share = share
        self._sets = self._walk()

    def ask(self) -> Units | None:
        return next(self._sets, None)

    def loss(self, scores: Scores) -> float:
        """The method keeps the set of which most drafted tokens stand."""
        return 1.0 - scores.agreement

    def tell(self, units: Units, scores: Scores) -> None:
        """The rule learns nothing from scores: whoever runs the search keeps the best set."""

    def _walk(self) -> Iterator[Units]:
        finite = self._critical[np.isfinite(self._critical)]
        start = self._units(0.0)
        rises = self._space.share(start) > self._share
        ends = max(0.0, *finite) if rises else min(0.0, *finite)  # beyond it nothing changes
        n_steps = int(np.ceil(abs(ends) / LAMBDA_STEP)) + 1
        asked: set[Units] = {()}
        for step in range(n_steps + 1):
            units = self._units(step * LAMBDA_STEP * (1 if rises else -1))
            if units not in asked:
                asked.add(units)
                yield units
            if (self._space.share(units) > self._share) != rises:
                return

    def _units(self, lam: float) -> Units:
        """The units of the rule's set; with separate blocks both of a layer."""
        layers = np.flatnonzero(self._critical > lam)
        if not self._space.blocks:
            return tuple(int(i) for i in layers)
        return tuple(int(unit) for i in layers for unit in (2 * i, 2 * i + 1))
