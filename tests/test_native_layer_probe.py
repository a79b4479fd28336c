"""The layer-probe patch, on tiny models: its values against numpy, its passes against passes without it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import tiny_gguf

from viasd_edge.engine import Engine
from viasd_edge.errors import MaskError, ModelError
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model
from viasd_edge.modes import Parts
from viasd_edge.runner import Runner
from viasd_edge.search.online import OnlineSearch, Schedule

pytestmark = pytest.mark.native

TOKENS = [1, 300, 7, 262, 280, 301, 299, 12, 265]
ARCHITECTURES = ["llama", "llama-moe", "gemma3"]
KINDS = ["hidden", "lm-head"]


@pytest.fixture
def tiny(tmp_path):
    def write(arch="llama", **options):
        return tiny_gguf.write(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", arch, **options)

    return write


@pytest.fixture
def opened(tiny):
    """Runners of tiny models, closed at the end."""
    closing = []

    def open_(arch="llama", *, n_batch=512, **options):
        model = Model(tiny(arch, **options))
        runner = Runner(model, n_ctx=256, n_threads=2, n_batch=n_batch)
        closing.extend((runner, model))
        return runner

    yield open_
    for each in closing:
        each.close()


def confidence(values):
    values = values.astype(np.float64)
    p = np.exp(values - values.max())
    p /= p.sum()
    return 1 + (p * np.log(p)).sum() / np.log(len(values))


def reference(path, token, kind):
    """Confidences [n_layer, 2] of a first token of the "llama" file: attention to itself alone returns its value."""
    weights = {tensor.name: tensor.data.astype(np.float64) for tensor in gguf.GGUFReader(path).tensors}

    def norm(x, name):
        return x / np.sqrt((x**2).mean() + 1e-5) * weights[name]

    def seen(x):
        if kind == "hidden":
            return confidence(np.clip(x, np.log(np.finfo(np.float32).tiny), 88.7))
        return confidence(weights["output.weight"] @ norm(x, "output_norm.weight"))

    x = weights["token_embd.weight"][token]
    found = np.empty((tiny_gguf.N_LAYER, 2))
    for i in range(tiny_gguf.N_LAYER):
        value = weights[f"blk.{i}.attn_v.weight"] @ norm(x, f"blk.{i}.attn_norm.weight")
        heads = np.repeat(value.reshape(tiny_gguf.N_HEAD // 2, -1), 2, axis=0).ravel()
        attention = weights[f"blk.{i}.attn_output.weight"] @ heads
        x = x + attention
        inner = norm(x, f"blk.{i}.ffn_norm.weight")
        gate = weights[f"blk.{i}.ffn_gate.weight"] @ inner
        ffn = weights[f"blk.{i}.ffn_down.weight"] @ (
            gate / (1 + np.exp(-gate)) * (weights[f"blk.{i}.ffn_up.weight"] @ inner)
        )
        x = x + ffn
        found[i] = seen(attention), seen(ffn)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_what_numpy_computes(opened, kind):
    runner = opened()
    runner.set_probe(kind)
    for token in (1, 7, 300):
        runner.rewind(0)
        runner.decode([token])
        wanted = reference(runner.model.path, token, kind)
        assert runner.confidences().shape == (1, 4, 2)
        assert runner.confidences()[0] == pytest.approx(wanted, rel=3e-3)  # the cache holds values as float16
        assert 0 < wanted.min() < wanted.max() < 1


def is_output(name):
    return name.endswith(("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_zero_outputs_have_no_confidence(opened, arch):
    runner = opened(arch, zero=is_output)
    runner.set_probe("hidden")
    runner.decode(TOKENS)
    assert (runner.confidences() == 0).all()
    other = opened(arch)
    other.set_probe("hidden")
    other.decode(TOKENS)
    assert (other.confidences() > 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_are_the_same_bytes(opened, arch, kind):
    plain, probed = opened(arch), opened(arch)
    probed.set_probe(kind, last=3)
    mask = LayerMask.parse("layers:2")
    for n in (1, 1, 5, 9):  # the second pass of one token can reuse the graph
        for options in ({}, {"mask": mask}, {"rows": 1}):
            assert probed.decode(TOKENS[:n], **options).tobytes() == plain.decode(TOKENS[:n], **options).tobytes()
    probed.set_probe(None)
    assert probed.decode(TOKENS).tobytes() == plain.decode(TOKENS).tobytes()
    assert probed.confidences().shape == (0, 4, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_token_has_the_same_value_in_passes_of_any_width(opened, arch, kind):
    """One pass, one token at a time (the graph is reused), and batches of four within one decode."""
    whole, single, split = opened(arch), opened(arch), opened(arch, n_batch=4)
    for runner in (whole, single, split):
        runner.set_probe(kind)
    whole.decode(TOKENS)
    split.decode(TOKENS)
    wanted = whole.confidences()
    assert wanted.shape == (len(TOKENS), 4, 2)
    assert not np.isnan(wanted).any()
    assert len(np.unique(wanted)) == wanted.size
    for i, token in enumerate(TOKENS):
        single.decode([token])
        assert single.confidences()[0] == pytest.approx(wanted[i], rel=1e-3)
    found = split.confidences()
    assert found.shape == wanted.shape
    assert found[:, :-1] == pytest.approx(wanted[:, :-1], rel=1e-3)


def test_what_was_not_computed_is_not_a_number(opened):
    runner = opened()
    runner.set_probe("hidden")
    runner.decode(TOKENS, rows=2)  # the last layer's FFN sees two tokens: which, is not known to it
    unknown = np.zeros((len(TOKENS), 4, 2), bool)
    unknown[:, 3, 1] = True
    assert (np.isnan(runner.confidences()) == unknown).all()
    runner.set_probe("lm-head", last=2)
    runner.decode(TOKENS)
    unknown[:] = True
    unknown[-2:] = False
    assert (np.isnan(runner.confidences()) == unknown).all()


def test_passes_under_a_mask_are_not_measured(opened):
    """Nor do they leave a full pass of the same width with their graph, or it them."""
    runner = opened()
    runner.set_probe("hidden")
    mask = LayerMask.parse("attn:1 ffn:2")
    found = []
    for options in ({}, {"mask": mask}, {}, {"mask": mask}):
        runner.rewind(0)
        runner.decode(TOKENS, **options)
        found.append(runner.confidences())
    assert [len(values) for values in found] == [len(TOKENS), 0, len(TOKENS), 0]
    assert (found[0] == found[2]).all()
    assert not np.isnan(found[0]).any()


def test_a_changed_probe_changes_the_next_pass(opened):
    """Passes of one width follow each other: the graph of the one before must not run."""
    runner = opened()
    found = []
    for kind in ("hidden", "lm-head", None, "hidden"):
        runner.rewind(0)
        runner.set_probe(kind)
        runner.decode([7])
        found.append(runner.confidences())
    assert [len(values) for values in found] == [1, 1, 0, 1]
    assert (found[0] == found[3]).all()
    assert (found[0] != found[1]).all()


def test_a_search_finds_masks_and_stays_exact(opened):
    runner = opened()
    schedule = Schedule(skip_ratio=0.4, interval=2, window=8)
    search = OnlineSearch(4, schedule=schedule)
    parts = Parts(runner, mode="exact", search=search, policy="fixed", draft_max=4)
    engine = Engine(runner, mode="exact", search=search, policy="fixed", draft_max=4)
    assert engine.parts == parts
    plain = Engine(runner, mode="plain").generate(TOKENS, max_tokens=100)
    for _ in range(2):
        answer = engine.generate(TOKENS, max_tokens=100)
        assert answer.token_ids == plain.token_ids
    found = answer.to_dict()["search"]
    assert found["iterations"] > 3  # it went on from the first answer
    assert 0 < found["share"] < 1
    assert engine.mask is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_under_either_confidence(opened, kind):
    runner = opened()
    engine = Engine(runner, mode="exact", search=OnlineSearch(4, confidence=kind), policy="fixed")
    engine.generate(TOKENS, max_tokens=20)
    assert runner.confidences().shape[1:] == (4, 2)
    assert not np.isnan(runner.confidences()[-1]).any()


def test_a_search_that_cannot_be_gets_one_line(tiny):
    with pytest.raises(MaskError, match="needs --self"):
        Engine.open(str(tiny()), draft_model=str(tiny()), search="conflayers")
    with pytest.raises(ModelError, match="cannot drop tokens"):
        Engine.open(str(tiny("mamba")), self_speculation=True, search="conflayers")
    with pytest.raises(ModelError, match="at least 3 layers, not 2"):
        Engine.open(str(tiny(layers=range(2))), self_speculation=True, search="conflayers")
