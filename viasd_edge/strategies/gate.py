"""Gates: what the slim verifier does with a drafted token.

Each is a small value with thresholds, chosen by name; all have the form decide(draft row, slim row, token). A rule of
the speculative cascades that keeps a token accepts it here; where it defers, the full model decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from viasd_edge.strategies.common import Guess, Row


class Decision(Enum):
    """Of the slim verifier, for one drafted token."""

    ACCEPT = "accept"  # the drafted token stands
    REGENERATE = "regenerate"  # the slim verifier's own choice replaces it
    ESCALATE = "escalate"  # the full model decides


class Distribution(Protocol):
    """What a gate asks of a tier's distribution at one position."""

    @property
    def max(self) -> float:
        """The largest probability."""
        ...

    def ratio(self, token: int) -> float:
        """Probability of `token` over the largest."""
        ...

    def probability(self, token: int) -> float: ...

    def distance(self, other: Any) -> float:
        """Total variation to another distribution of the same kind."""
        ...


class RowDistribution:
    """The distribution of one row of logits [n_vocab].

    Of a guess without logits only `confidence` in its token is known; the rest is taken to lie elsewhere.
    """

    def __init__(self, logits: Row | None, token: int, confidence: float = 1.0) -> None:
        self._logits = logits
        self._token = token
        self._confidence = confidence

    @cached_property
    def max(self) -> float:
        return self._confidence if self._logits is None else 1.0 / self._sum

    @cached_property
    def _sum(self) -> float:
        assert self._logits is not None  # noqa: S101  # asked of rows only
        return float(np.exp(self._logits - self._logits.max()).sum())

    def ratio(self, token: int) -> float:
        """Softmax's sum cancels."""
        if self._logits is None:
            return float(token == self._token)
        return float(np.exp(self._logits[token] - self._logits.max()))

    def probability(self, token: int) -> float:
        return self.ratio(token) * self.max

    def distance(self, other: RowDistribution) -> float:
        """The other must have logits."""
        if self._logits is None:
            return 1.0 - min(self._confidence, other.probability(self._token))
        n = min(len(self._logits), len(other.dense))  # vocabularies may be padded differently
        return float(0.5 * np.abs(self.dense[:n] - other.dense[:n]).sum())

    @cached_property
    def dense(self) -> NDArray[np.float32]:
        """All probabilities, float32 [n_vocab]."""
        assert self._logits is not None  # noqa: S101  # asked of rows only
        weights = np.exp(self._logits - self._logits.max())
        return np.asarray(weights / self._sum, np.float32)


class Gate(Protocol):
    """Judges one drafted token by the drafter's and the slim verifier's distributions."""

    name: ClassVar[str]
    needs_draft: ClassVar[bool]  # whether it looks at the drafter's distribution

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision: ...


def _by(holds: bool) -> Decision:
    return Decision.ACCEPT if holds else Decision.ESCALATE


@dataclass(frozen=True)
class Ratio:
    """r = slim(token) / max slim, the statistic of VIA-SD (arXiv 2606.12243).

    r >= accept: accept; r >= escalate: regenerate; else escalate. The paper's constants (0.5, 0.3), read as
    r >= 1 - alpha, leave the middle band empty, so the thresholds are explicit here, as in the reproduction
    nicolesplaining/viasd-rl, whose values are the defaults. Needs 0 <= escalate <= accept <= 1.
    """

    accept: float = 0.6
    escalate: float = 0.3
    name: ClassVar[str] = "ratio"
    needs_draft: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.escalate <= self.accept <= 1:
            raise ValueError(f"thresholds need 0 <= escalate <= accept <= 1, not {self.escalate} and {self.accept}")

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        ratio = slim.ratio(token)
        if ratio >= self.accept:
            return Decision.ACCEPT
        return Decision.REGENERATE if ratio >= self.escalate else Decision.ESCALATE


@dataclass(frozen=True)
class Nested:
    """VIA-SD's two gates as written: r >= 1 - outer, else escalate; inside, r >= 1 - inner accepts, else regenerate.

    The published inner 0.5, outer 0.3 leave nothing to regenerate: then it is one threshold, r >= 0.7.
    """

    inner: float = 0.5
    outer: float = 0.3
    name: ClassVar[str] = "nested"
    needs_draft: ClassVar[bool] = False

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        ratio = slim.ratio(token)
        if ratio < 1 - self.outer:
            return Decision.ESCALATE
        return Decision.ACCEPT if ratio >= 1 - self.inner else Decision.REGENERATE


