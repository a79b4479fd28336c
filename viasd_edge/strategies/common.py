"""What every strategy shares: the target and drafter it works on, tokens with their tier, counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from viasd_edge.mask import LayerMask

Tier = Literal["draft", "slim", "full"]


class Token(NamedTuple):
    """An emitted token and the tier that proposed it."""

    id: int
    tier: Tier


class Target(Protocol):
    """The full model and, under a mask, its slim verifier: what a strategy needs of a Runner."""

    n_past: int
    n_full: int

    def decode(
        self, tokens: Sequence[int], *, mask: LayerMask | None = None, keep_kv: bool = False, rows: int | None = None
    ) -> NDArray[np.float32]: ...

    def rewind(self, n_past: int) -> None: ...

    def reset_work(self) -> None: ...


class Drafter(Protocol):
    """Whatever can guess how a sequence goes on."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence starts with `prompt`: do now what takes long once."""
        ...

    def propose(self, tokens: Sequence[int], n: int) -> list[int]:
        """At most `n` (n >= 1) guesses at what follows `tokens`; may be none."""
        ...


@dataclass
class Tally:
    """Tokens a tier proposed, those a later tier looked at, and those that stood."""

    drafted: int = 0
    tested: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Counts of one generation; a strategy adds to them round by round."""

    rounds: int = 0
    draft: Tally = field(default_factory=Tally)
    gated: int = 0  # drafted tokens that the slim verifier judged
    changed: int = 0  # of these, replaced by another token
    escalated: int = 0  # of these, handed to the full model
    regenerated: int = 0  # tokens the slim verifier put in place of drafted ones
    full_tokens: int = 0  # tokens the full model chose itself
    prompt_seconds: float = 0.0


def begin(target: Target, drafter: Drafter | None, prompt: Sequence[int], stats: Stats) -> list[int]:
    """Evaluate all but the last prompt token by the full model; return the prompt as a list to append to.

    Afterwards the work counters start from zero: what follows is generation.
    """
    started = time.perf_counter()
    target.rewind(0)
    target.decode(prompt[:-1], rows=0)
    if drafter:
        drafter.begin(prompt)
    target.reset_work()
    stats.prompt_seconds = time.perf_counter() - started
    return list(prompt)


def greedy(logits: NDArray[np.float32]) -> list[int]:
    """The most likely token of each row; the lowest id on a tie. `logits` is [rows, n_vocab]."""
    return [int(token) for token in logits.argmax(axis=-1)]


def matching_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(left), len(right)))
