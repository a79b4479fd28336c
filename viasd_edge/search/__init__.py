"""Searches for masks, by name; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from viasd_edge.search.common import Search
    from viasd_edge.search.space import Space

SEARCHES = ("dimr", "swift", "knapsack", "sensitivity", "random", "even")


def make(name: str, space: Space, share: float, *, seed: int = 0) -> Search:
    """A search for masks that save at most `share` of the layers' cost. Raises ValueError for an unknown name."""
    from viasd_edge.search.dimr import Dimr, Swift
    from viasd_edge.search.simple import Even, Knapsack, Random, Sensitivity

    classes: tuple[Callable[..., Search], ...] = (Dimr, Swift, Knapsack, Sensitivity, Random, Even)
    kinds = dict(zip(SEARCHES, classes, strict=True))
    if name not in kinds:
        raise ValueError(f"search {name!r} is none of {', '.join(SEARCHES)}")
    return kinds[name](space, share, seed=seed)
