"""Sampling: the distribution, the seed, and that speculation does not change what is drawn (case 6)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from viasd_edge.policy import Fixed
from viasd_edge.strategies import Exact, Guess, Sampling, Stats, plain, speculative
from viasd_edge.strategies.sampling import Sampler

N_WORDS = 16


class ToyTarget:
    """A 16-word model: the next word's logits depend on the last two words."""

    def __init__(self) -> None:
        self.cache: list[int] = []
        self.n_ctx, self.n_full = 4096, 0
        self._table = np.random.default_rng(3).normal(0, 1.5, (N_WORDS, N_WORDS, N_WORDS)).astype(np.float32)

    @property
    def n_past(self) -> int:
        return len(self.cache)

    def decode(self, tokens, *, mask=None, keep_kv=False, rows=None):
        logits = []
        for token in tokens:
            self.cache.append(token)
            logits.append(self.row(self.cache))
        return np.array(logits[len(logits) - (len(tokens) if rows is None else rows) :])

    def row(self, tokens):
        before, last = ([0, *tokens])[-2:]
        return self._table[before, last]

    def rewind(self, n_past):
        del self.cache[n_past:]

    def reset_work(self):
        pass


class AdversarialDrafter:
    """Always guesses the word that the target finds least likely, then the likeliest, by turns."""

    name = "adversarial"

    def __init__(self, target) -> None:
        self._target = target

    def begin(self, prompt):
        pass

    def guesses(self, tokens):
        sequence = list(tokens)
        while True:
            row = self._target.row(sequence)
            token = int(row.argmin() if len(sequence) % 2 else row.argmax())
            yield Guess(token, 1.0)
            sequence.append(token)


def draw(target, sampling, *, speculate, n=4):
    prompt = [1, 2]
    chooser = sampling.chooser(prompt)
    if not speculate:
        return [t.id for t in plain(target, prompt, chooser=chooser, max_tokens=n, stats=Stats())]
    planner = Fixed(AdversarialDrafter(target), draft_max=3)
    return [t.id for t in speculative(target, planner, prompt, rule=Exact(chooser), max_tokens=n, stats=Stats())]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=5),
        Sampling(temperature=0.7, top_k=5, seed=5),
        Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=5),
        Sampling(temperature=1.0, repeat_penalty=1.5, frequency_penalty=0.5, seed=5),
        Sampling(repeat_penalty=1.5),
    ],
)
def test_the_seed_gives_the_same_words_with_and_without_speculation(sampling):
    target = ToyTarget()
    assert draw(target, sampling, speculate=True, n=200) == draw(target, sampling, speculate=False, n=200)


def test_20000_draws_under_an_adversarial_drafter_have_the_targets_distribution():
    """Case 6b: chi-square for each of three positions; the later ones by exact enumeration of what came before."""
    target = ToyTarget()
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    words = np.array([draw(target, Sampling(**sampling, seed=n), speculate=True, n=3) for n in range(20_000)])
    sampler = Sampler(Sampling(**sampling, seed=0), [])

    def probabilities(*tokens):
        ids, chances = sampler.distribution(target.row([1, 2, *tokens]))
        return chances[np.argsort(ids)]

    first = probabilities()
    second = np.stack([probabilities(word) for word in range(N_WORDS)])  # [first, second]
    third = np.stack([[probabilities(one, two) for two in range(N_WORDS)] for one in range(N_WORDS)])
    expected = [first, first @ second, np.einsum("i,ij,ijk->k", first, second, third)]
    for position, chances in enumerate(expected):
        counts = np.bincount(words[:, position], minlength=N_WORDS)
        assert chisquare(counts, chances * len(words)).pvalue > 1e-3, position


def test_filters_keep_what_llama_cpp_keeps():
    """penalties, top-k, top-p at temperature 1, min-p, then the temperature."""
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.06, 0.04], np.float32))

    def kept(**options):
        options = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **options}
        return sorted(Sampler(Sampling(temperature=1.0, seed=0, **options), []).distribution(logits)[0].tolist())

    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.7) == [0, 1]
    assert kept(top_p=0.8) == [0, 1, 2]
    assert kept(min_p=0.2) == [0, 1, 2]
    assert kept(top_p=0.01) == [0]
    tokens, chances = Sampler(Sampling(temperature=0.5, top_k=2, top_p=1.0, seed=0), []).distribution(logits)
    np.testing.assert_allclose(chances, [0.8, 0.2], rtol=1e-5)  # squares of 2/3 and 1/3, normalised
    assert tokens.tolist() == [0, 1]


def test_penalties_look_at_recent_tokens_prompt_included():
    logits = np.array([2.0, 2.1, -1.0, 0.0], np.float32)
    sampler = Sampler(Sampling(repeat_penalty=2.0, repeat_last_n=2), [3, 1, 1])
    # 1 was seen twice, 3 is out of the window: 2.0 against 2.1 / 2; then 1 against 1.05, and so on
    assert [sampler.choose(logits) for _ in range(4)] == [0, 1, 1, 0]


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 2.0}, {"seed": -1}])
def test_impossible_parameters_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_a_seed_is_drawn_once_where_one_is_needed():
    assert Sampling().seeded().seed is None
    drawn = Sampling(temperature=1.0).seeded()
    assert drawn.seed is not None
    assert drawn.seeded() == drawn
