"""Drafters: who guesses how a sequence goes on. None of them can make an exact answer wrong, only slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from viasd_edge.limits import MAX_ROWS
from viasd_edge.mask import LayerMask
from viasd_edge.runner import Runner
from viasd_edge.strategies.common import Drafter, Guess, Row, Target


class OwnCache:
    """Logits of a model that has a context of its own.

    Invariant: the runner has evaluated exactly self._evaluated, and self._latest are its latest logits.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._evaluated: list[int] = []
        self._latest: NDArray[np.float32] | None = None

    @property
    def room(self) -> int:
        """The longest sequence it can evaluate."""
        return self._runner.n_ctx

    def begin(self, prompt: Sequence[int]) -> None:
        """Evaluate a new prompt, once: several drafters may share this cache.

        To its last token, unlike the full model: in the same pass the first guess costs next to nothing.
        """
        if self._evaluated != list(prompt):
            self._runner.rewind(0)
            self._latest = self._runner.decode(prompt, rows=1)
            self._runner.reset_work()
            self._evaluated = list(prompt)

    def logits(self, tokens: Sequence[int], rows: int = 1) -> NDArray[np.float32]:
        """Logits after each of the last `rows` tokens, [rows, n_vocab], valid until the next call."""
        known = _settled(self._evaluated, tokens, len(tokens))
        if self._latest is not None and known == len(tokens) == len(self._evaluated) and rows <= len(self._latest):
            return self._latest[-rows:]
        known = min(known, len(tokens) - rows)
        self._runner.rewind(known)
        del self._evaluated[known:]
        self._latest = None  # what is evaluated next overwrites it
        pending = tokens[known:]
        self._latest = self._runner.decode(pending, rows=rows)
        self._evaluated += pending
        return self._latest


class SharedCache:
    """Logits of the target under a mask, in the target's own cache, on top of what the full model has evaluated.

    The caller rewinds the target to that before the full model goes on. A mask that is asked for anew with every pass
    may change whenever the target has been rewound.
    """

    def __init__(self, target: Target, mask: LayerMask | Callable[[], LayerMask]) -> None:
        self._target = target
        self._mask = mask if callable(mask) else lambda: mask
        self._evaluated: list[int] = []  # under the mask, after target.n_full tokens

    @property
    def room(self) -> int:
        return self._target.n_ctx

    def begin(self, prompt: Sequence[int]) -> None:
        """The target's own prompt pass is all it needs."""

    def logits(self, tokens: Sequence[int], rows: int = 1) -> NDArray[np.float32]:
        """See OwnCache."""
        n_full = self._target.n_full
        del self._evaluated[self._target.n_past - n_full :]
        known = _settled(self._evaluated, tokens[n_full:], len(tokens) - rows - n_full)
        self._target.rewind(n_full + known)
        del self._evaluated[known:]
        pending = tokens[n_full + known :]
        logits = self._target.decode(pending, mask=self._mask(), rows=rows)
        self._evaluated += pending
        return logits


def _settled(known: Sequence[int], tokens: Sequence[int], limit: int) -> int:
    """How many of the `known` tokens tokens[:limit] begins with; only the last MAX_ROWS may differ, see Drafter."""
    end = min(len(known), limit)
    n = max(0, end - MAX_ROWS)
    while n < end and known[n] == tokens[n]:
        n += 1
    return n


class GreedyDrafter:
    """A model's own first choices, one a pass: a small model in its own cache, or the target under a mask."""

    def __init__(self, name: str, cache: OwnCache | SharedCache) -> None:
        self.name = name
        self._cache = cache

    def begin(self, prompt: Sequence[int]) -> None:
        self._cache.begin(prompt)

    def guesses(self, tokens: Sequence[int]) -> Iterator[Guess]:
        sequence = list(tokens)
        while len(sequence) <= self._cache.room:
            [row] = self._cache.logits(sequence)
            token = int(row.argmax())
            yield Guess(token, _probability(row, token), row)
            sequence.append(token)


