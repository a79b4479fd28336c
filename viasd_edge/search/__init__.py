"""Searches for masks, by name; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from viasd_edge.search.common import Search
    from viasd_edge.search.space import Space

SEARCHES = ("dimr", "swift", "knapsack", "sensitivity", "random", "even")
METHODS = (*SEARCHES, "conflayers")
"""Of `tune`: the last needs the model's confidences, too, see search.conflayers."""


def make(
    name: str,
    space: Space,
    share: float,
    *,
    seed: int = 0,
    confidences: Callable[[], NDArray[np.floating]] | None = None,
) -> Search:
    """A search for masks that save at most `share` of the layers' cost.

    `confidences` [n_layer, 2] of the model's blocks are asked for by conflayers alone. Raises ValueError for an unknown
    name, or for that search without them.
    """
    from viasd_edge.search.conflayers import ConfLayers
    from viasd_edge.search.dimr import Dimr, Swift
    from viasd_edge.search.simple import Even, Knapsack, Random, Sensitivity

    if name == ConfLayers.name and confidences is not None:
        return ConfLayers(space, confidences(), share)
    classes: tuple[Callable[..., Search], ...] = (Dimr, Swift, Knapsack, Sensitivity, Random, Even)
    kinds = dict(zip(SEARCHES, classes, strict=True))
    if name not in kinds:
        raise ValueError(f"search {name!r} is none of {', '.join(SEARCHES)}")
    return kinds[name](space, share, seed=seed)
