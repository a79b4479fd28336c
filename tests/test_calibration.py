"""Calibration on positions made up for it, and what a mask keeps of it."""

from __future__ import annotations

import numpy as np
import pytest

from viasd_edge.calibration import best, candidates, forecast
from viasd_edge.curves import Curve, Curves
from viasd_edge.errors import EdgeError, MaskError
from viasd_edge.evaluation import Position, Summary, text_samples
from viasd_edge.mask import Calibration, LayerMask
from viasd_edge.strategies import GATES, Ratio, parse_gate
from viasd_edge.strategies.gate import TokenV3Gate

CURVES = Curves(draft=Curve((1,), (0.01,)), slim=Curve((1, 16), (0.05, 0.06)), full=Curve((1, 16), (0.1, 0.12)))


def position(*, right: bool, ratio: float, slim_right: bool = True, confidence: float = 0.99) -> Position:
    """The full model says 1; the drafter 1 or 2; the slim verifier 1 or 3 and gives the drafted token `ratio`."""
    slim = Summary(max=0.8, token_ratio=ratio)
    return Position(1, 1 if right else 2, 1 if slim_right else 3, Summary(confidence, 1.0), slim)


def test_a_gate_that_accepts_all_is_as_wrong_as_the_drafter():
    sample = [position(right=i % 10 > 0, ratio=0.5) for i in range(100)]
    found = forecast(Ratio(0.0, 0.0), [sample], CURVES)
    assert found.error == pytest.approx(0.1)
    assert (found.accepted, found.escalated) == (1.0, 0.0)


def test_a_gate_that_escalates_what_is_wrong_makes_no_error():
    sample = [position(right=i % 10 > 0, ratio=0.9 if i % 10 else 0.1) for i in range(100)]
    found = forecast(TokenV3Gate(0.3), [sample], CURVES)
    assert found.error == 0.0
    assert found.escalated == pytest.approx(0.1, abs=0.02)
    assert found.seconds > forecast(Ratio(0.0, 0.0), [sample], CURVES).seconds


def test_what_the_slim_verifier_rewrites_counts_as_its_error():
    sample = [position(right=False, ratio=0.5, slim_right=i % 4 > 0) for i in range(100)]
    found = forecast(Ratio(0.6, 0.3), [sample], CURVES)
    assert found.error == pytest.approx(0.25)
    assert found.accepted == 0.0


def test_after_an_escalation_the_full_model_decides_the_rest_of_the_block():
    block = [position(right=True, ratio=0.1), *(position(right=True, ratio=0.0) for _ in range(7))]
    found = forecast(TokenV3Gate(0.3), [block], CURVES)
    assert found.error == 0.0
    assert found.escalated == pytest.approx(1 / 8)


def test_catching_up_costs_what_was_kept_since_the_last_full_pass():
    sample = [position(right=True, ratio=0.1 if i % 32 == 31 else 0.9) for i in range(64)]
    kept, caught_up = (forecast(TokenV3Gate(0.3), [sample], CURVES, keep_kv=keep_kv) for keep_kv in (True, False))
    assert kept.escalated == caught_up.escalated > 0
    assert caught_up.seconds > kept.seconds
    assert caught_up.error == kept.error


def test_the_fastest_within_the_error_is_chosen():
    sample = [position(right=i % 20 > 0, ratio=0.9 if i % 20 else 0.4) for i in range(200)]
    forecasts = [forecast(gate, [sample], CURVES) for gate in candidates()]
    strict, lenient = best(forecasts, 0.001), best(forecasts, 0.2)
    assert strict.error <= 0.001 < lenient.error <= 0.2
    assert lenient.seconds <= strict.seconds
    with pytest.raises(EdgeError, match="exact mode"):
        best([entry for entry in forecasts if entry.error > 0.01], 0.001)


@pytest.mark.parametrize("name", GATES)
def test_candidates_of_every_kind(name):
    gates = list(candidates([name]))
    assert len(gates) > 5
    assert {gate.name for gate in gates} == {name}


def test_text_is_cut_into_samples():
    samples = text_samples(list(range(25)), n_prompt=2, n_tokens=6)
    assert [sample.prompt for sample in samples] == [[0, 1], [8, 9], [16, 17]]
    assert samples[1].tokens == [10, 11, 12, 13, 14, 15]


def calibration(error, gate="ratio:accept=0.9,escalate=0.5", draft="d"):
    return Calibration(draft, error, gate, keep_kv=True, measured={"error": 0.001})


def test_a_mask_keeps_its_calibrations(tmp_path):
    mask = LayerMask.parse("layers:1").with_calibration(calibration(0.01))
    mask = mask.with_calibration(calibration(0.05))
    mask = mask.with_calibration(calibration(0.05, "chow:alpha=0.1"))
    mask.save(tmp_path / "mine.json")
    loaded = LayerMask.load(tmp_path / "mine.json")
    assert loaded.calibrations == mask.calibrations
    assert [entry.error for entry in loaded.calibrations] == [0.01, 0.05]
    assert parse_gate(loaded.calibration("d", 0.1).gate).name == "chow"
    assert loaded.calibration("d", 0.02).error == 0.01
    for draft, tolerance in (("d", 0.001), ("other", 0.05)):
        with pytest.raises(MaskError, match="viasd-edge calibrate"):
            loaded.calibration(draft, tolerance)


def test_a_users_mask_comes_before_a_shipped_one(tmp_path, monkeypatch):
    from viasd_edge.names import load_mask, mask_names

    monkeypatch.setenv("VIASD_EDGE_MASKS", str(tmp_path))
    name = "qwen2.5-coder-1.5b-hand-picked"
    shipped = load_mask(name)
    shipped.with_calibration(calibration(0.5)).save(tmp_path / f"{name}.json")
    assert load_mask(name).calibrations[-1].error == 0.5
    assert mask_names().count(name) == 1


def test_summaries_answer_as_distributions_do():
    from viasd_edge.strategies.gate import RowDistribution

    row = np.array([1.0, 2.0, 0.5], np.float32)
    real = RowDistribution(row, 2)
    summary = Summary(real.max, real.ratio(2))
    assert summary.probability(2) == pytest.approx(real.probability(2))
