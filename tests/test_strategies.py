"""The decoding loops, on a fake model whose every token depends on its whole cache."""

from __future__ import annotations

import pytest
from fakes import GUESSES, FakeDrafter, FakeTarget, greedy_reference, next_token

from viasd_edge.mask import LayerMask
from viasd_edge.policy import Fixed
from viasd_edge.strategies import Exact, Greedy, Ratio, Stats
from viasd_edge.strategies import plain as run_plain
from viasd_edge.strategies import speculative as run_speculative
from viasd_edge.strategies import tiered as run_tiers

MASK = LayerMask.parse("layers:1")
BUDGETS = (0, 1, 2, 3, 5, 16, 40)


def plain(target, prompt, *, max_tokens, stats):
    return run_plain(target, prompt, chooser=Greedy(), max_tokens=max_tokens, stats=stats)


def speculative(target, drafter, prompt, *, max_tokens, draft_max, stats):
    planner = Fixed(drafter, draft_max=draft_max)
    return run_speculative(target, planner, prompt, rule=Exact(Greedy()), max_tokens=max_tokens, stats=stats)


def run_tiered(target, drafter, prompt, *, max_tokens=40, keep_kv=True, gate=None, draft_max=4, stats=None, slim=True):
    planner = Fixed(drafter, draft_max=draft_max, slim=slim)
    options = {"mask": MASK, "gate": gate or Ratio(0.6, 0.3), "keep_kv": keep_kv, "max_tokens": max_tokens}
    return run_tiers(target, planner, prompt, stats=stats or Stats(), **options)


@pytest.mark.parametrize("n", BUDGETS)
def test_plain_is_the_models_greedy_output(prompt, n):
    tokens = list(plain(FakeTarget(), prompt, max_tokens=n, stats=Stats()))
    assert [token.id for token in tokens] == greedy_reference(prompt, n)
    assert {token.tier for token in tokens} <= {"full"}


@pytest.mark.parametrize("n", BUDGETS)
@pytest.mark.parametrize("draft_max", [1, 2, 4, 16])
@pytest.mark.parametrize("guess", GUESSES)
def test_speculative_is_exact_for_every_drafter(prompt, guess, draft_max, n):
    drafter = FakeDrafter(GUESSES[guess])
    tokens = speculative(FakeTarget(), drafter, prompt, max_tokens=n, draft_max=draft_max, stats=Stats())
    assert [token.id for token in tokens] == greedy_reference(prompt, n)


@pytest.mark.parametrize("rounds", [speculative, run_tiered])
def test_a_wrong_rollback_changes_every_later_token(prompt, rounds):
    """The fake notices a bad cache: without this, the tests above could not fail."""
    target, drafter = FakeTarget(leaky=True), FakeDrafter(GUESSES["wrong"])
    if rounds is speculative:
        tokens = [t.id for t in speculative(target, drafter, prompt, max_tokens=20, draft_max=4, stats=Stats())]
    else:
        gate = Ratio(1.0, 1.0)  # all that is not slim's own first choice goes to the full model
        tokens = [t.id for t in run_tiered(target, drafter, prompt, max_tokens=20, gate=gate)]
    right = greedy_reference(prompt, 20)
    first = next(i for i, (one, other) in enumerate(zip(tokens, right, strict=True)) if one != other)
    assert first <= 2
    assert sum(one == other for one, other in zip(tokens[first:], right[first:], strict=True)) <= 2


def test_a_perfect_draft_is_accepted_exactly_so(prompt):
    stats = Stats()
    drafter = FakeDrafter(GUESSES["right"])
    tokens = list(speculative(FakeTarget(), drafter, prompt, max_tokens=8, draft_max=3, stats=stats))
    assert [token.tier for token in tokens] == ["draft"] * 3 + ["full"] + ["draft"] * 3 + ["full"]
    assert (stats.draft.drafted, stats.draft.tested, stats.draft.accepted, stats.rounds) == (6, 6, 6, 2)
    assert drafter.begun == prompt


def test_full_verification_in_tiered_mode_loses_nothing(prompt):
    """Drafts that the planner does not hand to the slim verifier."""
    for guess in GUESSES.values():
        for n in BUDGETS:
            tokens = run_tiered(FakeTarget(), FakeDrafter(guess), prompt, max_tokens=n, slim=False)
            assert [token.id for token in tokens] == greedy_reference(prompt, n)


def test_acceptance_by_position(prompt):
    stats = Stats()
    list(speculative(FakeTarget(), FakeDrafter(GUESSES["random"]), prompt, max_tokens=200, draft_max=4, stats=stats))
    tested = [tally.tested for tally in stats.by_position]
    assert len(tested) == 4
    assert tested == sorted(tested, reverse=True)
    assert sum(tested) == stats.draft.tested
    assert stats.by_drafter == {"fake": stats.draft}


def test_acceptance_counts_tested_tokens_only(prompt):
    stats = Stats()
    drafter = FakeDrafter(GUESSES["wrong"])
    list(speculative(FakeTarget(), drafter, prompt, max_tokens=4, draft_max=3, stats=stats))
    assert stats.draft.tested == 3  # the first token of three drafts; the last round had no room to draft
    assert stats.draft.drafted == 3 + 2 + 1


