"""How a token is taken from the full model's logits: the most likely one, or a draw.

One draw a token, from a generator of its own: the same seed gives the same text with and without speculation.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from viasd_edge.strategies.common import Row


class Chooser(Protocol):
    """Takes the next token of one sequence; called once for every token, in order."""

    def choose(self, logits: Row) -> int: ...


class Greedy:
    """The most likely token; the lowest id on a tie."""

    def choose(self, logits: Row) -> int:
        return int(logits.argmax())


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters, with llama.cpp's names, defaults and order: penalties, top-k, top-p, min-p, temperature.

    `temperature` 0 is greedy, whatever the rest says but the penalties. `top_k` 0, `top_p` 1, `min_p` 0 are off. The
    penalties look at the last `repeat_last_n` tokens, prompt included. `seed` None draws one.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": self.temperature >= 0,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repeat_penalty": self.repeat_penalty > 0,
            "repeat_last_n": self.repeat_last_n >= 0,
            "seed": self.seed is None or self.seed >= 0,
        }
        for name, holds in limits.items():
            if not holds:
                raise ValueError(f"{name} cannot be {getattr(self, name)}")

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far change the logits."""
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def is_greedy(self) -> bool:
        """Whether this is the model's own first choice, always."""
        return self.temperature == 0 and not self.penalises

    def seeded(self) -> Sampling:
        """The same with a seed, drawn now if there is none and one is needed."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return Sampling(**{**vars(self), "seed": secrets.randbits(32)})

    def chooser(self, prompt: Sequence[int]) -> Chooser:
        """A chooser for one sequence that starts with `prompt`."""
        return Greedy() if self.is_greedy else Sampler(self, prompt)


class Sampler:
    """Draws from the distribution that `sampling` makes of the logits."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        self._recent = deque(prompt, maxlen=sampling.repeat_last_n)
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: Row) -> int:
        tokens, probabilities = self.distribution(logits)
        if self._sampling.temperature == 0:
            token = int(tokens[probabilities.argmax()])
        else:
            cumulated = probabilities.cumsum()
            at = np.searchsorted(cumulated, self._random.random() * cumulated[-1], side="right")
            token = int(tokens[min(at, len(tokens) - 1)])
        self._recent.append(token)
        return token

    def distribution(self, logits: Row) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tokens that can be drawn, most likely first, and their probabilities; both [k]."""
        sampling = self._sampling
        row = self._penalised(logits)
        k = min(sampling.top_k or len(row), len(row))
        tokens = np.arange(len(row)) if k == len(row) else np.argpartition(row, -k)[-k:]
        tokens = tokens[np.lexsort((tokens, -row[tokens]))]  # ties by id: the order must not depend on the partition
        values = row[tokens].astype(np.float64)
        probabilities = _softmax(values)
        # top-p keeps the token that crosses the line, min-p always the first
        keep = int(np.searchsorted(probabilities.cumsum(), sampling.top_p)) + 1
        likely = int(np.count_nonzero(probabilities >= sampling.min_p * probabilities[0]))
        n = max(1, min(keep, likely))
        temperature = sampling.temperature or 1.0
        return tokens[:n], _softmax(values[:n] / temperature)

    def _penalised(self, logits: Row) -> Row:
        """As llama.cpp does it: a seen token's logit divided (multiplied if negative), then lowered."""
        if not (self._sampling.penalises and self._recent):
            return logits
        row = logits.copy()
        seen, counts = np.unique(np.asarray(self._recent), return_counts=True)
        values = row[seen]
        repeat = self._sampling.repeat_penalty
        values = np.where(values <= 0, values * repeat, values / repeat)
        row[seen] = values - counts * self._sampling.frequency_penalty - self._sampling.presence_penalty
        return row


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(values - values.max())
    return weights / weights.sum()
