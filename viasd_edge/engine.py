"""The library's front door: open a model (and a drafter), stream or generate text in one of three modes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from viasd_edge.closing import Closing
from viasd_edge.drafter import ModelDrafter
from viasd_edge.errors import MaskError, ModelError, PromptError
from viasd_edge.limits import DRAFT_MAX, MAX_DRAFT, MAX_ROWS
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model, check_same_tokenizer
from viasd_edge.registry import Progress, registry, resolve, shipped
from viasd_edge.requantize import DraftQuant, requantized
from viasd_edge.runner import Runner, Work
from viasd_edge.strategies import RatioGate, Stats, Token, plain, speculative, tiered
from viasd_edge.strategies.common import greedy
from viasd_edge.text import Piece, TextStream, chat_prompt

Mode = Literal["plain", "exact", "tiered"]
MODES: tuple[Mode, ...] = get_args(Mode)

DEFAULT_CONTEXT = 4096


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
    timings: dict[str, float | int | None]  # llama-server's names; ms
    full_passes: int
    tokens_per_full_pass: float | None
    rejection: dict[str, int | None]  # changed and escalated, of the gated tokens
    tiers: list[dict[str, Any]]  # name, drafted, tested, accepted, ms
    prompt_ids: list[int]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {key: value for key, value in asdict(self).items() if key != "prompt_ids"}


class Engine(Closing):
    """A model, its drafter and mask, ready to generate. Close it, or use `with`.

    One generation at a time: the models' caches hold the present one.
    """

    def __init__(
        self,
        target: Runner,
        *,
        mode: Mode,
        draft: Runner | None = None,
        mask: LayerMask | None = None,
        gate: RatioGate | None = None,
        keep_kv: bool = True,
        draft_max: int = DRAFT_MAX,
    ) -> None:
        super().__init__()
        if mode != "plain" and draft is None:
            raise ModelError(f"{mode} mode needs a drafter: name one with -md, or use --mode plain")
        if not 1 <= draft_max <= MAX_DRAFT:
            raise ValueError(f"draft_max is {draft_max}; it must be from 1 to {MAX_DRAFT}")
        if mode == "tiered":
            if mask is None:
                raise MaskError('tiered mode needs a mask: --mask FILE, or its layers like --mask "layers:4-7"')
            mask.check(target.model.n_layer, target.model.fingerprint)
        for runner in (target, draft):
            if mode != "plain" and runner is not None and not runner.can_rewind:
                raise ModelError(f"{runner.model.path}: its cache cannot drop tokens; use --mode plain")
        self.target = target
        self.draft = draft
        self.mode = mode
        self.mask = mask
        self.gate = gate or RatioGate()
        self.keep_kv = keep_kv
        self.draft_max = draft_max

    @classmethod
    def open(
        cls,
        model: str | None = None,
        *,
        draft_model: str | None = None,
        mode: Mode | None = None,
        mask: str | LayerMask | None = None,
        draft_quant: DraftQuant | None = None,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Engine:
        """Open by name: a pair or model of the registry, a path, or Hugging Face `repo:file`; pulled if need be.

        `model` None is the default pair. `mode` None is "exact" with a drafter, else "plain". `mask` is a mask
        file, a shipped mask's name, or text like "layers:4-7"; None is the pair's. `draft_quant` runs
        a cheaper copy of the drafter, see `requantize`. `n_ctx` None is 4096 tokens or
        what the model was trained for. `options` are Engine's own. Raises ModelError, MaskError, DownloadError,
        NativeLibraryError.
        """
        names = _named(model, draft_model)
        mode = mode or ("exact" if names.draft else "plain")
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}; it must be one of {', '.join(MODES)}")
        draft_name = None if mode == "plain" else names.draft
        mask = mask or names.mask
        found = (load_mask(mask) if isinstance(mask, str) else mask) if mode == "tiered" else None
        with ExitStack() as opened:
            target = opened.enter_context(Model(resolve(names.target, progress)))
            if n_ctx is None:
                n_ctx = min(DEFAULT_CONTEXT, target.n_ctx_train)
            draft = None
            if draft_name:
                draft_path = requantized(resolve(draft_name, progress), draft_quant, exact=mode == "exact")
                draft_weights = opened.enter_context(Model(draft_path))
                check_same_tokenizer(target, draft_weights)
                draft = opened.enter_context(Runner(draft_weights, n_ctx=n_ctx, n_threads=n_threads))
            runner = opened.enter_context(Runner(target, n_ctx=n_ctx, n_threads=n_threads))
            engine = cls(runner, mode=mode, draft=draft, mask=found, **options)
            engine._closing = opened.pop_all()
        return engine

    def prompt_tokens(self, prompt: str, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Token ids of a prompt, through the model's chat template unless `raw` or the model has none."""
        model = self.target.model
        template = None if raw else model.chat_template
        if template:
            bos, eos = model.special_text("bos"), model.special_text("eos")
            prompt = chat_prompt(template, prompt, system, bos=bos, eos=eos)
        elif system:
            raise PromptError("a system prompt needs a chat template: the model has none or --raw was given")
        return model.tokenize(prompt, special=True)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 512,
        stop: Sequence[str] = (),
        system: str | None = None,
        raw: bool = False,
    ) -> Stream:
        """Start a generation; nothing is evaluated until the result is iterated.

        `max_tokens` is cut to what the context has room for. Raises PromptError for a prompt that is empty or
        fills the context.
        """
        tokens = self.prompt_tokens(prompt, system=system, raw=raw) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise PromptError("the prompt is empty; give it at least one character")
        if len(tokens) >= self.target.n_ctx:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, the context {self.target.n_ctx}, and an answer needs room: "
                "raise -c/--ctx-size (n_ctx) or shorten the prompt"
            )
        if max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}; it cannot be negative")
        return Stream(self, tokens, max_tokens=min(max_tokens, self.target.n_ctx - len(tokens)), stop=stop)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Generation:
        """Generate to the end; the options are those of `stream`."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result()

    def tokens(self, prompt: Sequence[int], *, max_tokens: int, stats: Stats) -> Iterator[Token]:
        """The token generator of this engine's mode."""
        if self.draft is None:
            return plain(self.target, prompt, max_tokens=max_tokens, stats=stats)
        drafter = ModelDrafter(self.draft)
        if self.mask is None:
            return speculative(
                self.target, drafter, prompt, max_tokens=max_tokens, draft_max=self.draft_max, stats=stats
            )
        return tiered(
            self.target,
            drafter,
            prompt,
            mask=self.mask,
            gate=self.gate,
            keep_kv=self.keep_kv,
            max_tokens=max_tokens,
            draft_max=self.draft_max,
            stats=stats,
        )

    def disagreements(self, generation: Generation) -> list[int]:
        """Positions in `token_ids` where the full model, in the same state, would have chosen another token.

        The loss of a lossy generation, measured by one batched full pass over prompt and output. Batches of other
        widths round differently, so a near-tie may show up here even for an exact generation.
        """
        ids = generation.token_ids
        tokens = generation.prompt_ids + ids
        first = len(generation.prompt_ids) - 1
        self.target.rewind(0)
        self.target.decode(tokens[:first], rows=0)
        differing = []
        for start in range(0, len(ids), MAX_ROWS):
            chunk = ids[start : start + MAX_ROWS]
            chosen = greedy(self.target.decode(tokens[first + start : first + start + len(chunk)]))
            differing += [
                start + i for i, (token, choice) in enumerate(zip(chunk, chosen, strict=True)) if token != choice
            ]
        return differing


