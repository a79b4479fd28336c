"""Drafters on fakes: right guesses from right caches, whatever was drafted before."""

from __future__ import annotations

from itertools import islice

import pytest
from fakes import N_VOCAB, FakeDrafter, FakeTarget, greedy_reference, next_token

from viasd_edge.drafters import (
    CascadeDrafter,
    ChainDrafter,
    GreedyDrafter,
    NgramDrafter,
    OwnCache,
    SharedCache,
    UntilEnd,
)
from viasd_edge.mask import LayerMask
from viasd_edge.strategies import Exact, Greedy, Stats, speculative

MASK = LayerMask.parse("layers:1")


def first(drafter, tokens, n):
    return [guess.id for guess in islice(drafter.guesses(tokens), n)]


def test_ngram_follows_the_longest_and_latest_match():
    drafter = NgramDrafter(shortest=2, longest=4)
    drafter.begin([])
    # "1 2 3" was followed by 7 once, "2 3" by 8 later
    assert first(drafter, [1, 2, 3, 7, 0, 2, 3, 8, 1, 2, 3], 1) == [7]
    assert first(drafter, [1, 2, 3, 7, 0, 2, 3, 8, 9, 2, 3], 1) == [8]
    assert first(drafter, [5, 6, 7, 5, 6, 8, 5, 6], 1) == [8]


def test_ngram_guesses_go_on_and_repeat_themselves():
    drafter = NgramDrafter(shortest=2, longest=4)
    drafter.begin([1, 2, 3, 4, 1, 2])
    assert first(drafter, [1, 2, 3, 4, 1, 2], 7) == [3, 4, 1, 2, 3, 4, 1]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4], [1, 2, 1]])
def test_ngram_without_a_match_has_no_guess(tokens):
    drafter = NgramDrafter(shortest=2, longest=4)
    drafter.begin([])
    assert first(drafter, tokens, 4) == []


def test_ngram_forgets_a_sequence_that_changed():
    drafter = NgramDrafter(shortest=2, longest=3)
    drafter.begin([1, 2, 3])
    assert first(drafter, [1, 2, 3, 1, 2], 1) == [3]
    assert first(drafter, [1, 9, 9, 1, 2], 1) == []  # 1 2 3 was never so


