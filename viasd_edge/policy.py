"""Who drafts, how much, and who verifies: planners for the strategies.

`Fixed` does what it is told and stops a draft by adaptive confidence. `Auto` maximises expected tokens per second from
the measured cost of every pass and from how often guesses have stood, and is free to decode plainly.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import mul
from typing import Any

from viasd_edge.curves import Curve
from viasd_edge.strategies.common import Draft, Drafter, Guess, Round

_CELLS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # bounds of confidence within which guesses are counted together
_PRIOR = 2.0
_FORGET = 0.97
_MEMORY = 40.0  # guesses over which a drafter's chance is averaged
_LOOKAHEAD = 8
_RATE_MEMORY = 0.9
_SMOOTH = 0.1
_ALLOWED_LOSS = 0.0195  # of the time of plain decoding, over as many tokens as were generated, at least _SHORT
_SHORT = 64  # tokens
_LONG = 128  # plain rounds in a row, at most, until drafting is tried once more
_CATCH_UP = 0.15  # of a guess's seconds: a drafter's evaluation of a token that was decoded without it
_QUIET_ROUNDS = 16  # plain rounds in a row after which drafting counts as given up, and is tried once more


class Fixed:
    """One drafter, its drafts at most `draft_max` long.

    A draft also ends when the running product of its confidences falls under a threshold that follows `wanted`
    acceptance: the rule of Draft & Verify (arXiv 2309.08168: smoothed acceptance, steps of 0.01, start 0.8) applied
    to the product along the draft, as EAGLE-2 (arXiv 2406.16858) values it, instead of to single tokens.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        draft_max: int,
        slim: bool = False,
        keep_logits: bool = False,
        wanted: float = 0.9,
        threshold: float = 0.8,
    ) -> None:
        self._drafter = drafter
        self._draft_max = draft_max
        self._slim = slim
        self._keep_logits = keep_logits
        self._wanted = wanted
        self.threshold = threshold
        self._acceptance = wanted

    def begin(self, prompt: Sequence[int]) -> None:
        self._drafter.begin(prompt)

    def draft(self, tokens: Sequence[int], room: int) -> Draft:
        guesses: list[Guess] = []
        survives = 1.0
        room = min(room, self._draft_max)
        for guess in islice(self._drafter.guesses(tokens), room) if room else ():
            guesses.append(_kept(guess, keep_logits=self._keep_logits))
            survives *= guess.confidence
            if survives < self.threshold:
                break
        return Draft(self._drafter.name, guesses, self._slim, len(guesses))

    def learn(self, round_: Round) -> None:
        drafted = len(round_.draft.guesses)
        if not drafted:
            return
        self._acceptance = 0.5 * self._acceptance + 0.5 * round_.accepted / drafted
        step = self.threshold
        if self._acceptance < self._wanted:
            step += 0.01
        elif drafted < self._draft_max:
            step -= 0.01
        self.threshold = min(max(0.9 * self.threshold + 0.1 * step, 0.0), 1.0)


class Fallback:
    """BiLD's drafting (arXiv 2302.07863): up to the first guess that is less than `sure`, which is dropped."""

    def __init__(self, drafter: Drafter, *, draft_max: int = 10, sure: float = 0.6) -> None:
        self._drafter = drafter
        self._draft_max = draft_max
        self._sure = sure

    def begin(self, prompt: Sequence[int]) -> None:
        self._drafter.begin(prompt)

    def draft(self, tokens: Sequence[int], room: int) -> Draft:
        guesses: list[Guess] = []
        asked = 0
        room = min(room, self._draft_max)
        for guess in islice(self._drafter.guesses(tokens), room) if room else ():
            asked += 1
            if guess.confidence < self._sure:
                break
            guesses.append(_kept(guess, keep_logits=False))
        return Draft(self._drafter.name, guesses, asked=asked)

    def learn(self, round_: Round) -> None:
        """Its thresholds do not move."""


@dataclass
class Costs:
    """What passes cost, seconds: of the full model, of the slim verifier, and of a drafter's guess, by its name."""

    full: Curve
    guess: Mapping[str, float]
    slim: Curve | None = None


class _Passes:
    """Seconds of passes by width: a measured curve, corrected by what passes have taken of late.

    Every pass corrects all widths, as machines slow down and recover; and beyond that its own width and, less, those
    up to twice or half of it: what a wider pass costs beside a plain one is what drafting is decided by.
    """

    def __init__(self, curve: Curve, n_max: int) -> None:
        self._seconds = curve.table(n_max)
        self._observed = 0

    def seconds(self, n: int) -> float:
        return self._seconds[min(n, len(self._seconds) - 1)]

    def observe(self, n: int, seconds: float) -> None:
        n = min(n, len(self._seconds) - 1)
        ratio = seconds / self._seconds[n]
        if self._observed:  # a pass that was interrupted says nothing
            ratio = min(max(ratio, 0.5), 2.0)
        self._observed += 1
        shared = max(_SMOOTH, 1 / self._observed)
        own = min(_SMOOTH, 1.0 - shared)
        corrected = (
            known * (1.0 + (ratio - 1.0) * (shared + own * max(0.0, 1.0 - abs(math.log2(width / n)))))
            for width, known in enumerate(self._seconds[1:], 1)
        )
        self._seconds[1:] = accumulate(corrected, max)  # a wider pass is never the cheaper one


