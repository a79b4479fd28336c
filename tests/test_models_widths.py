"""Logits do not depend on how many tokens are evaluated together: what "exact" rests on."""

from __future__ import annotations

import pytest

from viasd_edge.model import Model
from viasd_edge.runner import Runner

pytestmark = pytest.mark.model

PREFIX = 37
WIDTHS = (2, 3, 4, 5, 7, 8, 11, 16)
TEXT = "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\nHowever hard it rained, he went. " * 3


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma-3-270m"])
def test_logits_are_bit_identical_for_every_width_and_thread_count(pulled, our_kernels, name):
    with Model(pulled[name]) as model:
        tokens = model.tokenize(TEXT, special=False)[: PREFIX + 16]
        assert len(tokens) == PREFIX + 16
        rows = {}
        for n_threads in (2, 1):
            with Runner(model, n_ctx=256, n_threads=n_threads) as runner:
                runner.decode(tokens[:PREFIX], rows=0)
                for width in (1, *WIDTHS):
                    runner.rewind(PREFIX)
                    rows[n_threads, width] = [
                        row.tobytes()
                        for at in range(PREFIX, len(tokens), width)
                        for row in runner.decode(tokens[at : at + width])
                    ]
        alone = rows[2, 1]
        for key, found in rows.items():
            assert found == alone, (
                f"threads, width {key}: row {[a == b for a, b in zip(found, alone, strict=True)].index(False)}"
            )
