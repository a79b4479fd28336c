"""Drafters that run a model."""

from __future__ import annotations

from collections.abc import Sequence

from viasd_edge.runner import Runner
from viasd_edge.strategies.common import greedy, matching_prefix


class ModelDrafter:
    """A small model of the target's tokenizer, in a context of its own, guessing greedily."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._evaluated: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Evaluate all but the last token of a new prompt."""
        self._runner.rewind(0)
        self._runner.decode(prompt[:-1], rows=0)
        self._runner.reset_work()
        self._evaluated = list(prompt[:-1])

    def propose(self, tokens: Sequence[int], n: int) -> list[int]:
        """`n` guesses at what follows `tokens`.

        Invariant: the runner has evaluated exactly self._evaluated.
        """
        # the last token must be evaluated anew: its logits are the first guess
        known = matching_prefix(self._evaluated, tokens[:-1])
        self._runner.rewind(known)
        pending = list(tokens[known:])
        drafted: list[int] = []
        while len(drafted) < n:
            [chosen] = greedy(self._runner.decode(pending, rows=1))
            drafted.append(chosen)
            pending = [chosen]
        self._evaluated = [*tokens, *drafted[:-1]]
        return drafted