class NgramDrafter:
    """What followed the longest earlier occurrence of the sequence's last tokens; the latest one of equal length.

    Prompt lookup over prompt and output. An index from every n-gram of `shortest` to `longest` tokens to its latest
    place makes a round's cost independent of the context. Confidence grows with the match: n / (n + 1).
    """

    name = "ngram"

    def __init__(self, shortest: int = 2, longest: int = 8) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams need 1 <= shortest <= longest, not {shortest} and {longest}")
        self._lengths = range(longest, shortest - 1, -1)
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> where its latest known continuation starts

    def begin(self, prompt: Sequence[int]) -> None:
        self._tokens = []
        self._ends = {}
        self._index(prompt)

    def guesses(self, tokens: Sequence[int]) -> Iterator[Guess]:
        self._index(tokens)
        found = self._find()
        if found is None:
            return
        at, n = found
        period = len(self._tokens) - at  # beyond the end what was found repeats itself
        for i in count():
            yield Guess(self._tokens[at + i % period], n / (n + 1))

    def _index(self, tokens: Sequence[int]) -> None:
        """Take in what is new. The n-grams that end at the last token are left out: nothing follows them yet."""
        known = _settled(self._tokens, tokens, len(tokens))
        del self._tokens[known:]
        for token in tokens[known:]:
            for n in self._lengths:
                if n <= len(self._tokens):
                    self._ends[tuple(self._tokens[-n:])] = len(self._tokens)
            self._tokens.append(token)

    def _find(self) -> tuple[int, int] | None:
        """(place after the match, length of the match). Entries that a changed sequence made stale do not count."""
        for n in self._lengths:
            if n > len(self._tokens):
                continue
            suffix = self._tokens[-n:]
            at = self._ends.get(tuple(suffix))
            if at is not None and at < len(self._tokens) and self._tokens[at - n : at] == suffix:
                return at, n
        return None


class ChainDrafter:
    """The first of several drafters that has a guess."""

    def __init__(self, drafters: Sequence[Drafter], name: str = "chain") -> None:
        self.name = name
        self._drafters = drafters

    def begin(self, prompt: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.begin(prompt)

    def guesses(self, tokens: Sequence[int]) -> Iterator[Guess]:
        for drafter in self._drafters:
            guess = None
            for guess in drafter.guesses(tokens):
                yield guess
            if guess is not None:
                return


class UntilEnd:
    """A drafter that stops at the end of the answer: of what it would guess beyond, nobody reads anything."""

    def __init__(self, drafter: Drafter, is_end: Callable[[int], bool]) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._is_end = is_end

    def begin(self, prompt: Sequence[int]) -> None:
        self._drafter.begin(prompt)

    def guesses(self, tokens: Sequence[int]) -> Iterator[Guess]:
        for guess in self._drafter.guesses(tokens):
            yield guess
            if self._is_end(guess.id):
                return


class CascadeDrafter:
    """A drafter whose guesses a stronger model has looked through: CS-Drafting's inner level (arXiv 2312.11462).

    The judge sees `width` guesses a pass. One stands if leniency * judge(token) >= its drafter's confidence in it, the
    first that does not is replaced by the judge's own choice. The full model decides in the end, so leniency costs
    nothing but rejected drafts. With the target under a mask as judge it is the slim filter of exact mode.
    """

    def __init__(
        self, drafter: Drafter, cache: OwnCache | SharedCache, *, name: str, leniency: float = 2.0, width: int = 4
    ) -> None:
        if leniency < 1:
            raise ValueError(f"leniency is {leniency}; it must be at least 1")
        self.name = name
        self._drafter = drafter
        self._cache = cache
        self._leniency = leniency
        self._width = width

    def begin(self, prompt: Sequence[int]) -> None:
        self._cache.begin(prompt)
        self._drafter.begin(prompt)

    def guesses(self, tokens: Sequence[int]) -> Iterator[Guess]:
        sequence = list(tokens)
        while len(sequence) <= self._cache.room:
            width = min(self._width, self._cache.room - len(sequence))
            inner = list(islice(self._drafter.guesses(sequence), width))
            rows = self._cache.logits([*sequence, *(guess.id for guess in inner)], len(inner) + 1)
            judged = [self._judge(row, guess) for row, guess in zip(rows, [*inner, None], strict=True)]
            changed = next(i for i, (stands, _) in enumerate(judged) if not stands)
            for _, guess in judged[: changed + 1]:
                sequence.append(guess.id)
                yield guess

    def _judge(self, row: Row, guess: Guess | None) -> tuple[bool, Guess]:
        """(whether the guess stands, it or what replaces it); the judge's own next token never "stands"."""
        if guess is not None:
            probability = _probability(row, guess.id)
            if self._leniency * probability >= guess.confidence:
                return True, Guess(guess.id, probability)
        token = int(row.argmax())
        return False, Guess(token, _probability(row, token))


def _probability(row: Row, token: int) -> float:
    """Of `token` under softmax of `row`."""
    return float(1.0 / np.exp(row - row[token]).sum())
