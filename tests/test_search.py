"""Searches on a toy whose right mask is known, and what all of them promise."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from viasd_edge.curves import Curve
from viasd_edge.mask import LayerMask
from viasd_edge.search import SEARCHES, make
from viasd_edge.search.bayes import propose
from viasd_edge.search.common import Scores
from viasd_edge.search.objective import Journal, self_speculation
from viasd_edge.search.prices import Prices
from viasd_edge.search.simple import least_damage
from viasd_edge.search.space import Space

PLANTED = (2, 5, 8)  # layers of 11 that do nothing; also where an even mask of three would skip
N_LAYER = 11


class Toy:
    """Every skipped layer does damage, its neighbour's skipping more; but the planted ones do none."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self._damage = random.uniform(0.2, 1.0, (N_LAYER, 2))
        self._damage[list(PLANTED)] = 0.0
        self.asked: list[LayerMask] = []

    def score(self, mask: LayerMask, share: float) -> Scores:
        self.asked.append(mask)
        damage = self._damage[list(mask.attention), 0].sum() + self._damage[list(mask.ffn), 1].sum()
        return Scores(damage, damage, float(np.exp(-damage)), 1 / (1 + damage), 10 / (1 + damage), share)


def run(name: str, space: Space, share: float, steps: int, seed: int = 0):
    """The best mask of a search, by its own loss and then by what it saves, and the toy that scored."""
    toy = Toy()
    search = make(name, space, share, seed=seed)
    found = []
    for _ in range(steps):
        units = search.ask()
        if units is None:
            break
        scores = toy.score(space.mask(units), space.share(units))
        search.tell(units, scores)
        found.append((search.loss(scores), -scores.share, space.mask(units)))
    return min(found, key=lambda entry: entry[:2])[2], toy


LUCK = {"random", "swift"}  # of blocks the right mask is one draw in 18564, of layers one in 84


@pytest.mark.parametrize(
    ("name", "blocks"),
    [*((name, False) for name in SEARCHES), *((name, True) for name in SEARCHES if name not in LUCK)],
)
def test_every_search_finds_the_planted_mask(name, blocks):
    space = Space(N_LAYER, blocks, attention_cost=1.0, ffn_cost=1.0)
    best, _ = run(name, space, len(PLANTED) / N_LAYER, steps=150)
    assert (best.attention, best.ffn) == (PLANTED, PLANTED)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", SEARCHES)
def test_what_every_search_promises(name, blocks):
    """Within the share, first and last layer kept, never the same twice, the same again with the same seed."""
    space = Space(12, blocks, attention_cost=1.0, ffn_cost=3.0)
    asked = []
    for _ in range(2):
        toy, search = Toy(), make(name, space, 0.3, seed=4)
        units = []
        while len(units) < 60 and (found := search.ask()) is not None:
            units.append(found)
            mask = space.mask(found)
            small = LayerMask(
                tuple(layer for layer in mask.attention if layer < N_LAYER),
                tuple(layer for layer in mask.ffn if layer < N_LAYER),
            )
            search.tell(found, toy.score(small, space.share(found)))
        asked.append(units)
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0])
    for found in asked[0]:
        assert 0 < space.share(found) <= 0.3 + 1e-9 or len(found) == 1
        mask = space.mask(found)
        assert not {0, 11} & {*mask.attention, *mask.ffn}


def test_other_seeds_search_elsewhere():
    space = Space(30, blocks=True)
    first, second = (make("random", space, 0.3, seed=seed) for seed in (1, 2))
    assert [first.ask() for _ in range(3)] != [second.ask() for _ in range(3)]


def test_a_search_that_is_not_there():
    with pytest.raises(ValueError, match="dimr, swift"):
        make("annealing", Space(5), 0.3)


@pytest.mark.parametrize("seed", range(5))
def test_the_knapsack_is_the_best_there_is(seed):
    """Against all sets of units of a small space that save as much."""
    random = np.random.default_rng(seed)
    space = Space(7, blocks=True, attention_cost=1.0, ffn_cost=float(random.integers(1, 4)))
    damage = random.uniform(0, 1, space.size)
    found = least_damage(space, damage, 0.4)
    assert found is not None
    subsets = [subset for n in range(space.size + 1) for subset in itertools.combinations(range(space.size), n)]
    as_much = [s for s in subsets if space.share(found) - 1e-6 <= space.share(s) <= 0.4 + 1e-6]
    assert damage[list(found)].sum() == pytest.approx(min(damage[list(subset)].sum() for subset in as_much))
    assert space.share(found) > 0.4 - 2 * space.costs.min()


def test_a_knapsack_too_small_for_any_unit():
    assert least_damage(Space(7), np.ones(5), 0.01) is None


def test_the_surrogate_follows_what_it_was_told():
    """Unit 3 is what hurts: of two masks that differ in it the one without is proposed."""
    random = np.random.default_rng(0)
    told = {}
    for _ in range(60):
        units = tuple(sorted(random.choice(10, 4, replace=False).tolist()))
        told[units] = float(3 in units) + 0.01 * units[0]
    assert propose(told, [(0, 3, 5, 8), (0, 4, 5, 8)], Space(12), kappa=0.0) == (0, 4, 5, 8)


