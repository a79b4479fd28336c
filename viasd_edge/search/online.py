"""ConfLayers while generating: the mask to draft under follows the text, without trial passes.

Confidences of accepted tokens are read in the full model's ordinary passes; what becomes of drafts says how good the
present set is. The schedule is the released code's (methods 2.2). Ours are: the start from the prompt's own
confidences instead of every second layer, which a small model does not bear; a smaller skip ratio, with lambda moved
until the ratio holds, as that costs nothing; a set just measured is not proposed again if lambda finds another;
patience as a second way to stop; and a new search when acceptance has clearly fallen since, because the input is
another.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from viasd_edge.errors import ModelError
from viasd_edge.limits import SKIP_RATIO, ConfidenceName, OnlineSearchName
from viasd_edge.mask import LayerMask
from viasd_edge.search.conflayers import LAMBDA_STEP, critical_lambdas, layer_scores
from viasd_edge.search.space import Space
from viasd_edge.strategies.common import Draft, Planner, Round

Reason = Literal["start", "interval", "aborted", "stopped", "restart"]
_MAX_STEPS = 400  # of lambda in one search: further out it changes nothing that matters


@dataclass(frozen=True)
class Schedule:
    """When to search, and for how many layers; rounds are those that drafted under the mask."""

    skip_ratio: float = SKIP_RATIO  # of the layers but the first and the last, at least
    slack: float = 0.1  # above it; 0.25 is published, for a ratio of 0.4
    window: int = 100  # tokens whose confidences count
    interval: int = 30  # rounds that a set is measured for; half of them where it is plainly bad
    max_searches: int = 100
    good_accepted: float = 4.0  # mean accepted tokens a round and mean acceptance at which the search stops
    good_acceptance: float = 0.95
    patience: int = 4  # searches in a row without a better set, after which it stops
    fall: float = 0.7  # of the best set's acceptance: under it a stopped search starts again

    def __post_init__(self) -> None:
        if not 0 < self.skip_ratio < 1:
            raise ValueError(f"skip_ratio is {self.skip_ratio}; it must be between 0 and 1")


@dataclass(frozen=True)
class Measured:
    """A set of layers, and what became of the drafts under it: means over rounds."""

    layers: tuple[int, ...]
    accepted: float  # tokens
    acceptance: float  # of the drafted tokens


@dataclass(frozen=True)
class Event:
    """A search: why, what it chose, what the set before it had reached (None: not measured), what it took."""

    iteration: int
    reason: Reason
    lam: float
    layers: tuple[int, ...]
    mean_accepted: float | None
    acceptance: float | None
    rounds: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For a trace."""
        return {**asdict(self), "seconds": round(self.seconds, 6)}


