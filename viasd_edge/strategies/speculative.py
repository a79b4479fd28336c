"""Speculative decoding: drafts verified by the full model, several tokens a pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from viasd_edge.strategies.common import Planner, Round, Stats, Target, Token, begin
from viasd_edge.strategies.rules import Rule


def speculative(
    target: Target, planner: Planner, prompt: Sequence[int], *, rule: Rule, max_tokens: int, stats: Stats
) -> Iterator[Token]:
    """Yield what `rule` keeps of every draft and the full model's next token: its own output under `Exact`.

    Invariant at the top of every round: the cache holds tokens[:-1], written by the full model; tokens[-1] is
    chosen but not evaluated. It is re-established before anything is yielded, so a consumer may stop anywhere.
    """
    tokens = begin(target, planner, prompt, stats)
    end = len(prompt) + max_tokens
    while len(tokens) < end:
        n_past = len(tokens) - 1
        started = time.perf_counter()
        # 1. draft; the last token of the budget is always the full model's own
        draft = planner.draft(tokens, end - len(tokens) - 1)
        target.rewind(n_past)  # a drafter may have worked in the target's own cache
        drafted_at = time.perf_counter()
        # 2. verify the whole draft in one full pass; kept is a prefix of it and the full model's own next token
        drafted = draft.ids
        kept = rule.verify(target.decode([tokens[-1], *drafted]), drafted)
        n = len(kept) - 1
        # 3. keep
        target.rewind(n_past + 1 + n)
        tokens += kept
        round_ = Round(
            n_past,
            draft,
            [*(Token(token, "draft") for token in kept[:n]), Token(kept[n], "full")],
            tested=min(n + 1, len(drafted)),
            accepted=n,
            full_width=1 + len(drafted),
            draft_seconds=drafted_at - started,
            full_seconds=time.perf_counter() - drafted_at,
        )
        planner.learn(round_)
        stats.add(round_)
        yield from round_.emitted
