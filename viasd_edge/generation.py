"""One generation: its pieces of text as they come, and afterwards what it was and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from viasd_edge.errors import BusyError
from viasd_edge.limits import Mode
from viasd_edge.modes import Parts
from viasd_edge.policy import Auto
from viasd_edge.runner import Work
from viasd_edge.search.online import Searching
from viasd_edge.strategies import Round, Sampling, Stats, Tally
from viasd_edge.text import Piece, TextStream


@dataclass(frozen=True)
class Generation:
    """A finished (or interrupted) generation and what it cost. What does not apply to its mode is None."""

    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length" or "interrupted"
    mode: Mode
    lossless: bool
    model: str
    draft_model: str | None
    mask: str | None
    seed: int | None  # None: nothing was drawn
    timings: dict[str, float | int | None]  # llama-server's names; ms
    full_passes: int
    tokens_per_full_pass: float | None
    rejection: dict[str, int | None]  # changed and escalated, of the gated tokens
    tiers: list[dict[str, Any]]  # name, drafted, tested, accepted, ms
    drafters: dict[str, dict[str, int]]  # drafted, tested, accepted
    acceptance_by_position: list[float | None]  # accepted of tested, by position in the draft
    policy: list[dict[str, Any]] | None  # what it expects at the end, see policy.Auto.explain
    search: dict[str, Any] | None  # the search while generating, see OnlineSearch.report; its seconds and share of time
    gave_up: bool  # whether drafting did not pay for a while
    prompt_ids: list[int]
    by_position: list[Tally]  # the counts behind acceptance_by_position

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {key: value for key, value in asdict(self).items() if key not in {"prompt_ids", "by_position"}}


class Stream:
    """Pieces of text as they become certain; `result()` says what it cost, at the end or when interrupted.

    A newer stream of the same model takes over its cache: going on with this one then raises BusyError.
    """

    def __init__(
        self,
        parts: Parts,
        prompt: list[int],
        *,
        max_tokens: int,
        stop: Sequence[str],
        sampling: Sampling,
        on_round: Callable[[Round], None] | None,
    ) -> None:
        self._parts = parts
        self._prompt = prompt
        self._sampling = sampling.seeded()
        self._stats = Stats(on_round)
        self._planner = parts.planner()
        self._searched = parts.search.seconds if parts.search else 0.0  # before this generation
        tokens = parts.tokens(prompt, self._planner, sampling=self._sampling, max_tokens=max_tokens, stats=self._stats)
        self._text = TextStream(tokens, parts.target.model, stop)
        self._seconds = 0.0
        self._finished = False

    def __iter__(self) -> Iterator[Piece]:
        target = self._parts.target
        with target.lock:
            target.user = self
        started = time.perf_counter()
        pieces = iter(self._text)
        while (piece := self._next(pieces)) is not None:
            self._seconds = time.perf_counter() - started
            yield piece
        self._seconds = time.perf_counter() - started
        self._finished = True

    def _next(self, pieces: Iterator[Piece]) -> Piece | None:
        """One step, alone with the model's cache."""
        target = self._parts.target
        with target.lock:
            if target.user is not self:
                raise BusyError("another generation was started on this model: one at a time, or an Engine for each")
            return next(pieces, None)

    def result(self) -> Generation:
        """The generation so far; `finish_reason` is "interrupted" if iteration did not reach its end."""
        parts, stats = self._parts, self._stats
        full, slim = parts.target.work["full"], parts.target.work["slim"]
        n = len(self._text.token_ids)
        tiered = parts.mode == "tiered"
        masked = parts.mask is not None or parts.search is not None
        planner = self._planner.inner if isinstance(self._planner, Searching) else self._planner
        auto = planner if isinstance(planner, Auto) else None
        return Generation(
            text=self._text.text,
            token_ids=self._text.token_ids,
            finish_reason=self._text.finish_reason if self._finished else "interrupted",
            mode=parts.mode,
            lossless=parts.lossless,
            model=str(parts.target.model.path),
            draft_model=str(parts.draft.model.path) if parts.draft else None,
            mask=str(parts.mask) if parts.mask else None,
            seed=self._sampling.seed if self._sampling.temperature else None,
            timings=_timings(stats, len(self._prompt), n, self._seconds - stats.prompt_seconds, self._planner),
            full_passes=full.passes,
            tokens_per_full_pass=_ratio(n, full.passes),
            rejection={
                "changed": stats.changed if tiered else None,
                "escalated": stats.escalated if tiered else None,
                "gated": stats.gated if tiered else None,
            },
            tiers=_tiers(stats, full, slim if masked else None, parts.draft.work["full"] if parts.draft else None),
            drafters={name: asdict(tally) for name, tally in stats.by_drafter.items()},
            acceptance_by_position=[_share(tally) for tally in stats.by_position],
            policy=auto.explain() if auto else None,
            search=self._search(),
            gave_up=bool(auto and auto.gave_up),
            prompt_ids=self._prompt,
            by_position=stats.by_position,
        )

    def _search(self) -> dict[str, Any] | None:
        search = self._parts.search
        if search is None:
            return None
        seconds = search.seconds - self._searched
        share = seconds / self._seconds if self._seconds > 0 else None
        return {**search.report(), "seconds": round(seconds, 6), "share": share and round(share, 6)}


def _tiers(stats: Stats, full: Work, slim: Work | None, draft: Work | None) -> list[dict[str, Any]]:
    """Per tier: tokens it drafted, those of them tested by a later tier, those that stood, ms in its passes."""
    tiers = []
    if draft is not None or stats.by_drafter:
        tiers.append({"name": "draft", **asdict(stats.draft), "ms": _ms(draft.seconds if draft else 0.0)})
    if slim is not None:  # what it rewrites is final: nobody tests it
        counts = {"drafted": stats.regenerated, "tested": None, "accepted": stats.regenerated}
        tiers.append({"name": "slim", **counts, "ms": _ms(slim.seconds)})
    counts = {"drafted": stats.full_tokens, "tested": None, "accepted": stats.full_tokens}
    tiers.append({"name": "full", **counts, "ms": _ms(full.seconds)})
    return tiers


def _timings(
    stats: Stats, n_prompt: int, n_predicted: int, seconds: float, drafts: object | None
) -> dict[str, float | int | None]:
    seconds = max(seconds, 0.0)
    return {
        "prompt_n": n_prompt,
        "prompt_ms": _ms(stats.prompt_seconds),
        "prompt_per_second": _ratio(n_prompt, stats.prompt_seconds),
        "predicted_n": n_predicted,
        "predicted_ms": _ms(seconds),
        "predicted_per_second": _ratio(n_predicted, seconds),
        "draft_n": stats.draft.tested if drafts else None,
        "draft_n_accepted": stats.draft.accepted if drafts else None,
    }


def _share(tally: Tally) -> float | None:
    return round(tally.accepted / tally.tested, 4) if tally.tested else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _ratio(count: int, by: float) -> float | None:
    return round(count / by, 3) if count and by > 0 else None
