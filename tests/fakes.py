"""Fakes that need no weights and no library."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from viasd_edge.strategies.common import Guess

N_VOCAB = 97


def next_token(tokens: Sequence[int], salt: int = 0) -> int:
    """What the fake full model says after `tokens`: a checksum, so that any wrong cache changes all that follows."""
    return zlib.crc32(bytes([salt]) + np.asarray(tokens, np.int32).tobytes()) % N_VOCAB


class FakeTarget:
    """A target whose logits are a function of its whole cache.

    Under a mask it is the slim verifier: it agrees with the full model except where a checksum says so, and is
    more or less sure of itself. Every cached token remembers who wrote it.
    """

    def __init__(self, *, leaky: bool = False, slim_always_agrees: bool = False) -> None:
        self.n_ctx = 4096
        self.cache: list[int] = []
        self.writers: list[str] = []
        self.n_full = 0
        self.full_passes = 0
        self._leaky = leaky  # a broken rewind keeps one token too many
        self._slim_always_agrees = slim_always_agrees

    @property
    def n_past(self) -> int:
        return len(self.cache)

    def decode(self, tokens, *, mask=None, keep_kv=False, rows=None):
        n_rows = len(tokens) if rows is None else rows
        if mask is None and self.n_full == len(self.cache):
            self.n_full += len(tokens)
        logits = np.zeros((len(tokens), N_VOCAB), np.float32)
        for i, token in enumerate(tokens):
            self.cache.append(token)
            self.writers.append("full" if mask is None else "kept" if keep_kv else "slim")
            logits[i] = self._logits(slim=mask is not None)
        self.full_passes += mask is None
        return logits[len(tokens) - n_rows :]

    def _logits(self, *, slim: bool) -> np.ndarray:
        right = next_token(self.cache)
        row = np.zeros(N_VOCAB, np.float32)
        row[right] = 8.0
        if slim and not self._slim_always_agrees:
            kind = next_token(self.cache, salt=1) % 4
            other = (right + 1) % N_VOCAB
            if kind == 1:  # another token, nearly as sure of the right one: regenerate
                row[other] = 8.8
            elif kind == 2:  # another token, far ahead: escalate
                row[other] = 12.0
        return row

    def rewind(self, n_past: int) -> None:
        assert 0 <= n_past <= len(self.cache)
        if self._leaky and n_past < len(self.cache):
            n_past += 1
        del self.cache[n_past:], self.writers[n_past:]
        self.n_full = min(self.n_full, n_past)

    def state(self):
        return list(self.cache), list(self.writers), self.n_full

    def restore(self, state) -> None:
        self.cache, self.writers = list(state[0]), list(state[1])
        self.n_full = state[2]

    def reset_work(self) -> None:
        self.full_passes = 0


class FakeDrafter:
    """Drafts by `guess(tokens)`; None ends the draft. Sure of everything unless told otherwise."""

    name = "fake"

    def __init__(self, guess, confidence: float = 1.0) -> None:
        self._guess = guess
        self._confidence = confidence
        self.begun: list[int] | None = None
        self.asked = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self.begun = list(prompt)

    def guesses(self, tokens: Sequence[int]):
        sequence = list(tokens)
        while (token := self._guess(sequence)) is not None:
            self.asked += 1
            yield Guess(token, self._confidence)
            sequence.append(token)


GUESSES = {
    "right": next_token,
    "wrong": lambda tokens: (next_token(tokens) + 1) % N_VOCAB,
    "empty": lambda _tokens: None,
    "random": lambda tokens: next_token(tokens) if next_token(tokens, salt=2) % 3 else 0,
    "gives up": lambda tokens: next_token(tokens) if next_token(tokens, salt=3) % 4 else None,
}


def greedy_reference(prompt: Sequence[int], n: int) -> list[int]:
    """What the fake full model generates."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]
