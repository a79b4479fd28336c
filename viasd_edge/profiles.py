"""Profiles: what passes cost on a device, measured there or modelled from its memory bandwidth and int8 rate."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viasd_edge.costs import Weights
from viasd_edge.curves import Curve, measure_curves
from viasd_edge.errors import TraceError
from viasd_edge.folders import write_atomically
from viasd_edge.limits import MAX_ROWS
from viasd_edge.machine import describe
from viasd_edge.mask import LayerMask
from viasd_edge.modes import Parts
from viasd_edge.registry import read_toml, shipped
from viasd_edge.runner import Runner
from viasd_edge.strategies import Tier

_REPEATS = 7
TIERS: tuple[Tier, ...] = ("full", "draft", "slim")
_CURE = "give [roofline], or [full], [draft] and [slim] with model, n and ms, as those of models/profiles do"


@dataclass(frozen=True)
class Roofline:
    """A device of which only this is known: t(n) = max(bytes / bandwidth, n * macs / int8 rate) + pass_ms."""

    memory_bandwidth_gbs: float
    int8_gmacs: float  # inf: verification costs nothing
    memory_share: float  # of the bandwidth, that a pass of one token reaches
    int8_share: float  # of the rate, that a wide pass reaches
    pass_ms: float  # on top of every pass

    def __post_init__(self) -> None:
        if min(self.memory_bandwidth_gbs, self.int8_gmacs, self.memory_share, self.int8_share) <= 0 or self.pass_ms < 0:
            raise ValueError("a roofline needs a bandwidth, a rate and shares above 0")

    def curve(self, n_bytes: int, n_macs: int) -> Curve:
        """t(n) of a model that reads `n_bytes` of weights a pass and does `n_macs` multiply-accumulates a token."""
        reading = n_bytes / (self.memory_bandwidth_gbs * self.memory_share * 1e9)
        multiplying = n_macs / (self.int8_gmacs * self.int8_share * 1e9)
        widths = tuple(range(1, MAX_ROWS + 1))
        return Curve(widths, tuple(max(reading, n * multiplying) + self.pass_ms / 1e3 for n in widths))


@dataclass(frozen=True)
class Measured:
    """A tier's curve, and the file (and mask) it was measured with."""

    model: str
    mask: str | None
    curve: Curve


@dataclass(frozen=True)
class Profile:
    """A device: a roofline for any model, or measured curves of one set of models."""

    name: str
    description: str
    device: Roofline | dict[Tier, Measured]

    @classmethod
    def load(cls, name: str) -> Profile:
        """A shipped profile by name, or one from a file. Raises TraceError."""
        path = Path(name) if Path(name).is_file() else shipped(f"profiles/{name}.toml")
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in shipped("profiles").glob("*.toml")))
            raise TraceError(f"{name}: no such file, and no profile of that name (known: {known})")
        try:
            table = read_toml(path)
            return cls(path.stem, str(table.get("description", "")), _device(table))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TraceError(f"{path}: is not a profile ({type(error).__name__}: {error}); {_CURE}") from error

    @property
    def is_measured(self) -> bool:
        """Whether its curves are measurements; else a model of the device."""
        return isinstance(self.device, dict)

    def curve(self, tier: Tier, file: str, mask: LayerMask | None, weights: Weights | None) -> Curve:
        """t(n) of a tier that runs `file` (under `mask`); `weights` are the file's, which a roofline needs.

        Raises TraceError if the measured curves are those of something else.
        """
        if isinstance(self.device, Roofline):
            assert weights is not None  # noqa: S101  # the caller reads them for a roofline
            return self.device.curve(*weights.per_pass(mask))
        found = self.device.get(tier)
        under = str(mask) if mask else None
        if found is None or (found.model, found.mask) != (file, under):
            measured = f"{found.model}, mask {found.mask or '-'}" if found else "nothing"
            raise TraceError(
                f"profile {self.name} has measured {measured} as its {tier} tier, not {file}, mask {under or '-'}; "
                "measure one with `viasd-edge bench profile`, or name one with a roofline"
            )
        return found.curve


def _device(table: Mapping[str, Any]) -> Roofline | dict[Tier, Measured]:
    if "roofline" in table:
        return Roofline(**{key: float(value) for key, value in table["roofline"].items()})
    return {
        tier: Measured(table[tier]["model"], table[tier].get("mask"), Curve.from_dict(table[tier]))
        for tier in TIERS
        if tier in table or tier == "full"
    }


def measure_profile(parts: Parts, path: Path) -> None:
    """Measure the curves of what `parts` run and write them as a profile, atomically; ends with empty runners.

    Raises TraceError if the file cannot be written.
    """
    target, draft, mask = parts.target, parts.draft, parts.mask
    runs: list[tuple[Tier, Runner, LayerMask | None]] = [("full", target, None)]
    runs += [("draft", draft, None)] if draft else []
    runs += [("slim", target, mask)] if mask else []
    machine = describe()
    where = f"{machine['cpu']}, {target.n_threads} threads, {machine['system']} {machine['architecture']}"
    lines = [f"description = {json.dumps(f'measured: {where}')}"]
    # medians, not the least as for the policy: a prediction is of an ordinary moment
    curves = measure_curves([(runner, under) for _, runner, under in runs], _REPEATS, statistics.median)
    for (tier, runner, under), curve in zip(runs, curves, strict=True):
        lines += ["", f"[{tier}]", f"model = {json.dumps(runner.model.path.name)}"]
        lines += [f"mask = {json.dumps(str(under))}"] if under else []
        lines += [f"{key} = {json.dumps(values)}" for key, values in curve.to_dict().items()]
    try:
        write_atomically(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise TraceError(f"{path}: the profile cannot be written: {error.strerror}") from error
