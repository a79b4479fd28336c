"""The library's front door: open a model (and a drafter), stream or generate text in one of the modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from viasd_edge.closing import Closing
from viasd_edge.errors import PromptError
from viasd_edge.generation import Generation, Stream
from viasd_edge.limits import MAX_ROWS, MODES, Mode
from viasd_edge.mask import LayerMask
from viasd_edge.model import Model, check_file, check_same_tokenizer, fingerprint
from viasd_edge.modes import Parts, calibrated
from viasd_edge.names import default_mask, load_mask, named
from viasd_edge.registry import Progress, resolve
from viasd_edge.requantize import DraftQuant, requantized
from viasd_edge.runner import Runner
from viasd_edge.strategies import Round, Sampling
from viasd_edge.strategies.common import greedy
from viasd_edge.text import chat_prompt

DEFAULT_CONTEXT = 4096


class Engine(Closing):
    """A model, its drafters and mask, ready to generate. Close it, or use `with`.

    One generation at a time: the models' caches hold the latest one.
    """

    def __init__(self, target: Runner, *, mode: Mode, **parts: Any) -> None:
        """`parts` are those of `modes.Parts`: draft, mask, gate, keep_kv, draft_max, drafters, policy, costs."""
        super().__init__()
        self.parts = Parts(target, mode, **parts)

    @property
    def target(self) -> Runner:
        return self.parts.target

    @property
    def draft(self) -> Runner | None:
        return self.parts.draft

    @property
    def mode(self) -> Mode:
        return self.parts.mode

    @property
    def mask(self) -> LayerMask | None:
        return self.parts.mask

    @classmethod
    def open(
        cls,
        model: str | None = None,
        *,
        draft_model: str | None = None,
        mode: Mode | None = None,
        self_speculation: bool = False,
        mask: str | LayerMask | None = None,
        tolerance: float | None = None,
        draft_quant: DraftQuant | None = "auto",
        n_ctx: int | None = None,
        n_threads: int | None = None,
        progress: Progress | None = None,
        **parts: Any,
    ) -> Engine:
        """Open by name: a pair or model of the registry, a path, or Hugging Face `repo:file`; pulled if need be.

        `model` None is the default pair. `mode` None is "exact", or "plain" if the model's cache cannot drop tokens.
        `self_speculation` loads no draft model: the target drafts for itself, under the mask and by n-gram lookup.
        `mask` is a mask file, a mask's name, or text like "layers:4-7". None, where tiered mode or self-speculation
        needs one, is the user's own mask of this model (by fingerprint) that was written last, else the pair's, else a
        shipped one; with a tolerance, the first of them that is calibrated for it and the drafter.
        `tolerance` is the share of tokens that may differ from the full model's choice: 0 is exact mode, above it
        tiered mode as calibrated for the mask. `draft_quant` runs a cheaper copy of the drafter, see `requantize`.
        `n_ctx` None is 4096 tokens or what the model was trained for. `parts` are those of `modes.Parts`. Raises
        ModelError, MaskError, DownloadError, NativeLibraryError.
        """
        names = named(model, draft_model)
        if mode not in (None, *MODES):
            raise ValueError(f"mode {mode!r}; it must be one of {', '.join(MODES)}")
        if tolerance is not None:
            mode = "tiered" if tolerance > 0 else "exact"
        draft_name = None if mode == "plain" or self_speculation else names.draft
        if mode == "plain":
            mask = None
        found = load_mask(mask) if isinstance(mask, str) else mask
        with ExitStack() as opened:
            target = opened.enter_context(Model(resolve(names.target, progress)))
            if n_ctx is None:
                n_ctx = min(DEFAULT_CONTEXT, target.n_ctx_train)
            runner = opened.enter_context(Runner(target, n_ctx=n_ctx, n_threads=n_threads))
            if mode is None:
                mode = "exact" if runner.can_rewind else "plain"
            draft = None
            if draft_name and mode != "plain":
                path = resolve(draft_name, progress)
                draft_weights = opened.enter_context(open_draft(path, target, draft_quant))
                draft = opened.enter_context(Runner(draft_weights, n_ctx=n_ctx, n_threads=n_threads))
            if found is None and mode != "plain" and (mode == "tiered" or self_speculation):
                draft_file = draft.model.fingerprint if draft else None
                found = default_mask(names.mask, target.fingerprint, draft=draft_file, tolerance=tolerance)
            if tolerance and found and draft:
                parts = {**calibrated(found, draft, tolerance), **parts}
            engine = cls(runner, mode=mode, draft=draft, mask=found, **parts)
            engine._closing = opened.pop_all()
        return engine

    def prompt_text(self, prompt: str, *, system: str | None = None, raw: bool = False) -> str:
        """A prompt through the model's chat template, unless `raw` or the model has none."""
        model = self.target.model
        template = None if raw else model.chat_template
        if template:
            bos, eos = model.special_text("bos"), model.special_text("eos")
            return chat_prompt(template, prompt, system, bos=bos, eos=eos)
        if system:
            raise PromptError("a system prompt needs a chat template: the model has none or --raw was given")
        return prompt

    def prompt_tokens(self, prompt: str, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Token ids of `prompt_text`."""
        return self.target.model.tokenize(self.prompt_text(prompt, system=system, raw=raw), special=True)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 512,
        stop: Sequence[str] = (),
        system: str | None = None,
        raw: bool = False,
        sampling: Sampling | None = None,
        on_round: Callable[[Round], None] | None = None,
    ) -> Stream:
        """Start a generation; nothing of it is evaluated until the result is iterated.

        `max_tokens` is cut to what the context has room for. `sampling` None is greedy. `on_round` sees every round of
        the strategy as it ends. Raises PromptError for a prompt that is empty or fills the context, ValueError for
        sampling in a lossy mode.
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
        return Stream(
            self.parts,
            tokens,
            max_tokens=min(max_tokens, self.target.n_ctx - len(tokens)),
            stop=stop,
            sampling=sampling or Sampling(),
            on_round=on_round,
        )

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Generation:
        """Generate to the end; the options are those of `stream`."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result()

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


def open_draft(path: Path, target: Model, quant: DraftQuant | None = "auto") -> Model:
    """Load a draft model, in the quantisation asked for, see `requantize`. Raises ModelError if it does not fit."""
    with ExitStack() as opened:
        draft = opened.enter_context(Model(requantized(path, quant)))
        check_same_tokenizer(target, draft, path)
        opened.pop_all()
    return draft


def find_mask(
    model: str | None, draft_model: str | None, *, tolerance: float | None = None, progress: Progress | None = None
) -> LayerMask | None:
    """The mask that `Engine.open` takes in a mode that needs one when none is named; loads no model.

    Raises ModelError, DownloadError.
    """
    names = named(model, draft_model)
    path = resolve(names.target, progress)
    check_file(path)
    draft = None
    if tolerance and names.draft:
        draft = fingerprint(requantized(resolve(names.draft, progress), "auto"))
    return default_mask(names.mask, fingerprint(path), draft=draft, tolerance=tolerance)
