"""Measuring t(n): that it measures what it says, never how fast."""

from __future__ import annotations

import json

import pytest
import tiny_gguf
from click.testing import CliRunner

from viasd_edge.cli import cli
from viasd_edge.costs import CostReport, Weights, measure_costs
from viasd_edge.errors import MaskError, NativeLibraryError
from viasd_edge.mask import LayerMask

pytestmark = pytest.mark.native


@pytest.fixture
def tiny(tmp_path):
    return tiny_gguf.write(tmp_path / "tiny.gguf")


def test_ours_beside_stock(tiny, stock_library):
    report = measure_costs(tiny, widths=[1, 2, 5], repeats=2, stock=stock_library, n_threads=1)
    assert report.n == [1, 2, 5]
    assert len(report.ours_ms) == len(report.stock_ms) == 3
    assert all(ms > 0 for ms in (*report.ours_ms, *report.stock_ms, report.stock_load_s))
    assert report.memory_bandwidth_gbs > 0
    assert report.cost(report.ours_ms, 0) == 1


def test_weights_per_pass(tiny):
    """The embedding is looked up, not multiplied; float32 weights are four bytes each."""
    weights = Weights.read(tiny)
    n_bytes, n_macs = weights.per_pass()
    layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64
    assert n_macs == 4 * layer + len(tiny_gguf.TOKENS) * 64
    assert n_bytes == 4 * n_macs
    masked = weights.per_pass(LayerMask.parse("layers:1 ffn:3"))
    assert masked[1] == n_macs - layer - 3 * 96 * 64
    assert not weights.is_random
    assert Weights({}, "qwen2.5-7b q4_k_m with random weights").is_random


def test_a_stock_folder_without_a_library_is_named(tiny, tmp_path):
    with pytest.raises(NativeLibraryError, match=r"build_stock\.py"):
        measure_costs(tiny, widths=[1], repeats=1, stock=tmp_path)


def test_a_mask_must_fit(tiny):
    with pytest.raises(MaskError, match="layers 0-3"):
        measure_costs(tiny, widths=[1], repeats=1, mask=LayerMask.parse("layers:9"))


def test_the_command(tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("VIASD_STOCK_LIB", raising=False)
    arguments = ["bench", "cost", "-m", str(tiny), "--widths", "1-3,5", "-r", "1", "--mask", "layers:1"]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    answer = json.loads(result.stdout)
    assert answer["n"] == [1, 2, 3, 5]
    assert (answer["stock_ms"], answer["mask"]) == (None, "attn:1 ffn:1")
    assert {"ours_ms", "memory_bandwidth_gbs", "kernel"} <= set(answer)
    assert "VIASD_STOCK_LIB" in result.stderr
    assert "C(n)" in CliRunner().invoke(cli, arguments).stdout


@pytest.mark.parametrize("widths", ["", "0", "1-65", "x", "1-2-x", "5-3"])
def test_impossible_widths(widths):
    result = CliRunner().invoke(cli, ["bench", "cost", "--widths", widths])
    assert result.exit_code == 2


def test_shares_need_what_they_are_shares_of():
    report = CostReport("m", None, "none", 1, [2], [1.0], None, 0.1, None, 0.0, 0.0, 10, 10)
    assert (report.bandwidth_share, report.int8_share) == (None, None)