@dataclass(frozen=True)
class Confident:
    """Accept by ratio; else regenerate if the slim verifier is sure of its own choice (max slim >= sure)."""

    accept: float = 0.6
    sure: float = 0.9
    name: ClassVar[str] = "confident"
    needs_draft: ClassVar[bool] = False

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        if slim.ratio(token) >= self.accept:
            return Decision.ACCEPT
        return Decision.REGENERATE if slim.max >= self.sure else Decision.ESCALATE


@dataclass(frozen=True)
class Chow:
    """Speculative cascades (arXiv 2405.19261): accept if max draft >= 1 - alpha."""

    alpha: float = 0.1
    name: ClassVar[str] = "chow"
    needs_draft: ClassVar[bool] = True

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        return _by(draft.max >= 1 - self.alpha)


@dataclass(frozen=True)
class Diff:
    """Speculative cascades: accept if max draft >= max slim - alpha."""

    alpha: float = 0.1
    name: ClassVar[str] = "diff"
    needs_draft: ClassVar[bool] = True

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        return _by(draft.max >= slim.max - self.alpha)


@dataclass(frozen=True)
class Opt:
    """Speculative cascades: accept if max draft >= max slim - alpha * total variation."""

    alpha: float = 0.1
    name: ClassVar[str] = "opt"
    needs_draft: ClassVar[bool] = True

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        return _by(draft.max >= slim.max - self.alpha * draft.distance(slim))


@dataclass(frozen=True)
class TokenV1:
    """Speculative cascades: accept if draft(token) >= max slim - alpha."""

    alpha: float = 0.1
    name: ClassVar[str] = "token-v1"
    needs_draft: ClassVar[bool] = True

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:
        return _by(draft.probability(token) >= slim.max - self.alpha)


@dataclass(frozen=True)
class TokenV2:
    """Speculative cascades: accept if slim(token) >= max slim - alpha."""

    alpha: float = 0.1
    name: ClassVar[str] = "token-v2"
    needs_draft: ClassVar[bool] = False

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        return _by(slim.probability(token) >= slim.max - self.alpha)


@dataclass(frozen=True)
class TokenV3Gate:
    """Speculative cascades: accept if slim(token) >= (1 - alpha) max slim; Ratio without its middle band."""

    alpha: float = 0.3
    name: ClassVar[str] = "token-v3"
    needs_draft: ClassVar[bool] = False

    def decide(self, draft: Distribution, slim: Distribution, token: int) -> Decision:  # noqa: ARG002
        return _by(slim.ratio(token) >= 1 - self.alpha)


GATES: dict[str, type[Gate]] = {
    gate.name: gate for gate in (Ratio, Nested, Confident, Chow, Diff, Opt, TokenV1, TokenV2, TokenV3Gate)
}


def parse_gate(text: str) -> Gate:
    """A gate from its text form, "ratio" or "ratio:accept=0.6,escalate=0.3". Raises ValueError with one line."""
    name, _, settings = text.partition(":")
    if name not in GATES:
        raise ValueError(f"gate {name!r} is none of {', '.join(GATES)}")
    known = {item.name for item in fields(GATES[name])}  # type: ignore[arg-type]  # all are dataclasses
    values = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in known:
            raise ValueError(f"gate {name} has no {key!r}; it has {', '.join(sorted(known))}")
        try:
            values[key] = float(value)
        except ValueError:
            raise ValueError(f"gate setting {setting!r} is not like {key}=0.5") from None
        if not math.isfinite(values[key]):
            raise ValueError(f"gate setting {setting!r} must be finite")
    return GATES[name](**values)


def gate_text(gate: Gate) -> str:
    """The text form that `parse_gate` reads."""
    settings = ",".join(f"{key}={value:g}" for key, value in vars(gate).items())
    return f"{gate.name}:{settings}"


def judge(gate: Gate, logits: NDArray[np.float32], guesses: Sequence[Guess]) -> list[Decision]:
    """Decisions on drafted tokens up to and including the first that is not accepted.

    Row i of the slim verifier's `logits` [n, n_vocab] judges guesses[i].
    """
    return until_changed(
        gate.decide(RowDistribution(guess.logits, guess.id, guess.confidence), RowDistribution(row, guess.id), guess.id)
        for row, guess in zip(logits, guesses, strict=True)
    )


def until_changed(decisions: Iterable[Decision]) -> list[Decision]:
    """Decisions up to and including the first that is not to accept; no later one is made."""
    made = []
    for decision in decisions:
        made.append(decision)
        if decision is not Decision.ACCEPT:
            break
    return made
