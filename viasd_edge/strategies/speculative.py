"""Speculative decoding (Leviathan et al., arXiv 2211.17192), greedy: exact, whatever the drafter says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viasd_edge.strategies.common import Drafter, Stats, Target, Token, begin, greedy, matching_prefix


def speculative(
    target: Target, drafter: Drafter, prompt: Sequence[int], *, max_tokens: int, draft_max: int, stats: Stats
) -> Iterator[Token]:
    """Yield exactly the tokens the full model chooses greedily, several a pass where the drafter guesses right.

    Invariant at the top of every round: the cache holds tokens[:-1], written by the full model; tokens[-1] is
    chosen but not evaluated. It is re-established before anything is yielded, so a consumer may stop anywhere.
    """
    tokens = begin(target, drafter, prompt, stats)
    end = len(prompt) + max_tokens
    while len(tokens) < end:
        n_past = len(tokens) - 1
        # 1. draft; the last token of the budget is always the full model's own
        room = min(draft_max, end - len(tokens) - 1)
        drafted = drafter.propose(tokens, room) if room > 0 else []
        # 2. verify the whole draft in one full pass
        chosen = greedy(target.decode([tokens[-1], *drafted]))
        # 3. keep the matching prefix and the full model's own next token
        n = matching_prefix(drafted, chosen)
        target.rewind(n_past + 1 + n)
        tokens += chosen[: n + 1]
        stats.rounds += 1
        stats.full_tokens += 1
        stats.draft.drafted += len(drafted)
        stats.draft.tested += min(n + 1, len(drafted))
        stats.draft.accepted += n
        yield from (Token(token, "draft") for token in drafted[:n])
        yield Token(chosen[n], "full")
