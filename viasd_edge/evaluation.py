"""What drafter and slim verifier say where the full model has spoken: what calibrates gates and scores masks.

Everything is teacher-forced: the state at every position is the full model's own, its KV included; the slim verifier
looks at windows of it under the mask, as it does when it decodes. What the full model and the drafter say is asked
once; a mask costs one pass of the slim verifier over the windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from viasd_edge.mask import LayerMask
from viasd_edge.runner import Confidences, Logits, Runner, State

WINDOW = 16  # tokens the slim verifier sees at a time; 64 in one pass would cost 5 % less a token, 8 15 % more
TOP = 128  # tokens of a distribution that are kept one by one
_LEAST = 1e-9  # probability of all others, at least: rows of float32 know it no better


@dataclass(frozen=True)
class Sample:
    """A text: `tokens` are judged one by one, each after all before it, `prompt` (at least one token) included."""

    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class Summary:
    """What gates ask of a distribution, at one token: see strategies.gate.Distribution."""

    max: float
    token_ratio: float
    token_distance: float = 0.0  # to the other distribution of the position

    def ratio(self, token: int) -> float:  # noqa: ARG002  # the one it was made for
        return self.token_ratio

    def probability(self, token: int) -> float:  # noqa: ARG002
        return self.token_ratio * self.max

    def distance(self, other: object) -> float:  # noqa: ARG002
        return self.token_distance


@dataclass(frozen=True)
class Position:
    """The three tiers at one position: their first choices, and what gates need to know of the drafted token."""

    full: int
    draft: int
    slim: int
    draft_summary: Summary
    slim_summary: Summary

    @property
    def confidence(self) -> float:
        """The drafter's, in its token."""
        return self.draft_summary.max


@dataclass(frozen=True)
class Tops:
    """Distributions at n positions: the most likely tokens one by one, all others as one.

    `ids` int64 [n, TOP]; `logs` float64 [n, TOP + 1], log probabilities, the last that of all other tokens; `first`
    int64 [n], the most likely token.
    """

    ids: NDArray[np.int64]
    logs: NDArray[np.float64]
    first: NDArray[np.int64]

    @classmethod
    def of(cls, logits: Logits) -> Tops:
        """Of logits [n, n_vocab]."""
        kept = min(TOP, logits.shape[1] - 1)
        ids = np.argpartition(logits, -kept, axis=1)[:, -kept:].copy()  # a view would keep the whole vocabulary
        return cls(ids, log_probabilities(logits, ids, log_sums(logits)), logits.argmax(axis=1))


def log_sums(logits: Logits) -> NDArray[np.float64]:
    """Logarithm of each row's sum of exponentials, float64 [n]."""
    buffer = np.empty(logits.shape[1], np.float32)  # row by row: a copy of all logits costs more than their sum
    tops = logits.max(axis=1)
    sums = [np.exp(np.subtract(row, top, out=buffer), out=buffer).sum() for row, top in zip(logits, tops, strict=True)]
    return np.asarray(np.log(sums) + tops, np.float64)


