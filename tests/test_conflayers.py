"""ConfLayers: the rule against a plain transcription of it, both searches on confidences whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from viasd_edge.errors import MaskError, ModelError
from viasd_edge.mask import LayerMask
from viasd_edge.search.common import Scores
from viasd_edge.search.conflayers import ConfLayers, find_skip_layers, layer_scores
from viasd_edge.search.online import OnlineSearch, Schedule, Searching
from viasd_edge.search.space import Space
from viasd_edge.strategies import Draft, Guess, Round, Token

NO_SCORES = Scores(0, 0, 0, 0, 0, 0)


def rule_as_written(scores, lam):
    """The loop of methods 2.2, step by step."""
    n_layer = len(scores) + 2
    z = (scores - scores.mean()) / (scores.std() + 1e-6)
    g = np.gradient(np.gradient(z))
    count = int(np.argmax(g != g[0])) or len(g)
    g = (g - g.min()) / (g.max() - g.min() + 1e-8)
    g = np.clip(g - g.mean() + 0.5, 0, 1)
    most = min(n_layer // 3, 5 * count)
    skipped = []
    for i in range(len(z)):
        half = (2 + int(most * g[i] * (i + 1) / n_layer)) // 2
        near = [*z[max(0, i - half) : i], *z[i + 1 : min(len(z), i + half + 1)]]
        threshold = np.mean(near) - lam * np.std(near) if near else 0.0
        if z[i] < threshold:
            skipped.append(i + 1)
    return tuple(skipped)


@pytest.mark.parametrize("n_layer", [4, 5, 12, 28, 80])
@pytest.mark.parametrize("lam", [-1.0, -0.4, 0.0, 0.05, 0.7, 3.0])
def test_the_rule_is_the_one_that_is_written(n_layer, lam):
    for seed in range(20):
        scores = np.random.default_rng([seed, n_layer]).normal(0.01, 0.003, n_layer - 2)
        assert find_skip_layers(scores, lam) == rule_as_written(scores, lam)


def test_equal_scores_skip_nothing():
    assert find_skip_layers(np.full(10, 0.01), 0.0) == ()
    assert find_skip_layers(np.array([0.01]), -1.0) == ()  # three layers: the one has no neighbours


def test_scores_are_means_over_the_tokens_that_have_a_value():
    confidences = np.full((3, 4, 2), np.nan)
    confidences[0] = 0.1
    confidences[1] = 0.2
    confidences[2, :, 0] = 0.9  # its FFN is unknown, so the token does not count
    assert layer_scores(confidences) == pytest.approx([0.3, 0.3])
    confidences[:, 1] = np.nan
    assert np.isnan(layer_scores(confidences)).tolist() == [True, False]


def planted(n_layer, layers, *, seed=0, level=0.02):
    """Confidences, [n_layer, 2], in which `layers` plainly have the lowest."""
    confidences = np.random.default_rng(seed).normal(level, level / 50, (n_layer, 2))
    confidences[list(layers)] = level / 4
    return confidences


def asked(search):
    sets = []
    while (units := search.ask()) is not None:
        sets.append(units)
        search.tell(units, NO_SCORES)
    return sets


@pytest.mark.parametrize("blocks", [False, True])
def test_the_offline_search_finds_the_planted_layers(blocks):
    layers = (4, 11, 17, 23)
    space = Space(28, blocks=blocks)
    sets = asked(ConfLayers(space, planted(28, layers), 4 / 28))
    assert space.mask(sets[-1]) == LayerMask(layers, layers)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_the_offline_search_goes_to_the_share_and_ends(share):
    space = Space(28)
    confidences = np.random.default_rng(3).normal(0.02, 0.004, (28, 2))
    sets = asked(ConfLayers(space, confidences, share))
    assert sets == asked(ConfLayers(space, confidences, share))
    assert len(set(sets)) == len(sets) > 1
    shares = [space.share(units) for units in sets]
    assert shares in (sorted(shares), sorted(shares, reverse=True))
    assert all((found > share) == (shares[0] > share) for found in shares[:-1])


def test_confidences_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"\(5, 2\), not \(6, 2\)"):
        ConfLayers(Space(6), np.zeros((5, 2)), 0.2)
    with pytest.raises(ValueError, match="missing"):
        ConfLayers(Space(6), np.full((6, 2), np.nan), 0.2)


N_LAYER = 28
SCHEDULE = Schedule(interval=4, window=20, patience=3)


def rows(layers, n=6, seed=0):
    """Confidences of n tokens that ask for `layers`."""
    return np.stack([planted(N_LAYER, layers, seed=seed) for _ in range(n)]).astype(np.float32)


def drafted(accepted, n=4):
    """A round under the mask: n guesses, the first `accepted` stood."""
    draft = Draft("layerskip", [Guess(1, 0.9)] * n)
    return Round(9, draft, [Token(1, "full")] * (accepted + 1), tested=min(accepted + 1, n), accepted=accepted)


def started(layers=(3, 9, 15, 21), **options):
    search = OnlineSearch(N_LAYER, schedule=Schedule(**{**vars(SCHEDULE), **options}))
    search.begin(rows(layers, n=8))
    return search


def measure(search, layers, accepted, rounds=4):
    for _ in range(rounds):
        search.learn(rows(layers, n=1), drafted(accepted))


def test_the_online_search_starts_from_the_prompt():
    layers = (3, 9, 15, 21)
    search = OnlineSearch(N_LAYER, schedule=SCHEDULE)
    before = search.mask
    assert 3 < len(before.attention) < 7  # evenly spread, before anything is known
    search.begin(rows(layers))
    assert set(layers) <= set(search.layers) != set(before.attention)
    [event] = search.take_events()
    assert (event.reason, event.iteration, event.mean_accepted) == ("start", 1, None)
    assert search.take_events() == []


def test_the_prompts_first_token_does_not_count():
    confidences = rows((3, 9, 15, 21))
    confidences[0] = planted(N_LAYER, range(10, 20), level=0.9)
    search = OnlineSearch(N_LAYER, schedule=SCHEDULE)
    search.begin(confidences)
    assert set(search.layers) >= {3, 9, 15, 21}


def test_without_confidences_it_keeps_its_evenly_spread_set():
    search = OnlineSearch(N_LAYER, schedule=SCHEDULE)
    before = search.layers
    search.begin(np.empty((0, N_LAYER, 2), np.float32))
    assert search.layers == before


def test_the_set_follows_the_text():
    search = started((3, 9, 15, 21))
    measure(search, (4, 10, 16, 22), accepted=2, rounds=8)
    for _ in range(4):
        search.learn(rows((5, 12, 18, 25), n=6), None)  # rounds that were not drafted under the mask
    assert search.iterations == 3
    measure(search, (5, 12, 18, 25), accepted=3)
    assert set(search.layers) >= {5, 12, 18, 25}
    assert search.iterations == 4


def test_the_set_stays_within_the_ratio():
    for seed in range(20):
        search = OnlineSearch(N_LAYER, schedule=SCHEDULE)
        noise = np.random.default_rng(seed).normal(0.02, 0.004, (6, N_LAYER, 2))
        search.begin(noise.astype(np.float32))
        share = len(search.layers) / (N_LAYER - 2)
        assert 0.15 <= share <= 0.15 + 0.1 + 2 / (N_LAYER - 2)


def test_the_best_set_is_kept_when_patience_ends():
    search = started()
    best = search.layers
    measure(search, (3, 9, 15, 21), accepted=3)
    while search.running:
        assert search.iterations < 20
        measure(search, (5, 12, 18, 25), accepted=1)
    assert search.layers == best == search.best.layers
    assert (search.best.accepted, search.best.acceptance) == (3.0, 0.75)
    assert [event.reason for event in search.take_events()] == ["start", *["interval"] * 3, "stopped"]


def test_a_bad_set_is_given_up_after_half_an_interval():
    search = started()
    first = search.layers
    measure(search, (3, 9, 15, 21), accepted=0, rounds=2)
    start, aborted = search.take_events()
    assert (aborted.reason, aborted.rounds, aborted.mean_accepted) == ("aborted", 2, 0.0)
    assert start.layers == first != aborted.layers  # the same text, but not the same set again
    assert search.best is None


def test_a_good_set_ends_the_search():
    search = started(good_accepted=2.0)
    first = search.layers
    for _ in range(4):
        search.learn(rows((5, 12, 18, 25), n=1), drafted(4))
    assert not search.running
    assert search.layers == first


def test_a_fall_of_acceptance_starts_it_again():
    search = started(good_accepted=2.0)
    measure(search, (3, 9, 15, 21), accepted=4)
    measure(search, (3, 9, 15, 21), accepted=3, rounds=8)  # 0.75 of it is no clear fall
    assert (search.running, search.restarts) == (False, 0)
    search.begin(rows((5, 12, 18, 25), n=20))  # another prompt
    measure(search, (5, 12, 18, 25), accepted=1)
    assert (search.running, search.restarts) == (True, 1)
    assert set(search.layers) >= {5, 12, 18, 25}


def test_it_ends_after_the_most_searches():
    search = started(max_searches=5, patience=1000)
    measure(search, (3, 9, 15, 21), accepted=2, rounds=100)
    assert (search.running, search.iterations) == (False, 5)


def test_too_few_layers_get_one_line():
    with pytest.raises(ModelError, match="at least 3 layers, not 2"):
        OnlineSearch(2)
    with pytest.raises(ValueError, match="skip_ratio is"):
        Schedule(skip_ratio=1.5)


def test_three_layers_are_searched_without_a_rule_to_follow():
    search = OnlineSearch(3, schedule=SCHEDULE)
    search.begin(np.full((5, 3, 2), 0.1, np.float32))
    assert search.layers == (1,)


def test_a_planner_shows_the_search_its_rounds():
    class Inner:
        def __init__(self):
            self.seen = []

        def begin(self, prompt):
            self.seen.append(prompt)

        def draft(self, tokens, room):
            return Draft(self.drafter, [Guess(5, 0.5)])

        def learn(self, round_):
            self.seen.append(round_)

    class Target:
        def confidences(self):
            return rows((3, 9, 15, 21), n=9)

    inner, search = Inner(), OnlineSearch(N_LAYER, schedule=SCHEDULE)
    planner = Searching(inner, search, Target())
    planner.begin([1, 2])
    inner.drafter = "layerskip"
    assert planner.draft([1, 2], 3).mask == search.mask
    for _ in range(3):
        planner.learn(drafted(2))
    inner.drafter = "ngram"
    other = drafted(2)
    other.draft.drafter = "ngram"
    planner.learn(other)
    assert len(inner.seen) == 5
    assert search.iterations == 1
    planner.learn(drafted(2))  # the fourth under the mask
    assert search.iterations == 2
    assert search.seconds > 0


def test_a_search_is_for_self_speculation():
    from viasd_edge.modes import Parts

    search = OnlineSearch(N_LAYER)
    for options in ({"mode": "plain"}, {"mode": "exact", "mask": LayerMask.parse("layers:1")}):
        with pytest.raises(MaskError, match="needs --self"):
            Parts(None, search=search, **options)
    with pytest.raises(MaskError, match="add --drafter layerskip"):
        Parts(None, mode="exact", search=search, drafters=("ngram",))
