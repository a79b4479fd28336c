"""Find, score, calibrate a mask for a model on this device, within a budget of time.

A search scores masks on one window of each calibration text; the best of every share of skipped cost are then looked
at on all windows, with their own measured costs and all gates, and the one with which most tokens a second are
predicted is calibrated on prompts that took no part.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from viasd_edge import __version__
from viasd_edge.calibration import Measured, forecasts, settle
from viasd_edge.curves import Curves, measure_curves
from viasd_edge.engine import Engine
from viasd_edge.errors import EdgeError
from viasd_edge.evaluation import Position, Sample, Teacher, mean_confidences
from viasd_edge.folders import cache_dir
from viasd_edge.machine import describe, device_text
from viasd_edge.mask import LayerMask
from viasd_edge.names import model_name
from viasd_edge.prompts import evenly
from viasd_edge.runner import Confidences
from viasd_edge.search import make
from viasd_edge.search.common import Scores, Search, Units
from viasd_edge.search.objective import Journal, Objective, predicted
from viasd_edge.search.prices import PRICED_WIDTH, Prices
from viasd_edge.strategies import Gate

_ANSWER = 2.5  # what answering a prompt and checking every token takes, in plain decoding of its tokens
_LEAST_PROMPTS = 3
_REPEATS = 3
_HAND_PICKED = "hand-picked"
_SEARCHED = 0.6  # of the budget, the start included; the rest is for the finalists and the calibration
_SEARCHED_ALONE = 0.85  # without a drafter: there is nothing to calibrate


@dataclass(frozen=True)
class Found:
    """A mask and what it scored; of a finalist also what is predicted with its own curve and all gates."""

    mask: LayerMask
    scores: Scores
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class _View:
    """A closer look at a mask: predicted tokens per second, measured curves, all positions by sample."""

    found: Found
    rate: float
    curves: Curves
    positions: list[list[Position]]

    def times(self) -> dict[str, float]:
        """What its passes take, in those of the full model."""
        widths = (1, PRICED_WIDTH)
        return {f"t{n}_to_full": round(self.curves.slim.at(n) / self.curves.full.at(n), 4) for n in widths}


@dataclass(frozen=True)
class Evaluation:
    """One step of a search, for whoever watches."""

    best: Found
    evaluations: int  # of all masks so far


@dataclass
class Tuned:
    """What tuning found. Rates are tokens per second; `plain` is our own plain decoding."""

    mask: LayerMask
    method: str
    seconds: float
    evaluations: int  # masks scored, this run's and earlier ones'
    measured: int  # of these, in this run
    proposing: float  # share of the search's time that was spent on proposals
    predicted: float | None
    hand_picked: Found | None
    plain: float
    stock_ratio: float | None  # stock llama.cpp's seconds a token to ours; None: there is no stock library
    candidates: list[Found]
    finalists: list[Found]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def baseline(self) -> float:
        """What ratios are to: stock's plain decoding, ours where stock is not there."""
        return self.plain / self.stock_ratio if self.stock_ratio else self.plain

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""

        def ratio(rate: float | None) -> float | None:
            return round(rate / self.baseline, 4) if rate else None

        return {
            "seconds": round(self.seconds, 1),
            "evaluations": self.evaluations,
            "measured": self.measured,
            "method": self.method,
            "mask": self.mask.to_dict(),
            "text": str(self.mask),
            "scores": self.mask.scores,
            "predicted_ratio": ratio(self.predicted),
            "hand_picked_ratio": ratio(self.hand_picked.tokens_per_s if self.hand_picked else None),
            "ratio_to": "stock" if self.stock_ratio else "plain",
            "lossless": False,
            "proposing_share": round(self.proposing, 4),
            "finalists": [
                {"mask": str(found.mask), "ratio": ratio(found.tokens_per_s), "scores": found.scores.to_dict()}
                for found in self.finalists
            ],
            "candidates": [{"mask": str(found.mask), "scores": found.scores.to_dict()} for found in self.candidates],
            "notes": self.notes,
            "interrupted": self.interrupted,
        }


@dataclass(frozen=True)
class Texts:
    """Samples to score masks on, and prompts to measure the calibrated gate on."""

    judged: list[Sample]
    held_out: list[list[int]]

    def to_dict(self) -> dict[str, Any]:
        return {"judged": [asdict(sample) for sample in self.judged], "held_out": self.held_out}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Texts:
        """Raises KeyError, TypeError."""
        return cls([Sample(**sample) for sample in table["judged"]], list(table["held_out"]))


