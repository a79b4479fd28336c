"""Gates: every rule on distributions for which its answer is plain."""

from __future__ import annotations

import numpy as np
import pytest

from viasd_edge.strategies import GATES, Decision, Guess, Ratio, gate_text, parse_gate
from viasd_edge.strategies.gate import RowDistribution, judge

ACCEPT, REGENERATE, ESCALATE = Decision.ACCEPT, Decision.REGENERATE, Decision.ESCALATE


def row(ratio: float) -> list[float]:
    """Logits under which token 1 has `ratio` of the top token's probability."""
    return [5.0, 5.0 + float(np.log(ratio)), -3.0]


def judged(gate, ratios, token=1):
    rows = np.array([row(ratio) for ratio in ratios], np.float32)
    return judge(gate, rows, [Guess(token, 1.0)] * len(ratios))


@pytest.mark.parametrize(
    ("ratio", "decision"),
    [
        (1.0, "ACCEPT"),
        (0.61, "ACCEPT"),
        (0.59, "REGENERATE"),
        (0.31, "REGENERATE"),
        (0.29, "ESCALATE"),
        (1e-9, "ESCALATE"),
    ],
)
def test_ratio_gate_bands(ratio, decision):
    assert judged(Ratio(0.6, 0.3), [ratio]) == [Decision[decision]]


def test_row_i_judges_token_i():
    assert judged(Ratio(), [1.0, 0.1]) == [ACCEPT, ESCALATE]
    assert judged(Ratio(), [1.0, 0.7, 0.5]) == [ACCEPT, ACCEPT, REGENERATE]


def test_nothing_is_judged_after_the_first_that_is_not_accepted():
    assert judged(Ratio(), [0.1, 1.0, 1.0]) == [ESCALATE]


def test_top_choice_is_always_accepted():
    assert judged(Ratio(1.0, 1.0), [0.5], token=0) == [ACCEPT]


@pytest.mark.parametrize(("accept", "escalate"), [(0.3, 0.6), (1.1, 0.3), (0.6, -0.1)])
def test_impossible_thresholds_are_refused(accept, escalate):
    with pytest.raises(ValueError, match="escalate <= accept"):
        Ratio(accept, escalate)


def logits(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32))


@pytest.mark.parametrize(
    ("gate", "draft", "slim", "expected"),
    [
        # token 1 is judged
        ("nested:inner=0.5,outer=0.3", (0.1, 0.9), (0.55, 0.45), ACCEPT),  # r = 0.82: the published pair is one line
        ("nested:inner=0.5,outer=0.3", (0.1, 0.9), (0.6, 0.4), ESCALATE),  # r = 0.67
        ("nested:inner=0.2,outer=0.6", (0.1, 0.9), (0.6, 0.4), REGENERATE),
        ("confident:accept=0.6,sure=0.9", (0.1, 0.9), (0.95, 0.05), REGENERATE),
        ("confident:accept=0.6,sure=0.9", (0.1, 0.9), (0.8, 0.2), ESCALATE),
        ("confident:accept=0.6,sure=0.9", (0.1, 0.9), (0.6, 0.4), ACCEPT),
        ("chow:alpha=0.2", (0.15, 0.85), (0.99, 0.01), ACCEPT),
        ("chow:alpha=0.1", (0.15, 0.85), (0.01, 0.99), ESCALATE),
        ("diff:alpha=0.1", (0.2, 0.8), (0.88, 0.12), ACCEPT),
        ("diff:alpha=0.1", (0.2, 0.8), (0.95, 0.05), ESCALATE),
        ("opt:alpha=0.5", (0.4, 0.6), (0.9, 0.1), ESCALATE),  # 0.6 < 0.9 - 0.5 * 0.5
        ("opt:alpha=0.7", (0.4, 0.6), (0.9, 0.1), ACCEPT),  # 0.6 >= 0.9 - 0.7 * 0.5
        ("token-v1:alpha=0.1", (0.5, 0.5), (0.55, 0.45), ACCEPT),
        ("token-v1:alpha=0.1", (0.7, 0.3), (0.55, 0.45), ESCALATE),
        ("token-v2:alpha=0.2", (0.5, 0.5), (0.55, 0.45), ACCEPT),
        ("token-v2:alpha=0.05", (0.5, 0.5), (0.55, 0.45), ESCALATE),
        ("token-v3:alpha=0.3", (0.5, 0.5), (0.55, 0.45), ACCEPT),
        ("token-v3:alpha=0.1", (0.5, 0.5), (0.55, 0.45), ESCALATE),
    ],
)
def test_every_rule(gate, draft, slim, expected):
    decision = parse_gate(gate).decide(RowDistribution(logits(*draft), 1), RowDistribution(logits(*slim), 1), 1)
    assert decision is expected


@pytest.mark.parametrize("name", GATES)
def test_every_gate_takes_a_guess_without_a_distribution_and_has_a_text_form(name):
    gate = parse_gate(name)
    assert parse_gate(gate_text(gate)) == gate
    assert judge(gate, logits(0.01, 0.99)[None], [Guess(1, 0.995)]) == [ACCEPT]


def test_distances():
    assert RowDistribution(None, 1).distance(RowDistribution(logits(0.3, 0.7), 1)) == pytest.approx(0.3)
    assert RowDistribution(None, 1, 0.6).distance(RowDistribution(logits(0.3, 0.7), 1)) == pytest.approx(0.4)
    one, other = RowDistribution(logits(0.3, 0.7), 1), RowDistribution(logits(0.5, 0.5), 1)
    assert one.distance(other) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["chow", "diff", "opt", "token-v1"])
def test_a_guess_without_a_distribution_is_as_sure_as_it_says(name):
    """N-gram guesses must not pass as certain where a gate trusts the drafter."""
    gate = parse_gate(f"{name}:alpha=0.1")
    assert judge(gate, logits(0.01, 0.99)[None], [Guess(1, 0.995)]) == [ACCEPT]
    assert judge(gate, logits(0.99, 0.01)[None], [Guess(1, 0.75)]) == [ESCALATE]


@pytest.mark.parametrize("text", ["magic", "ratio:alpha=1", "ratio:accept=high", "chow:alpha=nan", "ratio:accept=0.1"])
def test_gates_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=r"gate|thresholds"):
        parse_gate(text)