@pytest.mark.parametrize("stop_after", range(1, 20))
@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("mode", ["speculative", "tiered keep", "tiered catch-up"])
def test_a_consumer_may_stop_anywhere(prompt, mode, guess, stop_after):
    """After every early stop the cache is a prefix of the sequence it handed out."""
    target, drafter = FakeTarget(), FakeDrafter(GUESSES[guess])
    if mode == "speculative":
        stream = speculative(target, drafter, prompt, max_tokens=40, draft_max=4, stats=Stats())
    else:
        stream = run_tiered(target, drafter, prompt, keep_kv=mode.endswith("keep"))
    tokens = [next(stream).id for _ in range(stop_after)]
    known = target.cache
    stream.close()
    sequence = [*prompt, *tokens]
    overlap = min(len(known), len(sequence))
    assert known[:overlap] == sequence[:overlap]
    assert len(known) >= len(sequence) - 1
    if mode == "speculative":
        assert target.n_full == target.n_past


@pytest.mark.parametrize("n", BUDGETS)
@pytest.mark.parametrize("keep_kv", [True, False])
@pytest.mark.parametrize("guess", GUESSES)
def test_tiered_emits_exactly_the_budget(prompt, guess, keep_kv, n):
    tokens = list(run_tiered(FakeTarget(), FakeDrafter(GUESSES[guess]), prompt, max_tokens=n, keep_kv=keep_kv))
    assert len(tokens) == n


@pytest.mark.parametrize("keep_kv", [True, False])
def test_tiered_is_exact_when_the_slim_verifier_always_agrees(prompt, keep_kv):
    """Then what it regenerates is what the full model would say."""
    for guess in GUESSES.values():
        target = FakeTarget(slim_always_agrees=True)
        tokens = run_tiered(target, FakeDrafter(guess), prompt, keep_kv=keep_kv, gate=Ratio(0.6, 0.0))
        assert [token.id for token in tokens] == greedy_reference(prompt, 40)


def test_tiered_with_everything_escalated_is_exact(prompt):
    """A gate that accepts nothing but the slim verifier's first choice, and a slim verifier that may be wrong."""
    target = FakeTarget(slim_always_agrees=True)
    stats = Stats()
    tokens = list(run_tiered(target, FakeDrafter(GUESSES["wrong"]), prompt, gate=Ratio(1.0, 1.0), stats=stats))
    assert [token.id for token in tokens] == greedy_reference(prompt, 40)
    assert stats.escalated == stats.gated == stats.changed == 40
    assert {token.tier for token in tokens} == {"full"}


def test_tiered_uses_all_three_tiers(prompt):
    stats = Stats()
    tokens = list(run_tiered(FakeTarget(), FakeDrafter(GUESSES["random"]), prompt, max_tokens=200, stats=stats))
    by_tier = {tier: sum(token.tier == tier for token in tokens) for tier in ("draft", "slim", "full")}
    assert all(by_tier.values())
    assert by_tier == {"draft": stats.draft.accepted, "slim": stats.regenerated, "full": stats.full_tokens}
    assert stats.changed <= stats.gated
    assert stats.escalated < stats.gated


def test_a_block_ends_at_its_first_changed_token(prompt):
    """What follows a regenerated token was judged after another token, so it must not be used."""
    target = FakeTarget()
    stream = run_tiered(target, FakeDrafter(GUESSES["right"]), prompt, max_tokens=60, gate=Ratio(0.6, 0.0))
    tokens = list(prompt)
    for token in stream:
        if token.tier == "draft":
            assert token.id == next_token(tokens)
        else:
            assert token.id == (next_token(tokens) + 1) % 97  # the slim verifier's wrong choice
        tokens.append(token.id)


def test_catch_up_rewrites_what_the_slim_verifier_wrote(prompt):
    """Whatever the full model decides, every token it looks back on was written by itself."""
    target, seen = FakeTarget(), []
    decode = target.decode

    def watched(tokens, **options):
        rows = decode(tokens, **options)
        if options.get("mask") is None:
            seen.append(set(target.writers))
        return rows

    target.decode = watched
    list(run_tiered(target, FakeDrafter(GUESSES["random"]), prompt, max_tokens=100, keep_kv=False))
    assert len(seen) > 5
    assert all(writers == {"full"} for writers in seen)


def test_keep_kv_leaves_the_slim_verifiers_kv(prompt):
    target = FakeTarget()
    list(run_tiered(target, FakeDrafter(GUESSES["random"]), prompt, max_tokens=100, keep_kv=True))
    assert {"kept", "full"} == set(target.writers)
    assert target.n_full < target.n_past


def test_prompt_is_evaluated_by_the_full_model(prompt):
    target = FakeTarget()
    next(run_tiered(target, FakeDrafter(GUESSES["right"]), prompt))
    assert set(target.writers[: len(prompt) - 1]) == {"full"}
