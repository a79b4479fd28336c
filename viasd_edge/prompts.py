"""Prompts to measure with: our own, and those of files in the forms of well-known sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from viasd_edge.errors import PromptError
from viasd_edge.registry import read_toml

Item = TypeVar("Item")

_GROUPS = {  # Spec-Bench's categories that are ours under another name
    "coding": "code",
    "math": "maths",
    "math_reasoning": "maths",
    "summarization": "summary",
    "qa": "question",
}
_FORMS = '"category" and "turns" (Spec-Bench), "question" (GSM8K) or "prompt" (HumanEval)'


@dataclass(frozen=True)
class Prompt:
    """A prompt and the class it counts under: code, maths, summary, translation, question, chat or extraction."""

    group: str
    text: str
    name: str


def embedded() -> list[Prompt]:
    """Our own prompts, class by class."""
    groups = read_toml(Path(str(resources.files("viasd_edge").joinpath("prompts.toml"))))
    return [Prompt(group, entry["text"], entry["name"]) for group, entries in groups.items() for entry in entries]


def read_prompts(path: Path, count: int | None = None) -> list[Prompt]:
    """The prompts of a JSON lines file in Spec-Bench's, GSM8K's or HumanEval's form; `count` of them, evenly spread.

    Of a conversation the first turn is taken. Raises PromptError, with the line, for a file of another form.
    """
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    prompts = [_parse(line, path, i) for i, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"{path}: holds no prompts; give JSON lines with {_FORMS}")
    return evenly(prompts, count)


def evenly(items: Sequence[Item], count: int | None) -> list[Item]:
    """`count` of the items, evenly spread; all if there are no more, or for None."""
    n = len(items) if count is None else min(count, len(items))
    return [items[i * len(items) // n] for i in range(n)]


def _parse(line: str, path: Path, number: int) -> Prompt:
    try:
        item = json.loads(line)
    except ValueError:
        item = None
    name = f"{path.stem}:{number}"
    match item:
        case {"category": str(category), "turns": [str(text), *_]} if text:
            return Prompt(_GROUPS.get(category, category), text, name)
        case {"question": str(text)} if text:
            return Prompt("maths", text, name)
        case {"prompt": str(text)} if text:
            return Prompt("code", f"Complete this Python function:\n```python\n{text}```", name)
    raise PromptError(f"{path}: line {number}: expected a JSON object with {_FORMS}")
