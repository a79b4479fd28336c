"""Cheaper copies of drafters, on tiny files."""

from __future__ import annotations

import gguf
import pytest
import tiny_gguf

from viasd_edge.engine import Engine
from viasd_edge.errors import ModelError
from viasd_edge.requantize import requantized

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("VIASD_EDGE_CACHE", str(folder))
    return folder / "drafters"


@pytest.fixture
def tiny(tmp_path):
    return tiny_gguf.write(tmp_path / "tiny.gguf")


def test_the_file_itself_where_nothing_is_asked(tiny, cache):
    assert requantized(tiny, None) == tiny
    assert not cache.exists()


def test_auto_keeps_a_file_that_would_not_get_smaller(tiny, cache):
    copy = requantized(tiny, "q4_0")
    assert requantized(copy, "auto") == copy
    made = sorted(cache.iterdir())
    assert requantized(copy, "auto") == copy  # and remembers it
    assert sorted(cache.iterdir()) == made
    assert requantized(copy, "q4_0") != copy


@pytest.mark.parametrize("quant", ["q4_0", "auto"])
def test_every_matrix_is_requantised_once(tiny, cache, quant):
    copy = requantized(tiny, quant)
    made = copy.stat().st_mtime_ns
    kinds = {tensor.tensor_type for tensor in gguf.GGUFReader(copy).tensors if len(tensor.shape) > 1}
    assert kinds == {gguf.GGMLQuantizationType.Q4_0}
    assert requantized(tiny, quant) == copy
    assert copy.stat().st_mtime_ns == made
    assert list(cache.iterdir()) == [copy]


def test_another_file_of_the_same_name_gets_its_own_copy(tiny, tmp_path):
    (tmp_path / "other").mkdir()
    other = tiny_gguf.write(tmp_path / "other" / "tiny.gguf", layers=[0, 1])
    assert requantized(tiny, "q4_0") != requantized(other, "q4_0")


def test_a_broken_drafter_leaves_nothing_behind(tmp_path, cache):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match="cannot be requantised"):
        requantized(broken, "q4_0")
    assert list(cache.iterdir()) == []


def test_the_output_does_not_depend_on_the_drafters_quantisation(tiny):
    answers = set()
    for quant in (None, "q4_0"):
        with Engine.open(str(tiny), draft_model=str(tiny), mode="exact", draft_quant=quant, n_ctx=64) as engine:
            answers.add(tuple(engine.generate("abc", max_tokens=24, raw=True).token_ids))
    assert len(answers) == 1
