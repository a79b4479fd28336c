"""What a search found, as tables, as JSON, as a picture."""

from __future__ import annotations

import json

import pytest

from viasd_edge.errors import EdgeError
from viasd_edge.mask import LayerMask
from viasd_edge.render import console
from viasd_edge.search.common import Scores
from viasd_edge.search.report import pareto, plot, tables
from viasd_edge.tuning import Found, Tuned

POINTS = {"attn:1": (0.1, 0.98), "attn:2": (0.1, 0.9), "ffn:1": (0.2, 0.95), "ffn:2": (0.3, 0.7), "ffn:3": (0.25, 0.6)}


def found(text: str, rate: float | None = None) -> Found:
    share, agreement = POINTS[text]
    return Found(LayerMask.parse(text), Scores(0.1, 0.2, agreement, 0.5, 12.0, share), rate)


@pytest.fixture
def tuned() -> Tuned:
    return Tuned(
        mask=found("ffn:1").mask,
        method="dimr",
        seconds=12.3,
        evaluations=5,
        measured=3,
        proposing=0.012,
        predicted=24.0,
        hand_picked=found("attn:2", 18.0),
        plain=15.0,
        stock_ratio=1.25,
        candidates=[found(text) for text in POINTS],
        finalists=[found("ffn:1", 24.0), found("attn:1", 20.0)],
    )


def test_the_front_holds_what_no_other_mask_beats():
    assert [str(entry.mask) for entry in pareto([found(text) for text in POINTS])] == ["attn:1", "ffn:1", "ffn:2"]
    assert pareto([]) == []


def test_ratios_are_to_stock_or_else_to_our_plain_decoding(tuned):
    report = json.loads(json.dumps(tuned.to_dict(), allow_nan=False))
    assert (report["predicted_ratio"], report["hand_picked_ratio"], report["ratio_to"]) == (2.0, 1.5, "stock")
    assert report["lossless"] is False
    tuned.stock_ratio = tuned.hand_picked = None
    report = tuned.to_dict()
    assert (report["predicted_ratio"], report["hand_picked_ratio"], report["ratio_to"]) == (1.6, None, "plain")


def test_the_table_sets_finalists_beside_the_hand_picked_mask(tuned, capsys):
    for table in tables(tuned):
        console(color=False).print(table)
    printed = capsys.readouterr().out
    for expected in ("dimr: 5 masks in 12 s", "LOSSY", "x stock", "ffn:1", "2.0", "attn:2", "1.5"):
        assert expected in printed


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_is_written(tuned, tmp_path, ending):
    path = tmp_path / f"masks.{ending}"
    plot(tuned, 6, path)
    assert path.stat().st_size > 5000


def test_the_picture_needs_matplotlib(tuned, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(EdgeError, match="pip install"):
        plot(tuned, 6, tmp_path / "masks.png")