class Times:
    """What passes and guesses take: costs as they were measured, corrected by all generations so far.

    How often guesses stand is not kept from one to the next: after texts of other kinds that made code slower by 3 %.
    Nor is what drafting won: what one text won, another may not lose.
    """

    def __init__(self, costs: Costs, draft_max: int) -> None:
        self.full = _Passes(costs.full, draft_max + 1)
        self.slim = _Passes(costs.slim, draft_max) if costs.slim else None
        self.guess = dict(costs.guess)

    def observe_guess(self, name: str, seconds: float) -> None:
        known = self.guess[name]
        self.guess[name] += _SMOOTH * (min(max(seconds, known / 2), known * 2) - known)


@dataclass
class _Arm:
    """A drafter, what its guess costs, and how its confidence has turned out.

    A guess's chance to stand is its confidence, corrected by what became of guesses of like confidence: counts that
    forget, with the confidence itself as a prior.
    """

    drafter: Drafter
    times: Times
    chance: float = 0.8  # of a next guess of which nothing is known yet; a hopeful start
    weight: float = 4.0  # of that start, in guesses
    cells: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(len(_CELLS) + 1)])

    @property
    def seconds(self) -> float:
        return self.times.guess[self.drafter.name]

    @property
    def is_free(self) -> bool:
        return self.seconds == 0.0

    def stands(self, confidence: float) -> float:
        accepted, tested = self.cells[bisect.bisect(_CELLS, confidence)]
        return (_PRIOR * confidence + accepted) / (_PRIOR + tested)

    def observe(self, confidence: float, *, accepted: bool) -> None:
        cell = self.cells[bisect.bisect(_CELLS, confidence)]
        cell[0] = cell[0] * _FORGET + accepted
        cell[1] = cell[1] * _FORGET + 1.0
        self.expect(float(accepted))

    def expect(self, chance: float) -> None:
        self.chance += (chance - self.chance) / (self.weight + 1)
        self.weight = min(self.weight + 1, _MEMORY)


