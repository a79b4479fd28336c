"""Files of a known shape with random weights: they load, decode, and have the sizes they should have."""

from __future__ import annotations

from dataclasses import replace

import gguf
import make_shape
import numpy as np
import pytest

from viasd_edge.model import Model
from viasd_edge.runner import Runner

pytestmark = pytest.mark.native

TINY = make_shape.Shape("qwen2", 300, 256, 8, 4, 2, 512, 128, 1e6, 1e-6)


@pytest.mark.parametrize("quant", make_shape.QUANTS)
@pytest.mark.parametrize("arch", ["qwen2", "llama"])
def test_a_tiny_shape_decodes(tmp_path, arch, quant):
    path = tmp_path / "tiny.gguf"
    make_shape.write(path, replace(TINY, arch=arch), quant, name="tiny")
    with Model(path) as model, Runner(model, n_ctx=32, n_threads=1) as runner:
        assert (model.n_vocab, model.n_layer, model.n_ctx_train) == (300, 8, 128)
        tokens = model.tokenize("Grüße,  \n", special=False)
        assert b"".join(map(model.piece, tokens)).decode() == "Grüße,  \n"
        logits = runner.decode(tokens[:1])
        assert np.isfinite(logits).all()
        assert logits.std() > 0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", make_shape.SCALES, ids=lambda kind: kind.name)
def test_random_blocks_are_sane_weights(kind):
    blocks = make_shape._weights("ffn_up", (64, 1024), kind, np.random.default_rng(1))
    weights = gguf.quants.dequantize(blocks.reshape(64, -1), kind)
    assert weights.shape == (64, 1024)
    assert abs(weights.mean()) < 0.005
    assert 0.01 < weights.std() < 0.04


def test_the_mix_of_a_real_file():
    """As llama.cpp quantises it: 4.68 GB, half the values and downward projections more precise."""
    entries = list(make_shape.tensors(make_shape.SHAPES["qwen2.5-7b"], "q4_k_m"))
    total = sum(make_shape._n_bytes(dimensions, kind) for _, dimensions, kind in entries)
    assert total == pytest.approx(4.68e9, rel=0.005)
    precise = [name for name, _, kind in entries if kind.name == "Q6_K"]
    assert sum("ffn_down" in name for name in precise) == sum("attn_v" in name for name in precise) == 14


def test_a_full_disk_is_told_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(make_shape, "HEADROOM", 1 << 60)
    with pytest.raises(SystemExit, match="no room for"):
        make_shape.write(tmp_path / "tiny.gguf", TINY, "q8_0", name="tiny")
    assert not list(tmp_path.iterdir())


def test_a_broken_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(make_shape, "_weights", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_shape.write(tmp_path / "tiny.gguf", TINY, "q8_0", name="tiny")
    assert not list(tmp_path.iterdir())
