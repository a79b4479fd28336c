"""Plain decoding: the full model, one token a pass. What every other strategy is measured against."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from viasd_edge.strategies.common import Draft, Round, Stats, Target, Token, begin
from viasd_edge.strategies.sampling import Chooser


def plain(target: Target, prompt: Sequence[int], *, chooser: Chooser, max_tokens: int, stats: Stats) -> Iterator[Token]:
    """Yield the full model's tokens, as `chooser` takes them from its logits.

    Invariant at the top of every round: the cache holds tokens[:-1]; tokens[-1] is chosen but not evaluated.
    """
    tokens = begin(target, None, prompt, stats)
    for _ in range(max_tokens):
        started = time.perf_counter()
        [row] = target.decode(tokens[-1:])
        token = Token(chooser.choose(row), "full")
        seconds = time.perf_counter() - started
        stats.add(Round(len(tokens) - 1, Draft(), [token], 0, 0, full_width=1, full_seconds=seconds))
        tokens.append(token.id)
        yield token