def log_probabilities(logits: Logits, ids: NDArray[np.int64], sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the tokens `ids` [n, k], and last of all others together; float64 [n, k + 1]. `sums` are `log_sums`."""
    ids = np.minimum(ids, logits.shape[1] - 1)  # another model's vocabulary may be padded beyond this one's
    logs = np.take_along_axis(logits, ids, axis=1) - sums[:, None]
    others = np.log(np.maximum(1.0 - np.exp(logs).sum(axis=1), _LEAST))
    return np.column_stack([logs, others])


def overshoot(slim: NDArray[np.float64], full: NDArray[np.float64], alpha: float, beta: float) -> NDArray[np.float64]:
    """VIA-SD's cost of a slim verifier, Eq. 11 as methods 1.7 has it, nats, float64 [n]; log probabilities [n, k] in.

    Charged is where the slim verifier puts more than 1 / (1 - alpha) of the full model's probability, or 1 / beta.
    Less likely tokens count as one here, which can only lower it.
    """
    above = slim - full
    charged = np.exp(slim) * np.maximum(np.log(1 - alpha) + above, 0)
    charged += np.exp(full) * np.maximum(np.log(beta) + above, 0)
    return np.asarray(charged.sum(axis=1))


def divergence(full: NDArray[np.float64], slim: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(full || slim) in nats, float64 [n], of log probabilities [n, k]."""
    return np.asarray((np.exp(full) * (full - slim)).sum(axis=1))


@dataclass(frozen=True)
class _Window:
    """Tokens of a sample that a pass looks at, and what full model and drafter say after each."""

    start: int
    tokens: list[int]
    full: Tops
    draft: Tops


@dataclass(frozen=True)
class View:
    """A window under a mask: log probabilities [n, TOP + 1] of the full model's Tops, and every position's choices."""

    full: NDArray[np.float64]
    slim: NDArray[np.float64]
    positions: list[Position]


def mean_confidences(target: Runner, samples: Sequence[Sample]) -> Confidences:
    """Of the outputs of every block in full passes over the samples, means over their tokens, [n_layer, 2].

    NaN for the last layer's FFN. The runner ends up with the last sample.
    """
    target.set_probe("hidden")
    found = []
    for sample in samples:
        target.rewind(0)
        target.decode([*sample.prompt, *sample.tokens], rows=0)
        found.append(target.confidences()[len(sample.prompt) :])
    target.set_probe(None)
    return np.asarray(np.concatenate(found).mean(axis=0))


class Teacher:
    """The full model's and the drafter's word on all positions of the samples.

    Without a drafter the full model's own choices are what is judged. A `quick` look at a mask sees one window of each
    sample. The runners end up with tokens of the samples.
    """

    def __init__(self, target: Runner, draft: Runner | None, samples: Sequence[Sample], *, width: int = WINDOW) -> None:
        self._target = target
        self._prompts = [sample.prompt for sample in samples]
        asked = [self._ask(draft, sample, width) for sample in samples]
        self._windows = [windows for windows, _ in asked]
        self._states = [state for _, state in asked]

    def _ask(self, draft: Runner | None, sample: Sample, width: int) -> tuple[list[_Window], State]:
        tokens = [*sample.prompt, *sample.tokens]
        first = len(sample.prompt) - 1
        for runner in (self._target, draft):
            if runner:
                runner.rewind(0)
                runner.decode(tokens[:first], rows=0)
        windows = []
        for start in range(first, len(tokens) - 1, width):
            pending = tokens[start : min(start + width, len(tokens) - 1)]
            full = Tops.of(self._target.decode(pending))
            windows.append(_Window(start, pending, full, Tops.of(draft.decode(pending)) if draft else full))
        return windows, self._target.state()

    def views(self, mask: LayerMask, *, quick: bool = False) -> list[list[View]]:
        """Every sample's windows under the mask, one slim pass each."""
        return [self._look(i, mask, quick=quick) for i in range(len(self._windows))]

    def _look(self, i: int, mask: LayerMask, *, quick: bool) -> list[View]:
        windows = self._windows[i]
        if quick:  # another part of the answer from sample to sample
            windows = [windows[i % len(windows)]]
        self._target.restore(self._states[i])
        found = []
        for window in reversed(windows):  # the cache before a window is the full model's until an earlier one's turn
            self._target.rewind(window.start)
            found.append(_view(window, self._target.decode(window.tokens, mask=mask)))
        return found[::-1]

    def views_of(self, model: Runner) -> list[list[View]]:
        """Every sample's windows as another model of the same tokenizer sees them, in the place of a slim verifier."""
        return [
            self._look_by(model, prompt, windows) for prompt, windows in zip(self._prompts, self._windows, strict=True)
        ]

    def _look_by(self, model: Runner, prompt: list[int], windows: list[_Window]) -> list[View]:
        model.rewind(0)
        model.decode(prompt[:-1], rows=0)
        return [_view(window, model.decode(window.tokens)) for window in windows]

    def positions(self, mask: LayerMask) -> list[list[Position]]:
        """All positions, by sample."""
        return [[position for view in views for position in view.positions] for views in self.views(mask)]


def _view(window: _Window, logits: Logits) -> View:
    sums = log_sums(logits)
    drafted = np.minimum(window.draft.first, logits.shape[1] - 1)
    tops = logits.max(axis=1)
    largest = np.exp(tops - sums)
    ratios = np.exp(logits[np.arange(len(logits)), drafted] - tops)
    of_draft = np.exp(log_probabilities(logits, window.draft.ids, sums))
    distances = 0.5 * np.abs(of_draft - np.exp(window.draft.logs)).sum(axis=1)
    sure = np.exp(window.draft.logs[:, :-1].max(axis=1))
    positions = [
        Position(
            full=int(window.full.first[i]),
            draft=int(window.draft.first[i]),
            slim=int(slim),
            draft_summary=Summary(float(sure[i]), 1.0, float(distances[i])),
            slim_summary=Summary(float(largest[i]), float(ratios[i])),
        )
        for i, slim in enumerate(logits.argmax(axis=1))
    ]
    return View(window.full.logs, log_probabilities(logits, window.full.ids, sums), positions)


def text_samples(tokens: Sequence[int], *, n_prompt: int, n_tokens: int) -> list[Sample]:
    """A text cut into samples, one after the other; a rest that is too short is dropped."""
    size = n_prompt + n_tokens
    starts = range(0, len(tokens) - size + 1, size)
    return [Sample(list(tokens[at : at + n_prompt]), list(tokens[at + n_prompt : at + size])) for at in starts]


def agreement(positions: Sequence[Position], tier: str) -> float:
    """The share of positions at which a tier ("draft" or "slim") and the full model have the same first choice."""
    return float(np.mean([getattr(position, tier) == position.full for position in positions]))
