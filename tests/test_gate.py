from __future__ import annotations

import numpy as np
import pytest

from viasd_edge.strategies import Decision, RatioGate


def row(ratio: float) -> list[float]:
    """Logits under which token 1 has `ratio` of the top token's probability."""
    return [5.0, 5.0 + float(np.log(ratio)), -3.0]


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
    [found] = RatioGate(0.6, 0.3).judge(np.array([row(ratio)], np.float32), [1])
    assert found is Decision[decision]


def test_row_i_judges_token_i():
    logits = np.array([row(1.0), row(0.1), row(0.5)], np.float32)
    decisions = RatioGate().judge(logits, [1, 1, 1])
    assert decisions == [Decision.ACCEPT, Decision.ESCALATE, Decision.REGENERATE]


def test_top_choice_is_always_accepted():
    assert RatioGate(1.0, 1.0).judge(np.array([row(0.5)], np.float32), [0]) == [Decision.ACCEPT]


@pytest.mark.parametrize(("accept", "escalate"), [(0.3, 0.6), (1.1, 0.3), (0.6, -0.1)])
def test_impossible_thresholds_are_refused(accept, escalate):
    with pytest.raises(ValueError, match="escalate <= accept"):
        RatioGate(accept, escalate)
