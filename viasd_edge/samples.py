"""Text to calibrate and search on: of a file, or what the full model answers to our own prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from viasd_edge.engine import Engine
from viasd_edge.errors import PromptError
from viasd_edge.evaluation import Sample, text_samples
from viasd_edge.prompts import Prompt, evenly

HELD_OUT = 3  # every so many samples are kept apart to measure on
_TEXT_PROMPT = 32  # tokens of context before the first judged one, of a text


def answers(
    engine: Engine, prompts: Sequence[Prompt], n: int, advance: Callable[[], None] = lambda: None
) -> list[Sample]:
    """The full model's answers of at most `n` tokens; `advance` is called after each."""
    exact = Engine(engine.target, mode="exact", draft=engine.draft)
    found = []
    for prompt in prompts:
        generation = exact.generate(prompt.text, max_tokens=n)
        found.append(Sample(generation.prompt_ids, generation.token_ids))
        advance()
    return [sample for sample in found if sample.tokens]


def of_file(engine: Engine, path: Path, count: int, n: int) -> list[Sample]:
    """At most `count` samples of a text, evenly spread. Raises PromptError for a file that is no text or too short."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    tokens = engine.target.model.tokenize(text, special=False)
    samples = text_samples(tokens, n_prompt=_TEXT_PROMPT, n_tokens=n)
    if len(samples) < HELD_OUT:
        raise PromptError(f"{path}: too short: {HELD_OUT} samples need {HELD_OUT * (_TEXT_PROMPT + n)} tokens")
    return evenly(samples, count)


def split(samples: list[Sample]) -> tuple[list[Sample], list[list[int]]]:
    """(samples to judge, prompts of the others)."""
    judged = [sample for i, sample in enumerate(samples) if i % HELD_OUT]
    return judged, [sample.prompt for sample in samples[::HELD_OUT]]
