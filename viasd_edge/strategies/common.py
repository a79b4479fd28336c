"""What every strategy shares: what it works on, what it yields, what it counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from viasd_edge.mask import LayerMask

Tier = Literal["draft", "slim", "full"]
Row = NDArray[np.float32]
"""Logits of one position, [n_vocab]."""


class Token(NamedTuple):
    """An emitted token and the tier that proposed it."""

    id: int
    tier: Tier


class Target(Protocol):
    """The full model and, under a mask, its slim verifier: what a strategy needs of a Runner."""

    n_ctx: int
    n_past: int
    n_full: int

    def decode(
        self, tokens: Sequence[int], *, mask: LayerMask | None = None, keep_kv: bool = False, rows: int | None = None
    ) -> NDArray[np.float32]: ...

    def rewind(self, n_past: int) -> None: ...

    def reset_work(self) -> None: ...


class Guess(NamedTuple):
    """A drafted token, how sure its drafter is (0 to 1), and the logits it was taken from.

    `logits` is a view that the drafter's next guess overwrites; None if the drafter has no distribution.
    """

    id: int
    confidence: float
    logits: Row | None = None


class Drafter(Protocol):
    """Whatever can guess how a sequence goes on."""

    name: str

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence starts with `prompt`: do now what takes long once."""
        ...

    def guesses(self, tokens: Sequence[int]) -> Iterator[Guess]:
        """Guesses at what follows `tokens`, one after the other; may be none. Whoever asks may stop anywhere.

        From call to call a sequence only grows, except for its last MAX_ROWS tokens, which may have changed.
        """
        ...


@dataclass
class Draft:
    """Guesses of one drafter to be verified together, by the slim verifier or by the full model.

    `asked` is how many guesses the drafter made, also those that were not worth verifying; `mask` is what a search
    had the target draft under.
    """

    drafter: str | None = None
    guesses: list[Guess] = field(default_factory=list)
    slim: bool = False
    asked: int = 0
    mask: LayerMask | None = None

    @property
    def ids(self) -> list[int]:
        return [guess.id for guess in self.guesses]


@dataclass
class Round:
    """One round of a strategy: what was drafted, what became of it, what it cost.

    `tested` drafted tokens were looked at by a later tier, the first `accepted` of them stood. Widths are tokens in
    the pass of that tier, 0: none.
    """

    n_past: int
    draft: Draft
    emitted: list[Token]
    tested: int
    accepted: int
    gated: int = 0  # drafted tokens that the slim verifier judged
    changed: int = 0  # of these, replaced by another token
    escalated: int = 0  # of these, handed to the full model
    slim_width: int = 0
    full_width: int = 0
    draft_seconds: float = 0.0
    slim_seconds: float = 0.0
    full_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.slim_seconds + self.full_seconds


class Planner(Protocol):
    """Decides, round by round, who drafts, how much, and who verifies."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A new sequence starts with `prompt`."""
        ...

    def draft(self, tokens: Sequence[int], room: int) -> Draft:
        """At most `room` (0 or more) guesses at what follows `tokens`; none: the full model decodes one token."""
        ...

    def learn(self, round_: Round) -> None:
        """What became of a draft."""
        ...


@dataclass
class Tally:
    """Tokens a tier proposed, those a later tier looked at, and those that stood."""

    drafted: int = 0
    tested: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Counts of one generation, added up round by round; `on_round` sees every round as it ends."""

    on_round: Callable[[Round], None] | None = None
    rounds: int = 0
    draft: Tally = field(default_factory=Tally)
    by_drafter: dict[str, Tally] = field(default_factory=dict)
    by_position: list[Tally] = field(default_factory=list)  # of a token in its draft
    gated: int = 0
    changed: int = 0
    escalated: int = 0
    regenerated: int = 0  # tokens the slim verifier put in place of drafted ones
    full_tokens: int = 0  # tokens the full model chose itself
    prompt_seconds: float = 0.0

    def add(self, round_: Round) -> None:
        """Count one round."""
        drafted = len(round_.draft.guesses)
        self.rounds += 1
        self.gated += round_.gated
        self.changed += round_.changed
        self.escalated += round_.escalated
        self.regenerated += sum(token.tier == "slim" for token in round_.emitted)
        self.full_tokens += sum(token.tier == "full" for token in round_.emitted)
        tallies = [self.draft]
        if round_.draft.drafter:
            tallies.append(self.by_drafter.setdefault(round_.draft.drafter, Tally()))
        for tally in tallies:
            tally.drafted += drafted
            tally.tested += round_.tested
            tally.accepted += round_.accepted
        self.by_position += [Tally() for _ in range(drafted - len(self.by_position))]
        for i, tally in enumerate(self.by_position[:drafted]):
            tally.drafted += 1
            tally.tested += i < round_.tested
            tally.accepted += i < round_.accepted
        if self.on_round:
            self.on_round(round_)


def begin(target: Target, planner: Planner | None, prompt: Sequence[int], stats: Stats) -> list[int]:
    """Evaluate all but the last prompt token by the full model; return the prompt as a list to append to.

    Afterwards the work counters start from zero: what follows is generation.
    """
    started = time.perf_counter()
    target.rewind(0)
    target.decode(prompt[:-1], rows=0)
    if planner:
        planner.begin(prompt)
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
