"""The stock library's process: it answers, says what goes wrong, and ends."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
import tiny_gguf

from viasd_edge.errors import ModelError, NativeLibraryError, PromptError
from viasd_edge.stock import StockDecoder, StockMeter

pytestmark = pytest.mark.native


@pytest.fixture
def tiny(tmp_path):
    return tiny_gguf.write(tmp_path / "tiny.gguf")


def test_the_decoder_answers_until_it_is_closed(tiny, stock_library, prompt):
    with StockDecoder(tiny, stock_library, n_ctx=64, n_threads=1) as decoder:
        one = decoder.generate(prompt, max_tokens=8)
        assert len(one.token_ids) <= 8
        assert min(one.prompt_ms, one.predicted_ms, one.peak_rss_bytes, decoder.load_seconds) > 0
        assert decoder.generate(prompt, max_tokens=8).token_ids == one.token_ids
        with pytest.raises(PromptError, match=r"^stock llama.cpp: the prompt has 64 tokens"):
            decoder.generate([5] * 64, max_tokens=8)
        assert decoder.generate(prompt, max_tokens=3).token_ids == one.token_ids[:3]
        process = psutil.Process(decoder._process.pid)
    assert not process.is_running()
    decoder.close()


def test_a_model_that_cannot_be_loaded(tmp_path, stock_library):
    with pytest.raises(ModelError, match=r"^stock llama.cpp: .*none\.gguf: no such file"):
        StockDecoder(tmp_path / "none.gguf", stock_library, n_ctx=64, n_threads=1)


def test_a_folder_without_a_library(tiny, tmp_path):
    with pytest.raises(NativeLibraryError, match=r"^stock llama.cpp: no usable library in .*build_stock\.py$"):
        StockMeter(tiny, tmp_path, n_threads=1)


def test_a_killed_process_is_one_clear_error(tiny, stock_library, prompt):
    with StockDecoder(tiny, stock_library, n_ctx=64, n_threads=1) as decoder:
        os.kill(decoder._process.pid, signal.SIGTERM)
        for _ in range(2):
            with pytest.raises(NativeLibraryError, match=r"^the stock library's process ended.*build_stock\.py"):
                decoder.generate(prompt, max_tokens=8)
