"""Plain decoding: the full model, one token a pass. What every other strategy is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viasd_edge.strategies.common import Stats, Target, Token, begin, greedy


def plain(target: Target, prompt: Sequence[int], *, max_tokens: int, stats: Stats) -> Iterator[Token]:
    """Yield the full model's greedy tokens.

    Invariant at the top of every round: the cache holds tokens[:-1]; tokens[-1] is chosen but not evaluated.
    """
    tokens = begin(target, None, prompt, stats)
    for _ in range(max_tokens):
        [chosen] = greedy(target.decode(tokens[-1:]))
        tokens.append(chosen)
        stats.rounds += 1
        stats.full_tokens += 1
        yield Token(chosen, "full")
