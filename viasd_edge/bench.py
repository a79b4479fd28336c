"""Named strategies over prompts, by turns in one run, beside stock llama.cpp: speeds, counts, identity, loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from viasd_edge.closing import Closing
from viasd_edge.engine import Engine, open_draft
from viasd_edge.errors import EdgeError, ModelError
from viasd_edge.generation import Generation
from viasd_edge.limits import MODES, OWN_STRATEGIES, PEER, STOCK, STRATEGIES
from viasd_edge.machine import peak_rss
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model
from viasd_edge.modes import calibrated
from viasd_edge.names import named
from viasd_edge.prompts import Prompt
from viasd_edge.registry import Progress, resolve
from viasd_edge.runner import Runner
from viasd_edge.stock import StockDecoder, StockSpeculative

_WARM_UP = 8  # tokens


@dataclass(frozen=True)
class Settings:
    """What a run does. It can be resumed under the same settings only."""

    model: str | None
    draft_model: str | None
    strategies: tuple[str, ...]
    prompts: tuple[str, ...]  # names
    max_tokens: int
    repeats: int
    n_ctx: int
    n_threads: int | None = None
    mask: str | None = None
    tolerance: float | None = None
    policy: str = "auto"

    def __post_init__(self) -> None:
        unknown = [name for name in self.strategies if name not in STRATEGIES]
        if unknown:
            raise ValueError(f"strategy {unknown[0]!r}; it must be one of {', '.join(STRATEGIES)}")


@dataclass(frozen=True)
class Row:
    """One generation. Counts that do not apply are None."""

    strategy: str
    group: str
    prompt: str
    repeat: int
    tokens: int
    tokens_per_s: float
    prompt_ms: float | None = None
    token_ids: list[int] | None = None  # None: the strategy does not tell
    full_passes: int | None = None
    tested: int | None = None
    accepted: int | None = None
    tested_by_position: list[int] = field(default_factory=list)  # of a token in its draft
    accepted_by_position: list[int] = field(default_factory=list)
    changed: int | None = None
    escalated: int | None = None
    gated: int | None = None
    lost: int | None = None  # tokens the full model would have chosen otherwise; None: lossless
    gave_up: bool = False
    peak_rss_bytes: int | None = None  # of its process so far

    @property
    def key(self) -> tuple[str, str, int]:
        """What of a run it is."""
        return self.strategy, self.prompt, self.repeat


class Bench(Closing):
    """The models of a run, loaded once: our strategies share one target and its drafters.

    Raises EdgeError for stock strategies without a `stock` library, and what opening an Engine raises.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        stock: Path | None = None,
        mask: LayerMask | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self._mask = mask
        self._stock = stock
        names = named(settings.model, settings.draft_model)
        self._target_path = resolve(names.target, progress)
        self._draft_path = resolve(names.draft, progress) if names.draft else None
        with ExitStack() as opened:
            self._opened = opened
            model = opened.enter_context(Model(self._target_path))
            self.target = opened.enter_context(Runner(model, n_ctx=settings.n_ctx, n_threads=settings.n_threads))
            self._plain = Engine(self.target, mode="plain")
            self._runs = {name: self._strategy(name) for name in settings.strategies}
            self._closing = opened.pop_all()

    def _strategy(self, name: str) -> Callable[[Prompt, int], dict[str, Any]]:
        """How to run one prompt: (prompt, tokens) -> the fields of a row."""
        options: dict[str, Any] = {"n_ctx": self.settings.n_ctx, "n_threads": self.settings.n_threads}
        if name in OWN_STRATEGIES:
            engine = self._engine(name)
            return lambda prompt, n: self._own(engine, prompt, n)
        if self._stock is None:
            raise EdgeError(
                f"{name} needs the stock library: set VIASD_STOCK_LIB to what scripts/build_stock.py prints"
            )
        if name == STOCK:
            decoder = self._opened.enter_context(StockDecoder(self._target_path, self._stock, **options))
            return lambda prompt, n: self._decoded(decoder, prompt, n)
        if self._draft_path is None:
            raise ModelError(f"{PEER} needs a draft model: name one with -md")
        example = StockSpeculative(self._target_path, self._draft_path, self._stock, **options)
        return lambda prompt, n: self._exemplified(example, prompt, n)

    def _engine(self, name: str) -> Engine:
        """One of our strategies; self-speculation and n-gram drafts are exact mode with fewer drafters."""
        policy = self.settings.policy
        if name == "plain":
            return self._plain
        if name == "ngram":
            return Engine(self.target, mode="exact", policy=policy)
        if name == "self":
            return Engine(self.target, mode="exact", mask=self._mask, policy=policy)
        mode = next(mode for mode in MODES if mode == name)
        draft = self._draft
        if mode != "tiered":
            return Engine(self.target, mode=mode, draft=draft, policy=policy)
        parts: dict[str, Any] = {}
        if self.settings.tolerance and self._mask and draft:
            parts = calibrated(self._mask, draft, self.settings.tolerance)
        return Engine(self.target, mode=mode, draft=draft, mask=self._mask, policy=policy, **parts)

    @cached_property
    def _draft(self) -> Runner | None:
        """The drafter, its cheaper copy, loaded when first needed."""
        if self._draft_path is None:
            return None
        model = self._opened.enter_context(open_draft(self._draft_path, self.target.model))
        runner = Runner(model, n_ctx=self.settings.n_ctx, n_threads=self.settings.n_threads)
        return self._opened.enter_context(runner)

    def rows(self, prompts: Sequence[Prompt], done: Collection[tuple[str, str, int]] = ()) -> Iterator[Row]:
        """Every prompt by every strategy in turn, `repeats` times, after a warm-up; but for the keys `done`.

        Which strategy comes first changes from prompt to prompt.
        """
        turns = [
            (name, prompt, repeat)
            for repeat in range(self.settings.repeats)
            for i, prompt in enumerate(prompts)
            for name in _rotated(self.settings.strategies, i + repeat)
            if (name, prompt.name, repeat) not in done
        ]
        for name in {name: None for name, _, _ in turns}:
            self._runs[name](turns[0][1], _WARM_UP)
        for name, prompt, repeat in turns:
            fields = self._runs[name](prompt, self.settings.max_tokens)
            yield Row(name, prompt.group, prompt.name, repeat, **fields)

    def _own(self, engine: Engine, prompt: Prompt, n: int) -> dict[str, Any]:
        generation = engine.generate(prompt.text, max_tokens=n)
        lost = None if generation.lossless else len(self._plain.disagreements(generation))
        return {**_counts(generation), "lost": lost, "peak_rss_bytes": peak_rss()}

    def _decoded(self, decoder: StockDecoder, prompt: Prompt, n: int) -> dict[str, Any]:
        found = decoder.generate(self._plain.prompt_tokens(prompt.text), max_tokens=n)
        return {
            "tokens": len(found.token_ids),
            "tokens_per_s": _speed(len(found.token_ids), found.predicted_ms),
            "prompt_ms": found.prompt_ms,
            "token_ids": found.token_ids,
            "full_passes": len(found.token_ids),
            "peak_rss_bytes": found.peak_rss_bytes,
        }

    def _exemplified(self, example: StockSpeculative, prompt: Prompt, n: int) -> dict[str, Any]:
        found = example.generate(self._plain.prompt_text(prompt.text), max_tokens=n)
        return {
            "tokens": found.predicted_n,
            "tokens_per_s": found.predicted_per_second,
            "tested": found.drafted,
            "accepted": found.accepted,
        }


def _counts(generation: Generation) -> dict[str, Any]:
    timings = generation.timings
    return {
        "tokens": len(generation.token_ids),
        "tokens_per_s": _speed(len(generation.token_ids), timings["predicted_ms"] or 0.0),
        "prompt_ms": timings["prompt_ms"],
        "token_ids": generation.token_ids,
        "full_passes": generation.full_passes,
        "tested": timings["draft_n"],
        "accepted": timings["draft_n_accepted"],
        "tested_by_position": [tally.tested for tally in generation.by_position],
        "accepted_by_position": [tally.accepted for tally in generation.by_position],
        **generation.rejection,
        "gave_up": generation.gave_up,
    }


def _speed(n: int, ms: float) -> float:
    return n / ms * 1e3 if ms else 0.0


def _rotated(names: Sequence[str], by: int) -> list[str]:
    start = by % len(names)
    return [*names[start:], *names[:start]]