class Stream:
    """Pieces of text as they become certain; `result()` says what it cost, at the end or when interrupted."""

    def __init__(self, engine: Engine, prompt: list[int], *, max_tokens: int, stop: Sequence[str]) -> None:
        self._engine = engine
        self._prompt = prompt
        self._stats = Stats()
        self._tokens = engine.tokens(prompt, max_tokens=max_tokens, stats=self._stats)
        self._text = TextStream(self._tokens, engine.target.model, stop)
        self._seconds = 0.0
        self._finished = False

    def __iter__(self) -> Iterator[Piece]:
        started = time.perf_counter()
        for piece in self._text:
            self._seconds = time.perf_counter() - started
            yield piece
        self._seconds = time.perf_counter() - started
        self._finished = True

    def result(self) -> Generation:
        """The generation so far; `finish_reason` is "interrupted" if iteration did not reach its end."""
        engine, stats = self._engine, self._stats
        full, slim = engine.target.work["full"], engine.target.work["slim"]
        n = len(self._text.token_ids)
        mask = engine.mask
        return Generation(
            text=self._text.text,
            token_ids=self._text.token_ids,
            finish_reason=self._text.finish_reason if self._finished else "interrupted",
            mode=engine.mode,
            lossless=mask is None,
            model=str(engine.target.model.path),
            draft_model=str(engine.draft.model.path) if engine.draft else None,
            mask=str(mask) if mask else None,
            timings=_timings(stats, len(self._prompt), n, self._seconds - stats.prompt_seconds, drafts=engine.draft),
            full_passes=full.passes,
            tokens_per_full_pass=_ratio(n, full.passes),
            rejection={
                "changed": stats.changed if mask else None,
                "escalated": stats.escalated if mask else None,
                "gated": stats.gated if mask else None,
            },
            tiers=_tiers(stats, full, slim if mask else None, engine.draft.work["full"] if engine.draft else None),
            prompt_ids=self._prompt,
        )