class OnlineSearch:
    """The mask in use and the search for a better one; lives from answer to answer.

    Raises ModelError for a model with too few layers to choose from.
    """

    name: OnlineSearchName = "conflayers"

    def __init__(
        self, n_layer: int, *, confidence: ConfidenceName = "hidden", schedule: Schedule | None = None
    ) -> None:
        try:
            self._space = Space(n_layer)
        except ValueError as error:
            raise ModelError(f"--search: {error}; use --mask or plain decoding") from None
        self.confidence = confidence
        self.schedule = schedule or Schedule()
        self.layers = self._evenly()
        self.lam = 0.0
        self.iterations = 0  # searches, all in all
        self.restarts = 0
        self.running = True
        self.best: Measured | None = None
        self.seconds = 0.0  # spent in here, all in all
        self._searches = 0  # since the last restart
        self._fruitless = 0  # of them, in a row
        self._window: deque[NDArray[np.float32]] = deque(maxlen=self.schedule.window)
        self._accepted: list[int] = []  # of the present set's rounds
        self._acceptance: list[float] = []
        self._events: list[Event] = []

    @property
    def mask(self) -> LayerMask:
        """What to draft under now; it changes between rounds only."""
        return LayerMask(self.layers, self.layers, name=self.name, method=self.name)

    @property
    def probe_last(self) -> int:
        """Tokens of a batch whose confidence is to be measured; 0: all. The head's products are dear."""
        return 1 if self.confidence == "lm-head" else 0

    def begin(self, confidences: NDArray[np.float32]) -> None:
        """A new prompt was evaluated: [n_tokens, n_layer, 2]. Its first token is left out: it is like no other."""
        started = time.perf_counter()
        self._window.clear()
        self._window.extend(confidences[1:][-self.schedule.window :])
        if self.iterations == 0:
            self._search("start", started)
        self.seconds += time.perf_counter() - started

    def learn(self, confidences: NDArray[np.float32], round_: Round | None) -> None:
        """A round ended: confidences of its accepted tokens, and the round itself if it drafted under the mask."""
        started = time.perf_counter()
        self._window.extend(confidences)
        if round_ is not None and round_.draft.guesses:
            self._accepted.append(round_.accepted)
            self._acceptance.append(round_.accepted / len(round_.draft.guesses))
            if self.running:
                self._judge(started)
            else:
                self._watch(started)
        self.seconds += time.perf_counter() - started

    def take_events(self) -> list[Event]:
        """The searches since the last call."""
        events, self._events = self._events, []
        return events

    def report(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        best = self.best
        return {
            "name": self.name,
            "confidence": self.confidence,
            "skip_ratio": self.schedule.skip_ratio,
            "running": self.running,
            "iterations": self.iterations,
            "restarts": self.restarts,
            "lambda": round(self.lam, 4),
            "mask": str(self.mask),
            "best": best
            and {
                "mask": str(LayerMask(best.layers, best.layers)),
                "mean_accepted": round(best.accepted, 4),
                "acceptance": round(best.acceptance, 4),
            },
        }

    def _judge(self, started: float) -> None:
        """Whether the present set has been measured for long enough, and what follows."""
        n, schedule = len(self._accepted), self.schedule
        found = self._measured()
        if n == schedule.interval // 2 and found.accepted < 1 and found.acceptance < 0.5:  # noqa: PLR2004  # most fell
            self._fruitless += 1
            self._go_on("aborted", started)
        elif n >= schedule.interval:
            better = self.best is None or found.accepted > self.best.accepted
            if better:
                self.best = found
            self._fruitless = 0 if better else self._fruitless + 1
            if found.accepted > schedule.good_accepted and found.acceptance > schedule.good_acceptance:
                self.best = found
                self._stop(started)
            else:
                self._go_on("interval", started)

    def _go_on(self, reason: Reason, started: float) -> None:
        if self._fruitless >= self.schedule.patience or self._searches >= self.schedule.max_searches:
            self._stop(started)
        else:
            self._search(reason, started)

    def _stop(self, started: float) -> None:
        self.running = False
        self._adopt(self.best.layers if self.best else self.layers, "stopped", started)

    def _watch(self, started: float) -> None:
        """Start again if the kept set no longer does what it did."""
        if len(self._accepted) < self.schedule.interval:
            return
        found = self._measured()
        if self.best and found.acceptance >= self.schedule.fall * self.best.acceptance:
            self._accepted, self._acceptance = [], []
            return
        self.best, self._fruitless, self._searches, self.running = None, 0, 0, True
        self.restarts += 1
        self._search("restart", started)

    def _search(self, reason: Reason, started: float) -> None:
        """Let the rule choose anew."""
        layers = self._proposed() if self._window else None
        self.iterations += 1
        self._searches += 1
        self._adopt(layers or self.layers, reason, started)

    def _proposed(self) -> tuple[int, ...] | None:
        """The rule's set at a lambda near the present one; None if the rule has none."""
        scores = layer_scores(np.stack(self._window))
        if np.isnan(scores).any():
            return None
        critical = critical_lambdas(scores)
        lams = self.lam + LAMBDA_STEP * np.arange(-_MAX_STEPS, _MAX_STEPS + 1)
        counts = (critical > lams[:, None]).sum(axis=1)  # sets are nested: of equal sets the counts are equal
        least, most = self._bounds()
        at = _nearest((counts >= least) & (counts <= most))
        if at is None:  # one step turns too few layers into too many
            at = _nearest(counts == min(counts[counts >= least], default=0))
        if at is None:
            return None
        if self._searches and self._at(critical, lams[at]) == self.layers:
            within = (counts >= least) & (counts <= most)
            fewer, more = _nearest(within & (counts < counts[at])), _nearest(within & (counts > counts[at]))
            order = (fewer, more) if self._fruitless else (more, fewer)  # of a poor set fewer, of a good one more
            at = next((other for other in order if other is not None), at)
        self.lam = float(lams[at])
        return self._at(critical, self.lam) or None

    @staticmethod
    def _at(critical: NDArray[np.float64], lam: float) -> tuple[int, ...]:
        return tuple(int(i) + 1 for i in np.flatnonzero(critical > lam))

    def _bounds(self) -> tuple[int, int]:
        """The least and the most layers to skip."""
        ratio, n = self.schedule.skip_ratio, self._space.size
        least = min(int(n * ratio) + 1, n)
        return least, max(least, int(n * (ratio + self.schedule.slack)))

    def _evenly(self) -> tuple[int, ...]:
        """As many layers as the ratio asks for, evenly spread: until there are confidences."""
        least, _ = self._bounds()
        return tuple(sorted({1 + (2 * i + 1) * self._space.size // (2 * least) for i in range(least)}))

    def _measured(self) -> Measured:
        return Measured(self.layers, float(np.mean(self._accepted)), float(np.mean(self._acceptance)))

    def _adopt(self, layers: tuple[int, ...], reason: Reason, started: float) -> None:
        found = self._measured() if self._accepted else None
        self.layers = layers
        self._events.append(
            Event(
                self.iterations,
                reason,
                round(self.lam, 4),
                layers,
                round(found.accepted, 4) if found else None,
                round(found.acceptance, 4) if found else None,
                len(self._accepted),
                time.perf_counter() - started,
            )
        )
        self._accepted, self._acceptance = [], []


def _nearest(wanted: NDArray[np.bool_]) -> int | None:
    """The index of the true element nearest to the middle, None if there is none."""
    found = np.flatnonzero(wanted)
    return int(found[np.abs(found - len(wanted) // 2).argmin()]) if len(found) else None


class Probed(Protocol):
    """A target whose passes are measured."""

    def confidences(self) -> NDArray[np.float32]: ...


@dataclass
class Searching:
    """A planner, with an online search that looks on: every round's full pass was the target's latest."""

    inner: Planner
    search: OnlineSearch
    target: Probed
    drafter: str = "layerskip"  # the one that drafts under the search's mask

    def begin(self, prompt: Sequence[int]) -> None:
        self.search.begin(self.target.confidences())
        self.inner.begin(prompt)

    def draft(self, tokens: Sequence[int], room: int) -> Draft:
        draft = self.inner.draft(tokens, room)
        draft.mask = self.search.mask
        return draft

    def learn(self, round_: Round) -> None:
        self.inner.learn(round_)
        rows = self.target.confidences()[: len(round_.emitted)]
        self.search.learn(rows, round_ if round_.draft.drafter == self.drafter else None)
