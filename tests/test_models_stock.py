"""Stock llama.cpp on real weights: the decoder gives our tokens, the speculative example its counts."""

from __future__ import annotations

import pytest
from test_models import PROMPTS, top_logits

from viasd_edge.engine import Engine
from viasd_edge.errors import NativeLibraryError
from viasd_edge.stock import PEER, StockDecoder, StockSpeculative
from viasd_edge.strategies.common import matching_prefix

pytestmark = pytest.mark.model

NEAR_TIE = 0.5  # logits; two libraries, which quantise activations and round each in their own way


def test_stock_plain_is_our_plain_but_for_near_ties(pulled, stock_library):
    path = pulled["smollm2-135m"]
    with (
        StockDecoder(path, stock_library, n_ctx=1024, n_threads=None) as stock,
        Engine.open(str(path), mode="plain", n_ctx=1024) as engine,
    ):
        for prompt in PROMPTS:
            ours = engine.generate(prompt, max_tokens=48)
            theirs = stock.generate(ours.prompt_ids, max_tokens=48)
            at = matching_prefix(ours.token_ids, theirs.token_ids)
            if ours.token_ids != theirs.token_ids:
                low, high = top_logits(engine.target, [*ours.prompt_ids, *ours.token_ids[:at]])
                assert high - low < NEAR_TIE
            assert min(theirs.prompt_ms, theirs.predicted_ms) > 0
            assert theirs.peak_rss_bytes > path.stat().st_size / 2


def test_the_speculative_example_sees_the_same_prompt(pulled, peer_library):
    path = pulled["smollm2-135m"]
    with Engine.open(str(path), mode="plain", n_ctx=512) as engine:
        text = engine.prompt_text("Say \\n and \t.")
        n_prompt = len(engine.prompt_tokens("Say \\n and \t."))
    report = StockSpeculative(path, path, peer_library, n_ctx=512, n_threads=None).generate(text, max_tokens=16)
    assert report.prompt_n == n_prompt
    assert report.predicted_n >= 8
    assert report.acceptance > 0.5  # it drafts for itself
    assert report.predicted_per_second > 0


def test_a_drafter_of_another_tokenizer(pulled, peer_library):
    target, draft = pulled["smollm2-135m"], pulled["gemma-3-270m"]
    with pytest.raises(NativeLibraryError, match=rf"^{PEER} left with -?\d+: \S"):
        StockSpeculative(target, draft, peer_library, n_ctx=512, n_threads=None).generate("Hi", max_tokens=4)