@dataclass(frozen=True)
class Plan:
    """What to search for: `shares` of the layers' cost to skip, `errors` of tiered mode, `budget` in seconds."""

    method: str = "dimr"
    shares: tuple[float, ...] = (0.08, 0.16, 0.3)
    blocks: bool = True
    errors: tuple[float, ...] = (0.01,)
    budget: float = 600.0
    evaluations: int | None = None  # at most, in all; None: as the budget allows
    seed: int = 0


def journal_path(engine: Engine, plan: Plan, texts: str) -> Path:
    """Where the scores of searches of this model, drafter, error and kind of text on this machine are kept."""
    models = [runner.model.fingerprint for runner in (engine.target, engine.draft) if runner]
    key = [__version__, models, min(plan.errors), texts, describe(), engine.target.n_threads]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return cache_dir("searches") / f"{digest}.jsonl"


class Tuner:
    """One tuning of an open engine: `search`, then `finish`.

    With a drafter a mask is to make tiered mode fast, without one drafting under the mask. Raises what a Runner
    raises; EdgeError for a model with too few layers.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        *,
        journal: Journal | None,
        path: Path,
        texts: Callable[[], Texts],
        stock_ratio: float | None = None,
    ) -> None:
        """`texts` is asked if there is no journal to go on with; `stock_ratio` is stock's seconds a token to ours."""
        self._started = time.perf_counter()
        self._engine = engine
        self._plan = plan
        if engine.target.model.n_layer < 3:  # noqa: PLR2004  # first and last are kept
            raise EdgeError(f"{engine.target.model.path.name} has too few layers to skip any")
        if journal is None:
            found = texts()
            prices = Prices.measure(engine.target, engine.draft)
            journal = Journal(path, {"texts": found.to_dict(), "prices": prices.to_dict()})
        self._stock_ratio = stock_ratio
        self._texts = Texts.from_dict(journal.header["texts"])
        self._prices = Prices.from_dict(journal.header["prices"])
        self._teacher = Teacher(engine.target, engine.draft, self._texts.judged)
        self._space = self._prices.space(engine.target.model.n_layer, blocks=plan.blocks)
        self._objective = Objective(self._teacher, self._space, self._prices, min(plan.errors), journal)
        self._found: dict[str, Found] = {}
        self._best: dict[float, tuple[float, Found]] = {}  # by share: what its search makes smallest
        self._proposing = self._searching = 0.0
        self.interrupted = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def search(self, on_evaluation: Callable[[Evaluation], None] = lambda _: None) -> None:
        """Searches of all shares by turns, until all have ended or their part of the budget is used up.

        An interrupt ends it, too: what was scored is kept.
        """
        started = time.perf_counter()
        plan = self._plan
        running = {share: self._make(share) for share in plan.shares}
        try:
            while running:
                for share, search in list(running.items()):
                    if self._over():
                        return
                    if not self._step(share, search, on_evaluation):
                        del running[share]
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._searching += time.perf_counter() - started

    def _make(self, share: float) -> Search:
        plan = self._plan
        return make(plan.method, self._space, share, seed=plan.seed, confidences=lambda: self._confidences)

    @cached_property
    def _confidences(self) -> Confidences:
        return mean_confidences(self._engine.target, self._texts.judged)

    def _over(self) -> bool:
        enough = self._plan.evaluations is not None and len(self._found) >= self._plan.evaluations
        part = _SEARCHED if self._engine.draft else _SEARCHED_ALONE
        return enough or self.seconds > part * self._plan.budget

    def _step(self, share: float, search: Search, on_evaluation: Callable[[Evaluation], None]) -> bool:
        """One mask; False if the search has none left."""
        started = time.perf_counter()
        units = search.ask()
        self._proposing += time.perf_counter() - started
        if units is None:
            return False
        found = self._score(self._space.mask(units))
        search.tell(units, found.scores)
        self._remember(share, search, units, found)
        best = max(self._found.values(), key=lambda entry: entry.scores.tokens_per_s)
        on_evaluation(Evaluation(best, len(self._found)))
        return True

    def _score(self, mask: LayerMask) -> Found:
        found = Found(mask, self._objective.score(mask))
        self._found[str(mask)] = found
        return found

    def _remember(self, share: float, search: Search, units: Units, found: Found) -> None:
        if not self._space.fills(units, share):
            return
        loss = search.loss(found.scores)
        if share not in self._best or loss < self._best[share][0]:
            self._best[share] = (loss, found)

    def finish(self, hand_picked: LayerMask | None, on_phase: Callable[[str], None] = lambda _: None) -> Tuned:
        """Choose among the best of every share and the fastest, and calibrate what is chosen."""
        if not self._found:
            raise EdgeError("no mask was scored within the budget; raise --budget")
        bests = [found for _, found in self._best.values()]
        fastest = max(self._found.values(), key=lambda found: found.scores.tokens_per_s)
        named = {str(found.mask): found for found in [*bests, fastest]}
        tuned = self._result(fastest.mask, predicted_rate=None)
        if self.interrupted:
            tuned.notes.append("interrupted: the same command goes on from here")
            return tuned
        on_phase(f"looking closer at {len(named)} masks")
        if hand_picked:
            named[_HAND_PICKED] = self._score(hand_picked)
        curves = self._curves([found.mask for found in named.values()])
        views = {key: self._look(found, of_mask) for (key, found), of_mask in zip(named.items(), curves, strict=True)}
        compared = views.pop(_HAND_PICKED, None)
        chosen = max(views.values(), key=lambda view: view.rate)
        tuned = self._result(chosen.found.mask, predicted_rate=chosen.rate)
        tuned.plain = 1.0 / chosen.curves.full.at(1)
        if chosen.rate <= tuned.plain:
            way = "tiered mode within this error" if self._engine.draft else "drafting (--self)"
            tuned.notes.append(f"under none of these masks is {way} predicted to beat plain decoding")
        tuned.finalists = sorted(
            (view.found for view in views.values()), key=lambda found: -(found.tokens_per_s or 0.0)
        )
        tuned.hand_picked = compared.found if compared else None
        scores = {**chosen.found.scores.to_dict(), "tokens_per_s": round(chosen.rate, 3), **chosen.times()}
        tuned.mask = replace(tuned.mask, scores=scores)
        if self._engine.draft:
            on_phase("calibrating on other prompts")
            self._calibrate(tuned, chosen)
        tuned.seconds = self.seconds
        return tuned

    def _curves(self, masks: Sequence[LayerMask]) -> list[Curves]:
        """Measured by turns with the full model and the drafter, so that a machine that slows down slows all."""
        target, draft = self._engine.target, self._engine.draft
        tiers = [(target, None), *((target, mask) for mask in masks), *([(draft, None)] if draft else [])]
        full, *others = measure_curves(tiers, _REPEATS, min)
        drafted = others.pop() if draft else None
        return [Curves(drafted, slim, full) for slim in others]

    def _look(self, found: Found, curves: Curves) -> _View:
        """All windows, all gates. The full model is to rewrite the KV: so it was when it was asked."""
        positions = self._teacher.positions(found.mask)
        rate = predicted(positions, curves, min(self._plan.errors), keep_kv=False)
        return _View(replace(found, tokens_per_s=rate), rate, curves, positions)

    def _result(self, mask: LayerMask, *, predicted_rate: float | None) -> Tuned:
        model = self._engine.target.model
        scores = self._found[str(mask)].scores.to_dict()
        return Tuned(
            mask=replace(
                mask.bound(fingerprint=model.fingerprint, model=model_name(model.path), n_layer=model.n_layer),
                method=self._plan.method,
                scores=scores,
                device=device_text(),
                created=date.today().isoformat(),  # noqa: DTZ011  # the user's
            ),
            method=self._plan.method,
            seconds=self.seconds,
            evaluations=len(self._found),
            measured=self._objective.evaluations,
            proposing=self._proposing / self._searching if self._searching else 0.0,
            predicted=predicted_rate,
            hand_picked=None,
            plain=1.0 / self._prices.full.at(1),
            stock_ratio=self._stock_ratio,
            candidates=list(self._found.values()),
            finalists=[],
            interrupted=self.interrupted,
        )

    def _affordable(self, n: int) -> int:
        """Prompts to measure gates on, `n` tokens each: so many that two tries for every error fit into the budget."""
        answer = _ANSWER * n * self._prices.full.at(1)
        left = self._plan.budget - self.seconds
        return max(int(left / (answer * 2 * 2 * len(self._plan.errors))), _LEAST_PROMPTS)  # the KV kept, and caught up

    def _calibrate(self, tuned: Tuned, chosen: _View) -> None:
        """Add a calibration for every error, as far as the budget allows; what could not be is noted."""
        assert self._engine.draft is not None  # noqa: S101  # asked before
        asked = forecasts(chosen.positions, chosen.curves)
        tried: dict[tuple[Gate, bool], Measured] = {}
        n = len(self._texts.judged[0].tokens)
        prompts = evenly(self._texts.held_out, self._affordable(n))
        for error in self._plan.errors:
            try:
                calibration = settle(
                    asked,
                    prompts,
                    error=error,
                    target=self._engine.target,
                    draft=self._engine.draft,
                    mask=chosen.found.mask,
                    n=n,
                    measured=tried,
                    seconds=self._plan.budget - self.seconds,
                )
            except EdgeError as problem:
                tuned.notes.append(f"not calibrated for {error:g}: {problem}")
                continue
            tuned.mask = tuned.mask.with_calibration(calibration)
