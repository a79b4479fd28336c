"""The layer-skip patch, on tiny models: every claim is checked against another file that must behave the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf

from viasd_edge._native import library_folder
from viasd_edge.errors import MaskError, ModelError
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model
from viasd_edge.runner import Runner

pytestmark = pytest.mark.native

TOKENS = [1, 300, 7, 262, 280, 301, 299, 12, 265]
ARCHITECTURES = ["llama", "llama-moe", "gemma3"]


def logits(path: Path, tokens=TOKENS, *, mask=None, keep_kv=False, n_threads=1) -> np.ndarray:
    """All logits of one pass over `tokens`, copied."""
    with Model(path) as model, Runner(model, n_ctx=256, n_threads=n_threads) as runner:
        return runner.decode(tokens, mask=mask, keep_kv=keep_kv).copy()


@pytest.fixture
def tiny(tmp_path):
    def write(arch="llama", **options):
        return tiny_gguf.write(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", arch, **options)

    return write


@pytest.mark.parametrize("keep_kv", [False, True])
@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_skipped_layer_is_as_if_it_were_not_in_the_file(tiny, arch, layer, keep_kv):
    """Any layer, the last one included, which also holds the selection of output rows."""
    masked = logits(tiny(arch), mask=LayerMask.parse(f"layers:{layer}"), keep_kv=keep_kv)
    if arch == "gemma3":  # without the layer, the sliding windows would be elsewhere
        zero = {f"blk.{layer}.post_attention_norm.weight", f"blk.{layer}.post_ffw_norm.weight"}
        reference = logits(tiny(arch, zero=zero.__contains__))
    else:
        reference = logits(tiny(arch, layers=set(range(4)) - {layer}))
    assert masked.tobytes() == reference.tobytes()
    assert masked.tobytes() != logits(tiny(arch)).tobytes()


@pytest.mark.parametrize(("mask", "tensors"), [("attn:1,3", "attn_output"), ("ffn:0,2", "ffn_down")])
@pytest.mark.parametrize("arch", ["llama", "llama-moe"])
def test_a_skipped_block_is_as_if_its_output_were_zero(tiny, arch, mask, tensors):
    layers = mask.split(":")[1].split(",")
    zero = {f"blk.{layer}.{tensors}{kind}.weight" for layer in layers for kind in ("", "_exps")}
    masked = logits(tiny(arch), mask=LayerMask.parse(mask))
    np.testing.assert_array_equal(masked, logits(tiny(arch, zero=zero.__contains__)))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_keep_kv_stores_what_the_full_layer_would_store(tiny, arch):
    """Reference: a twin whose layer 2 writes K and V but adds nothing; its cache is moved into the full model."""
    full = tiny(arch)
    silenced = {"gemma3": "post_attention_norm"}.get(arch, "attn_output")
    twin = tiny(arch, zero={f"blk.2.{silenced}.weight"}.__contains__)
    with Model(full) as model, Runner(model, n_ctx=256, n_threads=1) as runner:
        runner.decode(TOKENS, mask=LayerMask.parse("attn:2"), keep_kv=True, rows=0)
        kept = runner.decode([263]).copy()
        runner.rewind(0)
        runner.decode(TOKENS, rows=0)
        exact = runner.decode([263]).copy()
        runner.rewind(0)
        with Model(twin) as twin_model, Runner(twin_model, n_ctx=256, n_threads=1) as writer:
            writer.decode(TOKENS, rows=0)
            move_cache(writer, runner)
        reference = runner.decode([263]).copy()
    assert kept.tobytes() == reference.tobytes()
    assert kept.tobytes() != exact.tobytes()


def move_cache(source: Runner, target: Runner) -> None:
    import ctypes

    api = source._api
    size = api.llama_state_seq_get_size(source._context, 0)
    buffer = (ctypes.c_uint8 * size)()
    assert api.llama_state_seq_get_data(source._context, buffer, size, 0) == size
    assert api.llama_state_seq_set_data(target._context, buffer, size, 0) == size
    target.n_past = source.n_past


def test_same_width_two_masks_different_logits(tiny):
    """The graph of the last pass must not be reused under another mask; nor may anything else linger."""
    path = tiny()
    masks = [None, *(LayerMask.parse(text) for text in ("layers:1", "layers:2", "attn:1", "ffn:1"))]
    alone = [logits(path, mask=mask) for mask in masks]
    with Model(path) as model, Runner(model, n_ctx=256, n_threads=1) as runner:
        for i in [0, 1, 2, 1, 0, 3, 4, 3, 0]:
            runner.rewind(0)
            assert runner.decode(TOKENS, mask=masks[i]).tobytes() == alone[i].tobytes()
    assert len({one.tobytes() for one in alone}) == len(masks)


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "mamba"])
def test_nothing_skipped_equals_the_unpatched_library(tiny, stock_library, tmp_path, arch):
    """To the bit, with our kernels off: they round differently."""
    path = tiny(arch)
    stock, ours = (logits_of(folder, path, tmp_path) for folder in (stock_library, library_folder()))
    assert stock.shape == (len(TOKENS), len(tiny_gguf.TOKENS))
    assert ours.tobytes() == stock.tobytes()
    np.testing.assert_allclose(logits(path), stock, atol=0.05)  # upstream sums attention in halves, 2^-11 a step


def test_quantized_experts_run_upstreams_code(tiny, stock_library, tmp_path):
    """To the bit beside our kernels: they decline MUL_MAT_ID. Attention, which is ours, adds zeros here."""
    options = {"quantized": lambda name: "_exps" in name, "zero": lambda name: "attn_output" in name}
    path = tiny("llama-moe", **options)
    stock, ours = (logits_of(folder, path, tmp_path, "on") for folder in (stock_library, library_folder()))
    assert ours.tobytes() == stock.tobytes()
    floats = logits_of(stock_library, tiny("llama-moe", zero=options["zero"]), tmp_path)
    assert stock.tobytes() != floats.tobytes()


def logits_of(folder: Path, path: Path, tmp_path: Path, kernels: str = "off") -> np.ndarray:
    """Logits of one pass in a process of its own, by the library in `folder`; our kernels off, or "on"."""
    out = tmp_path / "logits.npy"
    command = [sys.executable, str(Path(__file__).with_name("stock_logits.py")), str(path), str(out)]
    environment = {**os.environ, "LLAMA_CPP_LIB_PATH": str(folder), "VIASD_KERNELS": kernels}
    subprocess.run([*command, *map(str, TOKENS)], env=environment, check=True, capture_output=True)
    return np.load(out)


@pytest.mark.parametrize("kinds", ["attn:3", "attn:0-2"])
def test_iswa_with_every_layer_of_one_kind_skipped(tiny, kinds):
    """The inputs of the other cache are then used by nothing."""
    masked = logits(tiny("gemma3"), mask=LayerMask.parse(kinds))
    assert np.isfinite(masked).all()


def test_all_attention_skipped_is_refused(tiny):
    with Model(tiny()) as model, Runner(model, n_ctx=256) as runner:
        with pytest.raises(MaskError, match="every attention block"):
            runner.decode(TOKENS, mask=LayerMask.parse("attn:0-3"))
        assert runner.decode(TOKENS).shape == (len(TOKENS), model.n_vocab)


def test_every_ffn_may_be_skipped(tiny):
    assert np.isfinite(logits(tiny(), mask=LayerMask.parse("ffn:0-3 attn:0-2"))).all()


def test_a_mask_of_the_wrong_length_is_refused(tiny):
    with Model(tiny()) as model, Runner(model, n_ctx=256) as runner:
        with pytest.raises(MaskError, match="number of layers"):
            model._native.set_layer_skip(runner._context, bytes(5))
        with pytest.raises(MaskError, match="unknown flag"):
            model._native.set_layer_skip(runner._context, bytes([8, 0, 0, 0]))
        with pytest.raises(MaskError, match="no context"):
            model._native.set_layer_skip(None, bytes(4))


def test_recurrent_models_are_refused_under_a_mask_and_run_without(tiny):
    with Model(tiny("mamba")) as model, Runner(model, n_ctx=256) as runner:
        assert model.is_recurrent
        assert not runner.can_rewind
        assert np.isfinite(runner.decode(TOKENS)).all()
        with pytest.raises(MaskError, match="recurrent"):
            runner.decode(TOKENS, mask=LayerMask.parse("layers:1"))
        with pytest.raises(ModelError, match="cannot drop tokens"):
            runner.rewind(3)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_block_of_a_mask_is_reached(tiny, arch):
    """What llama_layer_skip_check is for; an architecture that builds blocks by hand would raise here."""
    with Model(tiny(arch)) as model, Runner(model, n_ctx=256) as runner:
        runner.decode(TOKENS, mask=LayerMask.parse("layers:0-2"), keep_kv=True)


def test_rewind_and_chunks(tiny):
    """One pass, token by token, in chunks smaller than the prompt, and after a rewind: one result."""
    path = tiny()
    once = logits(path)
    with Model(path) as model, Runner(model, n_ctx=256, n_batch=4, n_threads=1) as runner:
        assert runner.decode(TOKENS, rows=2).tobytes() == once[-2:].tobytes()
        assert (runner.n_past, runner.n_full) == (9, 9)
        runner.rewind(5)
        assert (runner.n_past, runner.n_full) == (5, 5)
        rows = [runner.decode([token])[0].copy() for token in TOKENS[5:]]
    np.testing.assert_allclose(rows, once[5:], rtol=1e-4, atol=1e-4)


def test_n_full_counts_what_the_full_model_wrote(tiny):
    with Model(tiny()) as model, Runner(model, n_ctx=256) as runner:
        runner.decode(TOKENS, rows=0)
        runner.decode([263, 264], mask=LayerMask.parse("layers:1"), keep_kv=True)
        runner.decode([265])
        assert (runner.n_past, runner.n_full) == (12, 9)
        runner.rewind(4)
        assert (runner.n_past, runner.n_full) == (4, 4)
        assert (runner.work["full"].passes, runner.work["slim"].passes) == (2, 1)


def test_a_runner_refuses_what_does_not_fit(tiny):
    with Model(tiny()) as model, Runner(model, n_ctx=8) as runner:
        with pytest.raises(ValueError, match="do not fit the context of 8"):
            runner.decode(TOKENS)
        with pytest.raises(ValueError, match="cannot rewind"):
            runner.rewind(1)
        assert runner.decode([], rows=0).shape == (0, model.n_vocab)


def test_closing_twice_is_safe(tiny):
    model = Model(tiny())
    runner = Runner(model, n_ctx=64)
    for _ in range(2):
        runner.close()
        model.close()