def _tiers(stats: Stats, full: Work, slim: Work | None, draft: Work | None) -> list[dict[str, Any]]:
    """Per tier: tokens it drafted, those of them tested by a later tier, those that stood, ms in its passes."""
    tiers = []
    if draft is not None:
        tally = stats.draft
        counts = {"drafted": tally.drafted, "tested": tally.tested, "accepted": tally.accepted}
        tiers.append({"name": "draft", **counts, "ms": _ms(draft.seconds)})
    if slim is not None:  # what it rewrites is final: nobody tests it
        regenerated = stats.regenerated
        tiers.append(
            {"name": "slim", "drafted": regenerated, "tested": None, "accepted": regenerated, "ms": _ms(slim.seconds)}
        )
    own = stats.full_tokens
    tiers.append({"name": "full", "drafted": own, "tested": None, "accepted": own, "ms": _ms(full.seconds)})
    return tiers


def _timings(
    stats: Stats, n_prompt: int, n_predicted: int, seconds: float, *, drafts: object | None
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


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _ratio(count: int, by: float) -> float | None:
    return round(count / by, 3) if count and by > 0 else None


@dataclass(frozen=True)
class _Names:
    target: str
    draft: str | None
    mask: str | None


def _named(model: str | None, draft_model: str | None) -> _Names:
    """What `model` (a pair, a pair's target, or anything else) and an explicit drafter stand for."""
    pairs = registry().pairs
    model = model or registry().default
    pair = pairs.get(model) or next((pair for pair in pairs.values() if pair.target == model), None)
    if pair is None:
        return _Names(model, draft_model, None)
    return _Names(pair.target, draft_model or pair.draft, pair.mask)


def load_mask(text: str) -> LayerMask:
    """A mask from a file, a shipped mask's name, or text like "attn:4-7 ffn:4-7". Raises MaskError."""
    if Path(text).is_file():
        return LayerMask.load(Path(text))
    path = shipped(f"masks/{text}.json")
    if "/" not in text and "\\" not in text and path.is_file():
        return LayerMask.load(path)
    if ":" in text and not text.endswith(".json"):
        return LayerMask.parse(text)
    names = ", ".join(shipped_masks())
    raise MaskError(f'{text}: no mask file and no shipped mask of that name ({names}); or give layers, "layers:4-7"')


def shipped_masks() -> list[str]:
    """Names of the masks in the package."""
    return sorted(path.stem for path in shipped("masks").glob("*.json"))
