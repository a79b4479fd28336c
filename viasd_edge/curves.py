"""t(n) as a curve: what a pass of n tokens costs a tier on this machine, measured once and kept."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from viasd_edge import __version__
from viasd_edge.folders import cache_dir, write_atomically
from viasd_edge.machine import describe
from viasd_edge.mask import LayerMask
from viasd_edge.runner import Runner

WIDTHS = (1, 2, 4, 8, 16, 32)
_CONTEXT = 96  # tokens before a measured pass
_REPEATS = 3

Timer = Callable[[int], float]
"""Seconds of one pass of n tokens."""


@dataclass(frozen=True)
class Curve:
    """Seconds of a pass by its number of tokens, `n` ascending from 1; between them a line, beyond them its slope."""

    n: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(one < other for one, other in zip(self.n, self.n[1:], strict=False))
        if not self.n or self.n[0] != 1 or not ascending or len(self.n) != len(self.seconds):
            raise ValueError(f"a curve needs widths from 1 up, each with its time, not {self.n}: {self.seconds}")
        if min(self.seconds) <= 0:
            raise ValueError(f"a pass takes time: {self.seconds}")

    def at(self, n: float) -> float:
        """t(n), seconds."""
        if n > self.n[-1] and len(self.n) > 1:
            slope = (self.seconds[-1] - self.seconds[-2]) / (self.n[-1] - self.n[-2])
            return self.seconds[-1] + slope * (n - self.n[-1])
        return float(np.interp(n, self.n, self.seconds))

    def table(self, n_max: int) -> list[float]:
        """t(0) = 0, t(1) .. t(n_max), never falling: a dip in a measurement is noise."""
        return [0.0, *np.maximum.accumulate([self.at(n) for n in range(1, n_max + 1)]).tolist()]

    def to_dict(self) -> dict[str, list[float]]:
        return {"n": list(self.n), "ms": [round(second * 1e3, 4) for second in self.seconds]}

    @classmethod
    def from_dict(cls, table: Mapping[str, Sequence[float]]) -> Curve:
        """From {"n": [...], "ms": [...]}. Raises KeyError, TypeError, ValueError."""
        return cls(tuple(int(n) for n in table["n"]), tuple(float(ms) / 1e3 for ms in table["ms"]))


@dataclass(frozen=True)
class Curves:
    """What passes of the tiers cost; without a drafter, `draft` is None."""

    draft: Curve | None
    slim: Curve
    full: Curve


def curve(runner: Runner, mask: LayerMask | None = None) -> Curve:
    """The curve of a model (under `mask`) as `runner` runs it: from the cache, else measured, which forgets its tokens.

    A few seconds for a 1.5B model. The cache goes by the model's contents, mask, threads, machine and library.
    """
    known = known_curve(runner, mask)
    if known:
        return known
    measured = measure_curve(runner, mask)
    path = _path(runner, mask)
    with suppress(OSError):  # a cache that cannot be written costs time, no more
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(measured.to_dict()))
    return measured


def known_curve(runner: Runner, mask: LayerMask | None = None) -> Curve | None:
    """The cached curve, None if there is none that can be read."""
    try:
        return Curve.from_dict(json.loads(_path(runner, mask).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure_curve(runner: Runner, mask: LayerMask | None = None) -> Curve:
    """Time a pass of each width after a warm-up, by turns; ends with an empty runner.

    The least of the times counts: what else runs on the machine only ever adds, and ratios are what matters here.
    """
    return measure_curves([(runner, mask)], _REPEATS, min)[0]


def measure_curves(
    tiers: Sequence[tuple[Runner, LayerMask | None]], repeats: int, of: Callable[[Sequence[float]], float]
) -> list[Curve]:
    """Curves of several models or masks that take turns, so that a machine that slows down slows all of them.

    `of` makes one time of the `repeats` that each pass took. Ends with empty runners.
    """
    n_ctx = min(runner.n_ctx for runner, _ in tiers)
    n_before = min(_CONTEXT, max(n_ctx - WIDTHS[-1], 1))
    widths = [n for n in WIDTHS if n_before + n <= n_ctx] or [1]
    n_vocab = min(runner.model.n_vocab for runner, _ in tiers)
    tokens = [i % n_vocab for i in range(n_before + widths[-1])]  # any text costs the same
    for runner, _ in tiers:
        runner.rewind(0)
        runner.decode(tokens[:n_before], rows=0)

    def timer(runner: Runner, mask: LayerMask | None) -> Timer:
        def measure(n: int) -> float:
            runner.rewind(n_before)
            started = time.perf_counter()
            runner.decode(tokens[n_before : n_before + n], mask=mask)
            return time.perf_counter() - started

        return measure

    times = by_turns([timer(runner, mask) for runner, mask in tiers], widths, repeats)
    for runner, _ in tiers:
        runner.rewind(0)
        runner.reset_work()
    return [Curve(tuple(widths), tuple(of(found) for found in seconds)) for seconds in times]


def by_turns(timers: Sequence[Timer], widths: Sequence[int], repeats: int) -> list[list[list[float]]]:
    """Seconds, [timer][width][repeat]: the timers take turns at each width, in `repeats` rounds after a warm-up."""
    times: list[list[list[float]]] = [[[] for _ in widths] for _ in timers]
    for repeat in range(repeats + 1):
        for i, n in enumerate(widths):
            for timer, seconds in zip(timers, times, strict=True):
                elapsed = timer(n)
                if repeat > 0:  # the first is the warm-up
                    seconds[i].append(elapsed)
    return times


def _path(runner: Runner, mask: LayerMask | None) -> Path:
    native = runner.model._native  # noqa: SLF001  # the same library
    what = (runner.model.fingerprint, str(mask), runner.n_threads)
    where = (__version__, describe(), native.kernel_name(), native.system_info())
    return cache_dir("curves") / f"{hashlib.sha256(repr((what, where)).encode()).hexdigest()[:24]}.json"
