"""Tiered decoding, VIA-SD (arXiv 2606.12243): drafter, slim verifier, full model. Lossy by design.

The paper does not say what happens to the KV cache, and its code is not public. Ours: one cache. Tokens that the
slim verifier lets pass are final. With `keep_kv` its skipped attention blocks still store K and V, and the cache
goes on from there (an approximation); without, the full model evaluates every pending token before it decides one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viasd_edge.mask import LayerMask
from viasd_edge.strategies.common import Drafter, Stats, Target, Token, begin, greedy, matching_prefix
from viasd_edge.strategies.gate import Decision, RatioGate


def tiered(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    mask: LayerMask,
    gate: RatioGate,
    keep_kv: bool,
    max_tokens: int,
    draft_max: int,
    stats: Stats,
) -> Iterator[Token]:
    """Yield tokens with the tier that proposed them. A block ends at its first changed token.

    Invariant at the top of every round: the cache holds tokens[:-1], the first target.n_full of them written by
    the full model; tokens[-1] is chosen but not evaluated. Re-established before anything is yielded.
    """
    tokens = begin(target, drafter, prompt, stats)
    end = len(prompt) + max_tokens
    while len(tokens) < end:
        n_past = len(tokens) - 1
        # 1. draft
        drafted = drafter.propose(tokens, min(draft_max, end - len(tokens)))
        block = [tokens[-1], *drafted[:-1]]  # the rows after these judge the drafted tokens
        # 2. gate by the slim verifier, in one pass; the full model decides from the first escalated token on
        decisions: list[Decision] = []
        if drafted:
            slim = target.decode(block, mask=mask, keep_kv=keep_kv)
            decisions = gate.judge(slim, drafted)
        n = _accepted(decisions)
        kept = [Token(token, "draft") for token in drafted[:n]]
        if n < len(decisions) and decisions[n] is Decision.REGENERATE:
            kept += [Token(int(slim[n].argmax()), "slim")]
        elif n < len(decisions) or not drafted:
            n_known = n_past if keep_kv else target.n_full
            kept += _escalate(target, [*tokens[n_known:-1], *block], n_known, drafted[n:])
            stats.escalated += bool(drafted)
        # 3. keep: a token's KV is there unless it was changed or is the last
        target.rewind(n_past + len(kept))
        tokens += [token.id for token in kept]
        _count(stats, drafted, kept, n_gated=min(n + 1, len(drafted)))
        yield from kept


def _accepted(decisions: Sequence[Decision]) -> int:
    return next((i for i, decision in enumerate(decisions) if decision is not Decision.ACCEPT), len(decisions))


def _escalate(target: Target, pending: list[int], n_known: int, drafted: list[int]) -> list[Token]:
    """The full model's decisions on `drafted`, by one pass over `pending`, all that follows the `n_known` tokens.

    Its last rows judge the drafted tokens (one row, its own choice, if there are none). The KV of the whole block
    is rewritten for free, and so are the choices after the first: used until one differs.
    """
    target.rewind(n_known)
    chosen = greedy(target.decode(pending, rows=max(len(drafted), 1)))
    n = matching_prefix(drafted, chosen)
    kept = [Token(token, "draft") for token in chosen[:n]]
    return kept if n == len(chosen) else [*kept, Token(chosen[n], "full")]


def _count(stats: Stats, drafted: list[int], kept: list[Token], n_gated: int) -> None:
    n_draft = sum(token.tier == "draft" for token in kept)
    stats.rounds += 1
    stats.regenerated += sum(token.tier == "slim" for token in kept)
    stats.full_tokens += sum(token.tier == "full" for token in kept)
    stats.gated += n_gated
    stats.changed += bool(drafted) and n_draft < n_gated
    stats.draft.drafted += len(drafted)
    stats.draft.tested += min(n_draft + 1, len(drafted))
    stats.draft.accepted += n_draft
