"""The text layer: prompts from chat templates, text from tokens, stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NoReturn, Protocol

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from viasd_edge.errors import PromptError
from viasd_edge.strategies import Tier, Token

FinishReason = Literal["stop", "length"]


class Vocabulary(Protocol):
    """What the text layer needs of a Model."""

    def piece(self, token: int) -> bytes: ...

    def is_end(self, token: int) -> bool: ...


@dataclass(frozen=True)
class Piece:
    """Text that became certain with one token; "" while a character or a possible stop string is incomplete."""

    text: str
    tier: Tier | None  # of the token; None for what is let go at the end


class Detokenizer:
    """Bytes of tokens to text; the bytes of an incomplete character wait for the next token."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, raw: bytes) -> str:
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """What is left; an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Cuts a stream at the first stop string; text that may be the start of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """The part of what is held and `text` that is certain; all of it before a stop string."""
        self._held += text
        ends = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self.found = True
            certain, self._held = self._held[: min(ends)], ""
            return certain
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        certain, self._held = self._held[:cut], self._held[cut:]
        return certain

    def flush(self) -> str:
        """What was held back in vain."""
        text, self._held = self._held, ""
        return text

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)


class TextStream:
    """Text pieces of a token stream. After (or during) iteration: `text`, `token_ids`, `finish_reason`.

    A token that ends the generation is not part of `token_ids`. A stop string wins over the token budget; the
    token that completes it is part of `token_ids`, its text is cut.
    """

    def __init__(self, tokens: Iterable[Token], vocabulary: Vocabulary, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason = "length"
        self._tokens = tokens
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer()
        self._stops = StopStrings(stops)

    def __iter__(self) -> Iterator[Piece]:
        for token in self._tokens:
            if self._vocabulary.is_end(token.id):
                self.finish_reason = "stop"
                break
            self.token_ids.append(token.id)
            certain = self._stops.add(self._detokenizer.add(self._vocabulary.piece(token.id)))
            self.text += certain
            yield Piece(certain, token.tier)
            if self._stops.found:
                self.finish_reason = "stop"
                return
        tail = self._stops.add(self._detokenizer.flush()) + self._stops.flush()
        self.text += tail
        if self._stops.found:
            self.finish_reason = "stop"
        if tail:
            yield Piece(tail, None)


def chat_prompt(template: str, user: str, system: str | None, *, bos: str, eos: str) -> str:
    """The prompt that a model's own chat template makes of a user's message. Raises PromptError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    values: dict[str, Any] = {"messages": messages, "add_generation_prompt": True, "bos_token": bos, "eos_token": eos}
    try:
        return environment.from_string(template).render(values)
    except jinja2.TemplateError as error:
        raise PromptError(f"the model's chat template refuses this prompt ({error}); use --raw") from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
