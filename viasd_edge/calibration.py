"""Gates calibrated to a stated error: the share of emitted tokens that differ from the full model's choice.

Thresholds are found on observed positions, by what each gate would have decided there; how far the slim verifier's KV
carries is not known from those, so the winner is then run on other prompts, with its KV kept and with the full model
catching up, and made stricter until the error measured there is within the limit.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from viasd_edge.curves import Curves
from viasd_edge.engine import Engine
from viasd_edge.errors import EdgeError
from viasd_edge.evaluation import Position
from viasd_edge.mask import Calibration, LayerMask
from viasd_edge.runner import Runner
from viasd_edge.strategies import GATES, Decision, Gate, gate_text
from viasd_edge.strategies.gate import Confident, Nested, Ratio, until_changed

_STEPS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_SURVIVES = 0.5  # a simulated draft ends when the product of its confidences is less
_LONGEST = 16
_TRIES = 4


def candidates(names: Iterable[str] = GATES) -> Iterator[Gate]:
    """Gates of every kind named, over a grid of thresholds."""
    for name in names:
        kind = GATES[name]
        if kind is Ratio:
            pairs = itertools.product(_STEPS, _STEPS)
            yield from (Ratio(accept, escalate) for accept, escalate in pairs if escalate <= accept)
        elif kind is Nested:
            pairs = itertools.product(_STEPS, _STEPS)
            yield from (Nested(inner, outer) for inner, outer in pairs if inner <= outer)
        elif kind is Confident:
            yield from (Confident(accept, sure) for accept, sure in itertools.product(_STEPS, _STEPS[4:]))
        else:
            yield from (kind(alpha) for alpha in _STEPS)  # type: ignore[call-arg]  # all the others have one threshold


@dataclass(frozen=True)
class Forecast:
    """What a gate would do on observed positions; shares of emitted tokens."""

    gate: Gate
    error: float
    accepted: float
    escalated: float
    seconds: float  # a token


def forecast(gate: Gate, samples: Sequence[Sequence[Position]], curves: Curves, *, keep_kv: bool = True) -> Forecast:
    """Walk through every sample in blocks, as tiered decoding would if every token it emits were the sample's own.

    Without `keep_kv` a full pass also evaluates what was kept since the one before. Raises ValueError without a
    drafter's curve.
    """
    if curves.draft is None:
        raise ValueError("tiered decoding needs a drafter's curve")
    guess = curves.draft.at(1)
    wrong = accepted = escalated = n = 0
    seconds = 0.0
    for positions in samples:
        at = n_full = 0
        while at < len(positions):
            block = _draft(positions[at:])
            decisions = until_changed(
                gate.decide(position.draft_summary, position.slim_summary, position.draft) for position in block
            )
            seconds += len(block) * guess + curves.slim.at(len(block))
            emitted = len(decisions)
            for position, decision in zip(block, decisions, strict=False):
                accepted += decision is Decision.ACCEPT
                wrong += decision is Decision.ACCEPT and position.draft != position.full
                wrong += decision is Decision.REGENERATE and position.slim != position.full
            if decisions[-1] is Decision.ESCALATE:  # the full model decides the rest of the block
                first = at if keep_kv else n_full
                seconds += curves.full.at(at + len(block) + 1 - first)
                rest = block[len(decisions) - 1 :]
                right = next((i for i, position in enumerate(rest) if position.draft != position.full), len(rest))
                emitted = min(len(decisions) + right, len(positions) - at)  # after the last right one it adds its own
                n_full = at + emitted
                escalated += 1
            at += emitted
            n += emitted
    return Forecast(gate, wrong / n, accepted / n, escalated / n, seconds / n)


def forecasts(
    samples: Sequence[Sequence[Position]],
    curves: Curves,
    gates: Iterable[Gate] | None = None,
    *,
    keep_kv: bool = True,
) -> list[Forecast]:
    """What every one of `gates` would do; None: all candidates."""
    return [forecast(gate, samples, curves, keep_kv=keep_kv) for gate in gates or candidates()]


def _draft(positions: Sequence[Position]) -> list[Position]:
    block: list[Position] = []
    survives = 1.0
    for position in positions[:_LONGEST]:
        block.append(position)
        survives *= position.confidence
        if survives < _SURVIVES:
            break
    return block


def best(forecasts: Sequence[Forecast], error: float) -> Forecast:
    """The fastest within `error`. Raises EdgeError if there is none."""
    within = [entry for entry in forecasts if entry.error <= error]
    if not within:
        raise EdgeError(f"no gate stays within an error of {error:g} here; allow more, or use exact mode")
    return min(within, key=lambda entry: entry.seconds)


@dataclass(frozen=True)
class Measured:
    """A gate at work on prompts."""

    gate: Gate
    keep_kv: bool
    error: float
    tokens: int
    tokens_per_s: float
    full_passes: int


def measure(
    gate: Gate, prompts: Sequence[Sequence[int]], *, parts: dict[str, Any], target: Runner, keep_kv: bool, n: int
) -> Measured:
    """Decode `n` tokens after each prompt in tiered mode; `parts` are draft and mask.

    Every draft goes to the slim verifier here; under the auto policy some do not, which can only lower the error.
    """
    engine = Engine(target, mode="tiered", gate=gate, keep_kv=keep_kv, policy="fixed", **parts)
    wrong = tokens = passes = 0
    ms = 0.0
    for prompt in prompts:
        generation = engine.generate(prompt, max_tokens=n)
        wrong += len(engine.disagreements(generation))
        tokens += len(generation.token_ids)
        passes += generation.full_passes
        ms += generation.timings["predicted_ms"] or 0.0
    return Measured(gate, keep_kv, wrong / max(tokens, 1), tokens, round(tokens / ms * 1e3, 3) if ms else 0.0, passes)


def settle(
    forecasts: Sequence[Forecast],
    prompts: Sequence[Sequence[int]],
    *,
    error: float,
    target: Runner,
    draft: Runner,
    mask: LayerMask,
    n: int,
    measured: dict[tuple[Gate, bool], Measured],
    seconds: float = math.inf,
) -> Calibration:
    """The gate that stays within `error` where it is measured, the faster way with the KV.

    Every try asks the forecasts for half the error of the one before; what was tried is kept in `measured`, by gate and
    whether the KV was kept. Raises EdgeError if none is strict enough, or `seconds` will not do for another try.
    """
    started = time.perf_counter()
    parts = {"draft": draft, "mask": mask}
    asked = error
    for tries in range(_TRIES):
        gate = best(forecasts, asked).gate
        if (time.perf_counter() - started) * (tries + 1) > seconds * max(tries, 1):
            raise EdgeError("the time is used up; `viasd-edge calibrate` goes on from here")
        for keep_kv in (True, False):
            if (gate, keep_kv) not in measured:
                measured[gate, keep_kv] = measure(gate, prompts, parts=parts, target=target, keep_kv=keep_kv, n=n)
        tried = [measured[gate, True], measured[gate, False]]
        within = [entry for entry in tried if entry.error <= error]
        if within:
            chosen = max(within, key=lambda entry: entry.tokens_per_s)
            found = {
                "error": round(chosen.error, 5),
                "tokens": chosen.tokens,
                "full_passes": chosen.full_passes,
                "keep_kv_tokens_per_s": tried[0].tokens_per_s,
                "catch_up_tokens_per_s": tried[1].tokens_per_s,
            }
            return Calibration(draft.model.fingerprint, error, gate_text(gate), chosen.keep_kv, found)
        asked /= 2
    raise EdgeError(
        f"no gate stayed within an error of {error:g}: the strictest measured {tried[0].error:.2%}; "
        "allow more with --error, or use exact mode"
    )