@pytest.mark.parametrize("blocks", [False, True])
def test_the_surrogate_sees_neighbours(blocks):
    """No unit hurts but beside its neighbour in depth: a mask whose units stand apart is proposed."""
    random = np.random.default_rng(0)
    space = Space(12, blocks)
    told = {}
    for _ in range(80):
        units = tuple(sorted(random.choice(space.size, 4, replace=False).tolist()))
        told[units] = float(sum(unit + (2 if blocks else 1) in units for unit in units))
    together, apart = ((0, 2, 4, 6), (0, 5, 10, 15)) if blocks else ((0, 1, 2, 3), (0, 3, 6, 9))
    assert propose(told, [together, apart], space, kappa=0.0) == apart


def test_units_stand_for_blocks():
    assert str(Space(9).mask([6, 0])) == "attn:1,7 ffn:1,7"
    assert str(Space(9, blocks=True).mask([0, 3, 13])) == "attn:1 ffn:2,7"
    assert Space(9, blocks=True).is_attention.tolist() == [True, False] * 7


@pytest.mark.parametrize("blocks", [False, True])
def test_a_space_fills_a_share_in_order(blocks):
    space = Space(9, blocks, attention_cost=1.0, ffn_cost=2.0)
    assert space.share(range(space.size)) == pytest.approx(7 / 9)
    assert space.fill([4, 0, 1], space.share([4, 0])) == (0, 4)
    assert space.fill(range(space.size), 0.0) == ()


def test_what_fills_a_share():
    space = Space(12, blocks=True, attention_cost=1.0, ffn_cost=2.0)  # a layer is 1/12, an attention block 1/36
    assert space.fills((0, 1, 2, 3), 2 / 12)
    assert space.fills((1, 2, 3), 2 / 12)  # a unit less
    assert not space.fills((0, 1), 2 / 12)
    assert not space.fills((0, 1, 2, 3), 2 / 12 - 0.01)
    assert space.fills((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 6 / 12)  # a sixth less
    assert space.fills(tuple(range(space.size)), 1.0)


def test_a_model_without_layers_to_spare():
    with pytest.raises(ValueError, match="at least 3 layers"):
        Space(2)


SCORES = Scores(0.1, 0.2, 0.9, 0.8, 20.0, 0.15)


def test_a_journal_goes_on_where_it_was(tmp_path):
    path = tmp_path / "searches" / "one.jsonl"
    journal = Journal(path, {"texts": {"judged": []}})
    for layer in (3, 4):
        journal.add(LayerMask.parse(f"layers:{layer}"), SCORES)
    with path.open("ab") as file:
        file.write(b'{"mask": "attn:5", "sco')  # killed while writing
    again = Journal.load(path)
    assert again is not None
    assert again.header == journal.header
    assert again.scores == {"attn:3 ffn:3": SCORES, "attn:4 ffn:4": SCORES}
    again.add(LayerMask.parse("attn:5"), SCORES)
    third = Journal.load(path)
    assert third is not None
    assert list(third.scores) == ["attn:3 ffn:3", "attn:4 ffn:4", "attn:5"]


@pytest.mark.parametrize("text", [None, "", "no json", "[]", '{"format": 99}', "{}"])
def test_no_journal_to_go_on_with(tmp_path, text):
    path = tmp_path / "j.jsonl"
    if text is not None:
        path.write_text(text)
    assert Journal.load(path) is None


def test_scores_are_json(tmp_path):
    """Numpy's numbers are not."""
    journal = Journal(tmp_path / "j.jsonl", {})
    odd = Scores(*(np.float32(value) for value in (0.1, 0.2, 0.9, 0.8, 20.0, 0.15)))  # type: ignore[arg-type]
    journal.add(LayerMask(tuple(np.arange(2)), ()), odd)  # type: ignore[arg-type]
    for line in journal.path.read_text().splitlines():
        json.loads(line)


PRICES = Prices(Curve((1, 8), (0.1, 0.2)), (0.001, 0.002), (0.003, 0.004), None)


def test_prices_add_up():
    curves = PRICES.under(LayerMask.parse("attn:1-2 ffn:1-3"))
    assert curves.full == PRICES.full
    assert curves.slim.seconds == pytest.approx((0.1 - 0.011, 0.2 - 0.016))
    assert Prices.from_dict(json.loads(json.dumps(PRICES.to_dict()))) == PRICES


def test_self_speculation_pays_when_the_mask_is_right_and_cheap():
    full = Curve((1, 32), (0.1, 0.12))
    plain = pytest.approx(10.0)
    assert self_speculation(0.0, full, Curve((1,), (0.05,))) == plain
    assert self_speculation(0.99, full, Curve((1,), (0.1,))) == plain
    assert self_speculation(0.9, full, Curve((1,), (0.03,))) > 15