class _Rate:
    """Tokens per second of the latest rounds."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens = self._tokens * _RATE_MEMORY + tokens
        self._seconds = self._seconds * _RATE_MEMORY + seconds

    def at_least(self, floor: float) -> float:
        return max(floor, self._tokens / self._seconds) if self._seconds > 0 else floor


class _FullVerifier:
    """The full model evaluates the last token and the draft, and adds a token of its own."""

    slim = False

    def __init__(self, full: _Passes) -> None:
        self._full = full

    def seconds(self, chances: Sequence[float]) -> float:
        """Of verifying guesses that are reached and stand with these chances, each given all before it."""
        return self._full.seconds(len(chances) + 1)

    def tokens(self, chances: Sequence[float]) -> float:
        """Expected of it."""
        return sum(chances) + 1.0


class _SlimVerifier:
    """The slim verifier judges the draft; what it escalates costs a full pass, also where the draft then stands."""

    slim = True

    def __init__(self, slim: _Passes, full: _Passes) -> None:
        self._slim = slim
        self._full = full
        self._gated = 20.0  # tokens judged of late, and those of them that were escalated; a first guess
        self._escalated = 2.0

    def seconds(self, chances: Sequence[float]) -> float:
        n = len(chances)
        escalates = 1.0 - (1.0 - self._escalated / self._gated) ** n
        return self._slim.seconds(n) + escalates * self._full.seconds(n // 2 + 1)

    def tokens(self, chances: Sequence[float]) -> float:
        return sum(chances) + 1.0 - chances[-1]

    def learn(self, round_: Round) -> None:
        self._slim.observe(round_.slim_width, round_.slim_seconds)
        keep = _FORGET**round_.gated
        self._gated = self._gated * keep + round_.gated
        self._escalated = self._escalated * keep + round_.escalated


class Auto:
    """Maximises expected tokens per second.

    Optimal stopping of a renewal process: at the rate R of tokens per second that is being reached, a second is worth
    R tokens, so a further guess is asked for while the tokens it is expected to add exceed R times the seconds that
    it and its verification take, and of all ways to spend a round the one with the largest surplus of expected tokens
    over R x seconds is chosen; plain decoding is the one without a draft. Drafts so stop by the running product of
    confidences, at a threshold that follows from costs and acceptance rather than from a wanted acceptance.

    A drafter that costs nothing is there or not, as the text has it: the rate that others reach without it is what they
    are measured by, and its own fast rounds do not make slower ones look worthless.

    However sure a drafter is, no draft is longer than what may be lost: were all of it rejected, the whole generation
    would still take less than 2 % longer than plain decoding of 64 tokens or of all so far. What was won may be risked.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        costs: Costs | Times,
        *,
        draft_max: int,
        keep_logits: bool = False,
    ) -> None:
        """`costs` as they were measured, or as earlier generations have corrected them, which this one goes on with."""
        self._times = costs if isinstance(costs, Times) else Times(costs, draft_max)
        self._arms = [_Arm(drafter, self._times) for drafter in drafters]
        self._keep_logits = keep_logits
        self._draft_max = draft_max
        self._full = self._times.full
        self._slim_verifier = _SlimVerifier(self._times.slim, self._full) if self._times.slim else None
        verifiers = [_FullVerifier(self._full), self._slim_verifier]
        self._verifiers = [verifier for verifier in verifiers if verifier]
        self._rate = _Rate()  # of rounds that were not drafted for free
        self._free_rate = _Rate()
        self._lost = 0.0  # seconds behind plain decoding, all in all
        self._plain_total = 0.0  # seconds that plain decoding would have taken, all in all
        self._plain_rounds = 0  # in a row
        self._patience = _QUIET_ROUNDS
        self.rounds: dict[str, int] = {}  # by drafter, "none" is plain
        self.gave_up = False  # ever

    def begin(self, prompt: Sequence[int]) -> None:
        for arm in self._arms:
            arm.drafter.begin(prompt)

    @property
    def rate(self) -> float:
        """Tokens per second of late, free drafts apart; plain decoding's if that is more, or nothing is known."""
        return self._rate.at_least(1.0 / self._full.seconds(1))

    def draft(self, tokens: Sequence[int], room: int) -> Draft:
        room = min(room, self._draft_max)
        best, most = Draft(), self._plain_surplus
        asked: _Arm | None = None  # who is to draft instead of `best`
        due = self._plain_rounds >= self._patience  # to try, although it does not look worth it
        for arm in self._arms:
            longest = self._affordable(arm, room)
            if longest == 0:
                continue
            if arm.is_free:  # asking costs nothing, so ask
                guesses = list(islice(arm.drafter.guesses(tokens), longest))
                chances = list(accumulate((arm.stands(guess.confidence) for guess in guesses), mul))
                draft, surplus = self._trimmed(arm, guesses, chances)
                if surplus > most:
                    best, most, asked = draft, surplus, None
                elif due and guesses and not best.guesses:
                    best = Draft(arm.drafter.name, guesses[:1], asked=1)
            elif (surplus := self._hope(arm, longest)) > most:
                most, asked = surplus, arm
            elif due and not best.guesses:
                asked, room = arm, 1
        return self._pull(asked, tokens, self._affordable(asked, room)) if asked else best

    @property
    def _plain_surplus(self) -> float:
        return 1.0 - self.rate * self._full.seconds(1)

    def _hope(self, arm: _Arm, room: int) -> float:
        """The surplus expected of drafting by `arm`, before its first guess."""
        chances = [arm.chance**i for i in range(1, min(room, 2 * _LOOKAHEAD) + 1)]
        return max(
            verifier.tokens(chances[:n]) - self.rate * (n * arm.seconds + verifier.seconds(chances[:n]))
            for verifier in self._verifiers
            for n in range(1, len(chances) + 1)
        )

    def _affordable(self, arm: _Arm, room: int) -> int:
        """The longest draft whose whole rejection may be risked: one guess by all that may be lost, more by half."""
        plain = self._full.seconds(1)
        may_lose = _ALLOWED_LOSS * max(self._plain_total, _SHORT * plain) - self._lost
        may_lose -= arm.seconds * max(self._plain_rounds - 3, 0) * _CATCH_UP

        def fits(n: int) -> bool:
            return n * arm.seconds + self._full.seconds(n + 1) - plain <= (may_lose if n == 1 else may_lose / 2)

        return next((n for n in range(room) if not fits(n + 1)), room)

    def _pull(self, arm: _Arm, tokens: Sequence[int], room: int) -> Draft:
        """Ask for guesses while further ones are expected to pay."""
        guesses: list[Guess] = []
        chances: list[float] = []
        for guess in arm.drafter.guesses(tokens):
            guesses.append(_kept(guess, keep_logits=self._keep_logits))
            chances.append((chances[-1] if chances else 1.0) * arm.stands(guess.confidence))
            if len(guesses) == room or not self._pays(arm, chances, room):
                break
        draft, _ = self._trimmed(arm, guesses, chances)
        draft.drafter, draft.asked = arm.drafter.name, len(guesses)
        return draft

    def _pays(self, arm: _Arm, chances: Sequence[float], room: int) -> bool:
        """Whether some number of further guesses adds more tokens than its seconds are worth."""
        more = [chances[-1] * arm.chance**i for i in range(1, min(_LOOKAHEAD, room - len(chances)) + 1)]
        longer = [[*chances, *more[:n]] for n in range(1, len(more) + 1)]
        return any(
            verifier.tokens(ahead) - verifier.tokens(chances)
            > self.rate
            * ((len(ahead) - len(chances)) * arm.seconds + verifier.seconds(ahead) - verifier.seconds(chances))
            for verifier in self._verifiers
            for ahead in longer
        )

    def _trimmed(self, arm: _Arm, guesses: Sequence[Guess], chances: Sequence[float]) -> tuple[Draft, float]:
        """The part of a draft, and the verifier for it, that promise most; and their surplus at `rate`.

        `chances` are those of each guess to be reached and to stand.
        """
        rate = self._free_rate.at_least(self.rate) if arm.is_free else self.rate
        best, surplus = Draft(), self._plain_surplus
        most = 1.0 - rate * self._full.seconds(1)
        for verifier in self._verifiers:
            for n in range(1, len(guesses) + 1):
                tokens, seconds = verifier.tokens(chances[:n]), verifier.seconds(chances[:n])
                if tokens - rate * seconds > most:
                    most, surplus = tokens - rate * seconds, tokens - self.rate * seconds
                    best = Draft(arm.drafter.name, list(guesses[:n]), verifier.slim, len(guesses))
        return best, surplus

    def learn(self, round_: Round) -> None:
        name = round_.draft.drafter if round_.draft.guesses else None
        self.rounds[name or "none"] = self.rounds.get(name or "none", 0) + 1
        for arm in self._arms:
            if arm.drafter.name == round_.draft.drafter:
                self._learn_arm(arm, round_)
        if round_.slim_width and self._slim_verifier:
            self._slim_verifier.learn(round_)
        elif round_.full_width:
            self._full.observe(round_.full_width, round_.full_seconds)
        free = any(arm.is_free and arm.drafter.name == name for arm in self._arms)
        (self._free_rate if free else self._rate).add(len(round_.emitted), round_.seconds)
        plain = len(round_.emitted) * self._full.seconds(1)
        self._plain_total += plain
        self._lost += round_.seconds - plain
        if round_.draft.guesses and self._plain_rounds >= self._patience:
            self._patience = _QUIET_ROUNDS if round_.accepted else min(2 * self._patience, _LONG)
        self._plain_rounds = 0 if round_.draft.guesses else self._plain_rounds + 1
        self.gave_up |= self._plain_rounds >= _QUIET_ROUNDS

    def _learn_arm(self, arm: _Arm, round_: Round) -> None:
        guesses = round_.draft.guesses
        for i, guess in enumerate(guesses[: round_.tested]):
            arm.observe(guess.confidence, accepted=i < round_.accepted)
        if not guesses:  # a draft in vain tells something, too
            arm.expect(0.0)
        if not arm.is_free and round_.draft.asked:
            self._times.observe_guess(arm.drafter.name, round_.draft_seconds / round_.draft.asked)

    def explain(self) -> list[dict[str, Any]]:
        """What it expects now, per way to go on: tokens/s of plain decoding and of each drafter at its best length."""
        plain_ms = self._full.seconds(1) * 1e3
        rows: list[dict[str, Any]] = [
            {
                "drafter": "none",
                "verifier": "full",
                "guess_ms": None,
                "chance": None,
                "length": 0,
                "tokens_per_s": round(1e3 / plain_ms, 2),
                "rounds": self.rounds.get("none", 0),
            }
        ]
        for arm in self._arms:
            chances = [arm.chance**i for i in range(1, self._draft_max + 1)]
            for verifier in self._verifiers:
                rates = [
                    verifier.tokens(chances[:n]) / (n * arm.seconds + verifier.seconds(chances[:n]))
                    for n in range(1, len(chances) + 1)
                ]
                length = max(range(len(rates)), key=rates.__getitem__) + 1
                rows.append(
                    {
                        "drafter": arm.drafter.name,
                        "verifier": "slim" if verifier.slim else "full",
                        "guess_ms": round(arm.seconds * 1e3, 2),
                        "chance": round(arm.chance, 3),
                        "length": length,
                        "tokens_per_s": round(rates[length - 1], 2),
                        "rounds": self.rounds.get(arm.drafter.name, 0),
                    }
                )
        return rows


def _kept(guess: Guess, *, keep_logits: bool) -> Guess:
    """A guess that outlives the next one: its logits copied, or dropped where nobody reads them."""
    return guess._replace(logits=guess.logits.copy() if keep_logits and guess.logits is not None else None)
