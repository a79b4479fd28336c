from __future__ import annotations

import json

import pytest

from viasd_edge.errors import MaskError
from viasd_edge.mask import KEEP_KV, SKIP_ATTENTION, SKIP_FFN, LayerMask
from viasd_edge.names import load_mask, mask_names


@pytest.mark.parametrize(
    ("text", "attention", "ffn"),
    [
        ("attn:4-7 ffn:4-7", (4, 5, 6, 7), (4, 5, 6, 7)),
        ("layers:2", (2,), (2,)),
        ("attn:9,1-2,2", (1, 2, 9), ()),
        ("layers:1 ffn:5", (1,), (1, 5)),
        ("", (), ()),
    ],
)
def test_parse(text, attention, ffn):
    mask = LayerMask.parse(text)
    assert (mask.attention, mask.ffn) == (attention, ffn)
    assert LayerMask.parse(str(mask)) == mask


@pytest.mark.parametrize(
    "text", ["attn", "attn:", "attn:x", "heads:1", "attn:7-4", "attn:1-2-3", "ffn:-1", "attn:1,,2", "attn:0-99999"]
)
def test_malformed_text_is_refused_in_one_line(text):
    with pytest.raises(MaskError) as caught:
        LayerMask.parse(text)
    assert "\n" not in str(caught.value)


def test_flags():
    mask = LayerMask.parse("attn:0,2 ffn:1,2")
    assert list(mask.flags(4, keep_kv=False)) == [SKIP_ATTENTION, SKIP_FFN, SKIP_ATTENTION | SKIP_FFN, 0]
    assert list(mask.flags(4, keep_kv=True)) == [
        SKIP_ATTENTION | KEEP_KV,
        SKIP_FFN,
        SKIP_ATTENTION | KEEP_KV | SKIP_FFN,
        0,
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("layers:4", "layers 0-3"), ("attn:0-3", "every attention block"), ("", "skips nothing")],
)
def test_impossible_masks_are_refused(text, reason):
    with pytest.raises(MaskError, match=reason):
        LayerMask.parse(text).check(4, "f00d")


def test_a_mask_of_another_model_is_refused_by_name():
    mask = LayerMask(attention=(1,), fingerprint="beef", model="other")
    with pytest.raises(MaskError, match="found for other"):
        mask.check(4, "f00d")
    mask.check(4, "beef")


def test_file_round_trip(tmp_path):
    mask = LayerMask((1, 2), (2,), "m", "model", "beef", "hand-picked", {"agreement": 0.9})
    path = tmp_path / "m.json"
    path.write_text(json.dumps(mask.to_dict()))
    assert LayerMask.load(path) == mask
    assert LayerMask.load(path).scores == {"agreement": 0.9}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "skip_attention": [-1], "skip_ffn": []}',
        '{"format": 1, "skip_attention": "a", "skip_ffn": []}',
        "\0",
    ],
)
def test_bad_files_are_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(MaskError, match=r"bad\.json|mask format|layer numbers"):
        LayerMask.load(path)


def test_mask_names_load():
    names = mask_names()
    assert "qwen2.5-coder-1.5b-hand-picked" in names
    for name in names:
        assert load_mask(name).fingerprint


@pytest.mark.parametrize("text", ["no-such-mask", "missing.json", "../registry", "C:\\masks\\m.json"])
def test_an_unknown_mask_names_the_cure(text):
    with pytest.raises(MaskError, match=r"no mask of that name|mask term"):
        load_mask(text)