def test_ngram_agrees_with_a_search_by_hand():
    tokens, drafter = [], NgramDrafter(shortest=2, longest=5)
    drafter.begin([])

    def by_hand():
        for n in range(min(5, len(tokens) - 1), 1, -1):
            for at in range(len(tokens) - 1, n - 1, -1):
                if tokens[at - n : at] == tokens[-n:]:
                    return tokens[at]
        return None

    for i in range(600):
        tokens.append(next_token([i, i // 7]) % 4)
        assert first(drafter, tokens, 1) == ([] if by_hand() is None else [by_hand()])


def test_ngram_rounds_do_not_grow_with_the_context():
    """Counted, not timed: the index is asked at most once a length, the sequence compared over a bounded stretch."""

    class Counting(list):
        looked_at = 0

        def __getitem__(self, key):
            items = super().__getitem__(key)
            Counting.looked_at += len(items) if isinstance(key, slice) else 1
            return items

    counts = []
    for length in (200, 20_000):
        drafter = NgramDrafter()
        drafter.begin([next_token([i]) for i in range(length)])
        tokens = Counting([*(next_token([i]) for i in range(length)), 5])
        Counting.looked_at = 0
        first(drafter, tokens, 8)
        counts.append(Counting.looked_at)
    assert counts[0] == counts[1] < 200


def test_a_model_guesses_after_the_whole_sequence_whatever_it_drafted_before(prompt):
    drafter = GreedyDrafter("model", OwnCache(FakeTarget()))
    drafter.begin(prompt)
    tokens = list(prompt)
    for wrong in range(20):
        assert first(drafter, tokens, 1 + wrong % 5) == greedy_reference(tokens, 1 + wrong % 5)
        tokens += [(next_token(tokens) + wrong % 3) % N_VOCAB, 7][: 1 + wrong % 2]


def test_a_draft_of_the_longest_kind_is_forgotten(prompt):
    """63 drafted tokens, all wrong for what follows."""
    drafter = GreedyDrafter("model", OwnCache(FakeTarget()))
    drafter.begin(prompt)
    first(drafter, prompt, 63)
    tokens = [*prompt, 50]
    assert first(drafter, tokens, 3) == greedy_reference(tokens, 3)


def test_the_first_guess_after_a_prompt_needs_no_pass(prompt):
    """Nor does it again, as long as nothing else was asked; a longer draft and a next prompt need theirs."""
    runner = FakeTarget()
    drafter = GreedyDrafter("model", OwnCache(runner))
    drafter.begin(prompt)
    for passes, n in ((0, 1), (0, 1), (2, 3), (3, 1)):  # the last: its cache went on
        assert first(drafter, prompt, n) == greedy_reference(prompt, n)
        assert runner.full_passes == passes
    other = [*prompt, 5, 6]
    drafter.begin(other)
    assert first(drafter, other, 1) == greedy_reference(other, 1)
    assert runner.full_passes == 0


def test_a_draft_ends_where_the_answer_ends(prompt):
    reference = greedy_reference(prompt, 6)
    inner = FakeDrafter(next_token)
    drafter = UntilEnd(inner, lambda token: token == reference[3])
    drafter.begin(prompt)
    assert (drafter.name, inner.begun) == ("fake", prompt)
    assert first(drafter, prompt, 6) == reference[:4]
    assert inner.asked == 4


def test_two_drafters_share_one_cache(prompt):
    runner = FakeTarget()
    cache = OwnCache(runner)
    model = GreedyDrafter("model", cache)
    cascade = CascadeDrafter(FakeDrafter(next_token), cache, name="cascade")
    for drafter in (model, cascade):
        drafter.begin(prompt)
    assert runner.full_passes == 0  # counted from the end of the prompt
    for drafter in (model, cascade, model):
        assert first(drafter, prompt, 6) == greedy_reference(prompt, 6)


def slim_reference(prompt, n):
    """What the fake target says under a mask, on top of a cache that the full model wrote."""
    target = FakeTarget()
    target.decode(prompt[:-1])
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(target.decode(tokens[-1:], mask=MASK)[0].argmax()))
    return tokens[len(prompt) :]


def test_layerskip_drafts_in_the_targets_own_cache(prompt):
    target = FakeTarget()
    target.decode(prompt[:-1])
    drafter = GreedyDrafter("layerskip", SharedCache(target, MASK))
    assert first(drafter, prompt, 6) == slim_reference(prompt, 6)
    assert target.n_full == len(prompt) - 1
    target.rewind(len(prompt) - 1)
    longer = [*prompt, 8]
    target.decode([prompt[-1]])
    assert first(drafter, longer, 4) == slim_reference(longer, 4)


@pytest.mark.parametrize("make", ["layerskip", "filtered"])
def test_drafting_in_the_targets_cache_is_exact(prompt, make):
    target = FakeTarget()
    shared = SharedCache(target, MASK)
    drafter = GreedyDrafter("layerskip", shared)
    if make == "filtered":
        drafter = CascadeDrafter(GreedyDrafter("model", OwnCache(FakeTarget())), shared, name="filtered")

    class Planner:
        def begin(self, prompt):
            drafter.begin(prompt)

        def draft(self, tokens, room):
            from viasd_edge.strategies import Draft

            return Draft(drafter.name, list(islice(drafter.guesses(tokens), min(room, 6))))

        def learn(self, round_):
            assert target.n_past == target.n_full

    stats = Stats()
    tokens = speculative(target, Planner(), prompt, rule=Exact(Greedy()), max_tokens=60, stats=stats)
    assert [token.id for token in tokens] == greedy_reference(prompt, 60)
    assert 0 < stats.draft.accepted < stats.draft.tested


@pytest.mark.parametrize("leniency", [1.0, 1e6])
def test_a_cascade_replaces_what_its_judge_does_not_believe(prompt, leniency):
    wrong = FakeDrafter(lambda tokens: (next_token(tokens) + 1) % N_VOCAB, confidence=1.0)
    cascade = CascadeDrafter(wrong, OwnCache(FakeTarget()), name="cascade", leniency=leniency)
    cascade.begin(prompt)
    guesses = first(cascade, prompt, 8)
    if leniency == 1.0:
        assert guesses == greedy_reference(prompt, 8)
    else:  # all but every fifth, the judge's own
        assert guesses[0] == (next_token(prompt) + 1) % N_VOCAB


def test_a_chain_takes_the_first_that_has_a_guess(prompt):
    silent, talking = FakeDrafter(lambda _tokens: None), FakeDrafter(next_token)
    chain = ChainDrafter([silent, talking])
    chain.begin(prompt)
    assert first(chain, prompt, 3) == greedy_reference(prompt, 3)
    assert silent.begun == talking.begun == prompt
