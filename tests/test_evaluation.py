"""What masks are scored on, with fakes: the full model's state everywhere, distributions cut to their top."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import N_VOCAB, FakeTarget

from viasd_edge.evaluation import (
    TOP,
    Position,
    Sample,
    Summary,
    Teacher,
    Tops,
    agreement,
    divergence,
    log_probabilities,
    log_sums,
    overshoot,
)
from viasd_edge.mask import LayerMask
from viasd_edge.search.objective import coverage
from viasd_edge.strategies.gate import RowDistribution

MASK = LayerMask.parse("layers:1")
TOKENS = [(7 * i) % N_VOCAB for i in range(75)]


def test_the_full_models_state_is_seen_everywhere(prompt):
    """Windows under the mask start from the full model's cache: the fake's logits depend on all of it."""
    teacher = Teacher(FakeTarget(), FakeTarget(), [Sample(prompt, TOKENS), Sample(prompt[:1], TOKENS[:20])])
    positions, short = teacher.positions(MASK)
    assert (len(positions), len(short)) == (len(TOKENS), 20)
    rows = FakeTarget().decode([*prompt, *TOKENS[:-1]])[len(prompt) - 1 :]
    assert [entry.full for entry in positions] == rows.argmax(axis=-1).tolist()
    assert [entry.draft for entry in positions] == rows.argmax(axis=-1).tolist()
    assert agreement(positions, "draft") == 1.0
    assert 0 < agreement(positions, "slim") < 1
    for entry in positions:
        if entry.slim == entry.draft:
            assert entry.slim_summary.ratio(entry.draft) == pytest.approx(1.0)


def test_a_mask_is_scored_alike_at_any_time_and_width(prompt):
    samples = [Sample(prompt, TOKENS), Sample(prompt[:2], TOKENS[:33])]
    teacher = Teacher(FakeTarget(), None, samples)
    first = teacher.positions(MASK)
    teacher.positions(LayerMask.parse("layers:2"))
    assert teacher.positions(MASK) == first
    views = teacher.views(MASK)
    quick = teacher.views(MASK, quick=True)
    assert [len(windows) for windows in quick] == [1, 1]
    assert quick[0][0].positions == views[0][0].positions
    assert quick[1][0].positions == views[1][1].positions


def test_summaries_answer_as_the_rows_do(prompt):
    """The slim verifier's row on top of what drafter and full model said, against the row itself."""
    [positions] = Teacher(FakeTarget(), FakeTarget(), [Sample(prompt, TOKENS)]).positions(MASK)
    target = FakeTarget()
    for i, entry in enumerate(positions[:16]):  # the first window
        target.rewind(0)
        target.decode([*prompt, *TOKENS][: len(prompt) - 1])
        [full] = target.decode([*prompt, *TOKENS][len(prompt) - 1 : len(prompt) + i], rows=1)
        target.rewind(len(prompt) - 1)
        [slim] = target.decode([*prompt, *TOKENS][len(prompt) - 1 : len(prompt) + i], mask=MASK, rows=1)
        row, drafted = RowDistribution(slim, entry.draft), RowDistribution(full, entry.draft)
        assert entry.slim_summary.max == pytest.approx(row.max, rel=1e-5)
        assert entry.slim_summary.probability(entry.draft) == pytest.approx(row.probability(entry.draft), rel=1e-5)
        assert entry.draft_summary.distance(None) == pytest.approx(drafted.distance(row), abs=1e-5)


def dense(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture
def pair():
    """Logits of a full model and of a slim verifier that has its own mind, [9, 4 TOP]."""
    random = np.random.default_rng(3)
    full = random.normal(0, 4, (9, 4 * TOP)).astype(np.float32)
    return full, full + random.normal(0, 2, full.shape).astype(np.float32)


def test_tops_hold_the_distribution(pair):
    full, _ = pair
    tops = Tops.of(full)
    expected = dense(full)
    assert np.exp(tops.logs[:, :-1]) == pytest.approx(np.take_along_axis(expected, tops.ids, axis=1), rel=1e-4)
    assert np.exp(tops.logs).sum(axis=1) == pytest.approx(np.ones(9), abs=1e-6)
    assert tops.first.tolist() == full.argmax(axis=1).tolist()
    assert np.exp(tops.logs[:, -1]).max() < 0.05
    assert all(array.base is None for array in (tops.ids, tops.logs, tops.first))  # none holds a whole vocabulary


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.3), (0.1, 0.9)])
def test_overshoot_is_equation_11(pair, alpha, beta):
    """Against the formula on all tokens: equal but for the rare ones, which count as one and can only lower it."""
    full, slim = pair
    of_full, of_slim = dense(full), dense(slim)
    above = np.log(of_slim) - np.log(of_full)
    exact = of_slim * np.maximum(np.log(1 - alpha) + above, 0) + of_full * np.maximum(np.log(beta) + above, 0)
    tops = Tops.of(full)
    found = overshoot(log_probabilities(slim, tops.ids, log_sums(slim)), tops.logs, alpha, beta)
    assert np.all(found <= exact.sum(axis=1) + 1e-6)
    assert found == pytest.approx(exact.sum(axis=1), rel=0.15, abs=0.02)
    kl = (of_full * -above).sum(axis=1)
    found_kl = divergence(tops.logs, log_probabilities(slim, tops.ids, log_sums(slim)))
    assert np.all(found_kl <= kl + 1e-6)
    assert found_kl == pytest.approx(kl, rel=0.1, abs=0.02)


def test_nothing_is_charged_for_being_the_full_model(pair):
    full, _ = pair
    tops = Tops.of(full)
    assert overshoot(tops.logs, tops.logs, 0.5, 0.3) == pytest.approx(np.zeros(9))
    assert divergence(tops.logs, tops.logs) == pytest.approx(np.zeros(9))


def position(*, right: bool, ratio: float) -> Position:
    return Position(1, 1 if right else 2, 1, Summary(0.9, 1.0), Summary(0.8, ratio))


@pytest.mark.parametrize(
    ("ratios", "rights", "error", "expected"),
    [
        ([0.9, 0.8, 0.7, 0.6], [True, True, False, True], 0.0, 0.5),
        ([0.9, 0.8, 0.7, 0.6], [True, True, False, True], 0.25, 1.0),
        ([1.0, 1.0, 0.7, 0.6], [True, False, True, True], 0.0, 0.0),  # what ties is accepted together
        ([0.9, 0.8], [False, False], 0.0, 0.0),
    ],
)
def test_coverage_is_what_one_threshold_can_accept(ratios, rights, error, expected):
    positions = [position(right=right, ratio=ratio) for right, ratio in zip(rights, ratios, strict=True)]
    assert coverage(positions, error) == expected
