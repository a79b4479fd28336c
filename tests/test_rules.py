"""Verification rules on logits for which the answer is plain."""

from __future__ import annotations

import numpy as np
import pytest

from viasd_edge.strategies import EntropyWindow, Exact, Greedy, Rollback, TokenV3


def rows(*probabilities):
    return np.log(np.array(probabilities, np.float32))


SURE_OF_0 = (0.98, 0.01, 0.01)
UNSURE = (0.5, 0.4, 0.1)  # first choice 0


def test_exact_keeps_what_the_model_chooses_and_one_more():
    logits = rows(SURE_OF_0, SURE_OF_0, SURE_OF_0)
    assert Exact(Greedy()).verify(logits, [0, 0]) == [0, 0, 0]
    assert Exact(Greedy()).verify(logits, [0, 1]) == [0, 0]
    assert Exact(Greedy()).verify(logits[:1], []) == [0]


def test_token_v3():
    logits = rows(UNSURE, SURE_OF_0, SURE_OF_0)
    assert TokenV3(0.3).verify(logits, [1, 0]) == [1, 0, 0]  # 0.4 >= 0.7 * 0.5
    assert TokenV3(0.1).verify(logits, [1, 0]) == [0]
    assert TokenV3(0.0).verify(logits, [0, 0]) == Exact(Greedy()).verify(logits, [0, 0])


def test_rollback():
    logits = rows(UNSURE, SURE_OF_0, SURE_OF_0)
    assert Rollback(2.0).verify(logits, [1, 1]) == [1, 0]  # 0.4 is 0.9 nats away, 0.01 is 4.6
    assert Rollback(5.0).verify(logits, [1, 1]) == [1, 1, 0]
    assert Rollback(0.0).verify(logits, [0, 0]) == [0, 0, 0]  # the first choice always stands


@pytest.mark.parametrize(
    ("drafted", "kept"),
    [
        ([1, 0, 0, 0], [1, 0, 0, 0, 0]),  # unsure, and the model goes along with the next two
        ([1, 0, 1, 0], [0]),  # it does not
        ([0, 0, 1, 0], [0, 0, 0]),  # too near the end to tell
        ([0, 1, 0, 0], [0, 0]),  # sure at position 1
    ],
)
def test_entropy_window(drafted, kept):
    logits = rows(UNSURE, SURE_OF_0, SURE_OF_0, SURE_OF_0, SURE_OF_0)
    assert EntropyWindow(entropy=0.3, window=3).verify(logits, drafted) == kept


def test_entropy_window_needs_an_unsure_model():
    logits = rows(UNSURE, SURE_OF_0, SURE_OF_0)
    assert EntropyWindow(entropy=2.0, window=2).verify(logits, [1, 0]) == [0]
