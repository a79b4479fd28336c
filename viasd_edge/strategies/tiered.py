"""Tiered decoding, VIA-SD (arXiv 2606.12243): drafter, slim verifier, full model. Lossy by design.

The paper does not say what happens to the KV cache, and its code is not public. Ours: one cache. Tokens that the
slim verifier lets pass are final. With `keep_kv` its skipped attention blocks still store K and V, and the cache
goes on from there (an approximation); without, the full model evaluates every pending token before it decides one.
Where the paper's slim verifier judges every draft, ours judges those that the planner hands to it; the full model
verifies the others, which loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from viasd_edge.mask import LayerMask
from viasd_edge.strategies.common import Draft, Planner, Round, Stats, Target, Token, begin, greedy, matching_prefix
from viasd_edge.strategies.gate import Decision, Gate, judge


def tiered(
    target: Target,
    planner: Planner,
    prompt: Sequence[int],
    *,
    mask: LayerMask,
    gate: Gate,
    keep_kv: bool,
    max_tokens: int,
    stats: Stats,
) -> Iterator[Token]:
    """Yield tokens with the tier that proposed them. A block ends at its first changed token.

    Invariant at the top of every round: the cache holds tokens[:-1], the first target.n_full of them written by
    the full model; tokens[-1] is chosen but not evaluated. Re-established before anything is yielded.
    """
    tokens = begin(target, planner, prompt, stats)
    end = len(prompt) + max_tokens
    while len(tokens) < end:
        n_past = len(tokens) - 1
        started = time.perf_counter()
        # 1. draft
        draft = planner.draft(tokens, end - len(tokens))
        block = _Block(target, tokens, draft, started)
        # 2. decide: the slim verifier, then the full model from the first escalated token on
        if draft.slim and draft.guesses:
            decisions = block.gate(mask, gate, keep_kv=keep_kv)
        else:
            decisions = [Decision.ESCALATE] * max(len(draft.guesses), 1)
        if decisions[-1] is Decision.ESCALATE:
            block.escalate(n_past if keep_kv else target.n_full, room=end - len(tokens))
        # 3. keep: a token's KV is there unless it was changed or is the last
        target.rewind(n_past + len(block.kept))
        tokens += [token.id for token in block.kept]
        round_ = block.round(decisions)
        planner.learn(round_)
        stats.add(round_)
        yield from block.kept


@dataclass
class _Block:
    """A draft on its way through the tiers; `kept` are the tokens decided so far."""

    target: Target
    tokens: list[int]
    draft: Draft
    started: float

    def __post_init__(self) -> None:
        self.n_past = len(self.tokens) - 1
        self.drafted_at = self.gated_at = time.perf_counter()
        self.slim_width = self.full_width = 0
        self.kept: list[Token] = []

    def gate(self, mask: LayerMask, gate: Gate, *, keep_kv: bool) -> list[Decision]:
        """Judge by one slim pass: the rows after all but the last drafted token judge all of them."""
        ids = self.draft.ids
        pending = [self.tokens[-1], *ids[:-1]]
        logits = self.target.decode(pending, mask=mask, keep_kv=keep_kv)
        decisions = judge(gate, logits, self.draft.guesses)
        n = sum(decision is Decision.ACCEPT for decision in decisions)
        self.kept = [Token(token, "draft") for token in ids[:n]]
        if decisions[-1] is Decision.REGENERATE:
            self.kept.append(Token(int(logits[n].argmax()), "slim"))
        self.slim_width = len(pending)
        self.gated_at = time.perf_counter()
        return decisions

    def escalate(self, n_known: int, *, room: int) -> None:
        """Let the full model decide what of the draft is not kept yet, by one pass over all after `n_known` tokens.

        Its last rows judge the drafted tokens, the very last is a token of its own, if there is `room` for it. The KV
        of the whole block is rewritten for free.
        """
        judged = self.draft.ids[len(self.kept) :]
        pending = [*self.tokens[n_known:], *self.draft.ids]
        self.target.rewind(n_known)
        chosen = greedy(self.target.decode(pending, rows=len(judged) + 1))
        n = matching_prefix(judged, chosen)
        self.kept += [Token(token, "draft") for token in chosen[:n]]
        if len(self.kept) < room:
            self.kept.append(Token(chosen[n], "full"))
        self.full_width = len(pending)

    def round(self, decisions: Sequence[Decision]) -> Round:
        ended = time.perf_counter()
        n_gated = len(decisions) if self.slim_width else 0
        n_draft = sum(token.tier == "draft" for token in self.kept)
        return Round(
            self.n_past,
            self.draft,
            self.kept,
            tested=min(n_draft + 1, len(self.draft.guesses)),
            accepted=n_draft,
            gated=n_gated,
            changed=int(n_draft < n_gated),
            escalated=int(bool(n_gated) and decisions[-1] is Decision.ESCALATE),
            slim_width=self.slim_width,
            full_width=self.full_width,
            draft_seconds=self.drafted_at - self.started,
            slim_seconds=self.gated_at - self.drafted_at if self.slim_width else 0.0,
            full_seconds=ended - self.gated_at if self.full_width else 0.0,
        )
