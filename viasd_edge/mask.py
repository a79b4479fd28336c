"""Layer masks: which attention and FFN blocks the slim verifier leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from viasd_edge.errors import EdgeError, MaskError
from viasd_edge.fields import optional, read_object, required
from viasd_edge.folders import write_atomically

SKIP_ATTENTION, SKIP_FFN, KEEP_KV = 1, 2, 4  # llama_layer_skip_flag in native/src/layer-skip.h

_FORMAT = 1
_MAX_LAYERS = 10_000  # no model has more; the text form has four digits
_TERM = re.compile(r"^(attn|ffn|layers):([\d,-]+)$")
_KINDS = {"attn": ("attention",), "ffn": ("ffn",), "layers": ("attention", "ffn")}


@dataclass(frozen=True)
class Calibration:
    """A gate for tiered mode under a mask, found for one drafter and one wanted error."""

    draft: str  # fingerprint of the drafter's file
    error: float  # the share of emitted tokens that may differ from the full model's choice
    gate: str  # text form, see strategies.gate
    keep_kv: bool
    measured: dict[str, Any] = field(default_factory=dict)  # what the gate did on the calibration prompts

    @classmethod
    def from_dict(cls, table: Any) -> Calibration:
        """An entry of a mask file. Raises ValueError, TypeError."""
        from viasd_edge.strategies import parse_gate

        if not isinstance(table, dict):
            raise TypeError("a calibration must be an object")
        gate, error = required(table, "gate", str), required(table, "error", float)
        parse_gate(gate)
        if not 0 < error < 1:
            raise ValueError(f"a calibrated error must be between 0 and 1, not {error:g}")
        measured = optional(table, "measured", dict) or {}
        return cls(required(table, "draft", str), error, gate, required(table, "keep_kv", bool), measured)


@dataclass(frozen=True)
class LayerMask:
    """The blocks skipped in a pass, by 0-based layer number, ascending; where they come from, what they scored."""

    attention: tuple[int, ...] = ()
    ffn: tuple[int, ...] = ()
    name: str = "custom"
    model: str | None = None  # name of the model it was found for
    fingerprint: str | None = None  # of that model's file; None fits any model with enough layers
    method: str = "given"
    scores: dict[str, Any] = field(default_factory=dict, compare=False)
    calibrations: tuple[Calibration, ...] = field(default=(), compare=False)
    n_layer: int | None = field(default=None, compare=False)  # layers of that model
    device: str | None = field(default=None, compare=False)  # where it was found, see machine.device_text
    created: str | None = field(default=None, compare=False)  # when, an ISO date

    @classmethod
    def parse(cls, text: str) -> LayerMask:
        """A mask from "attn:4-7 ffn:4-7,9" ("layers:4-7" is both). Raises MaskError."""
        blocks: dict[str, set[int]] = {"attention": set(), "ffn": set()}
        for term in text.split():
            found = _TERM.match(term)
            if not found:
                raise MaskError(f'mask term {term!r} is not like "attn:4-7", "ffn:4,6,8-9" or "layers:4-7"')
            for kind in _KINDS[found[1]]:
                blocks[kind].update(_numbers(found[2]))
        return cls(tuple(sorted(blocks["attention"])), tuple(sorted(blocks["ffn"])))

    @classmethod
    def load(cls, path: Path) -> LayerMask:
        """A mask from its JSON file. Raises MaskError."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MaskError(f"{path}: cannot be read: {error}") from error
        return cls.from_json(text, name=path.stem, source=str(path))

    @classmethod
    def from_json(cls, text: str, *, name: str, source: str) -> LayerMask:
        """A mask from the text of its file, which errors call `source`; all of it is checked. Raises MaskError."""
        try:
            table = read_object(text)
            if table.get("format") != _FORMAT:
                raise MaskError(f"{source}: mask format {table.get('format')}, this version reads {_FORMAT}")
            model = optional(table, "model", dict) or {}
            mask = cls(
                attention=_layers(required(table, "skip_attention", list)),
                ffn=_layers(required(table, "skip_ffn", list)),
                name=name,
                model=optional(model, "name", str),
                fingerprint=optional(model, "fingerprint", str),
                method=optional(table, "method", str) or "unknown",
                scores=optional(table, "scores", dict) or {},
                calibrations=tuple(map(Calibration.from_dict, optional(table, "calibrations", list) or [])),
                n_layer=_layer_count(model),
                device=optional(table, "device", str),
                created=optional(table, "created", str),
            )
            if mask.created is not None:
                datetime.fromisoformat(mask.created)
        except (ValueError, TypeError) as error:
            raise MaskError(f"{source}: not a mask file: {error}") from error
        mask.check(mask.n_layer or _MAX_LAYERS, mask.fingerprint or "")
        return mask

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return {
            "format": _FORMAT,
            "model": {"name": self.model, "fingerprint": self.fingerprint, "layers": self.n_layer},
            "skip_attention": list(self.attention),
            "skip_ffn": list(self.ffn),
            "method": self.method,
            "device": self.device,
            "created": self.created,
            "scores": self.scores,
            "calibrations": [asdict(calibration) for calibration in self.calibrations],
        }

    def to_json(self) -> str:
        """The text of the JSON file. Raises ValueError for a score that is not finite."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def save(self, path: Path) -> None:
        """Write the JSON file, atomically, in a folder that is made if need be. Raises EdgeError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.to_json())
        except OSError as error:
            raise EdgeError(f"{path}: the mask cannot be saved: {error.strerror}") from error

    def calibration(self, draft: str, tolerance: float) -> Calibration:
        """The boldest calibration for the drafter with fingerprint `draft` that stays within `tolerance`.

        Raises MaskError if there is none.
        """
        found = self._within(draft, tolerance)
        if not found:
            raise MaskError(
                f"mask {self.name} is not calibrated for this drafter at {tolerance:g}; "
                f"run `viasd-edge calibrate --error {tolerance:g}`"
            )
        return max(found, key=lambda entry: entry.error)

    def is_calibrated(self, draft: str, tolerance: float) -> bool:
        """Whether `calibration` finds one."""
        return bool(self._within(draft, tolerance))

    def _within(self, draft: str, tolerance: float) -> list[Calibration]:
        return [entry for entry in self.calibrations if entry.draft == draft and entry.error <= tolerance]

    def bound(self, *, fingerprint: str, model: str, n_layer: int) -> LayerMask:
        """The same mask as one of this model. Raises MaskError unless it fits."""
        self.check(n_layer, fingerprint)
        return replace(self, fingerprint=fingerprint, model=self.model or model, n_layer=n_layer)

    def with_calibration(self, calibration: Calibration) -> LayerMask:
        """The same mask with a calibration, in the place of an older one for the same drafter and error."""
        key = (calibration.draft, calibration.error)
        others = [entry for entry in self.calibrations if (entry.draft, entry.error) != key]
        return replace(self, calibrations=(*others, calibration))

    def check(self, n_layer: int, fingerprint: str) -> None:
        """Raise MaskError unless this mask can be used with a model of `n_layer` layers."""
        if self.fingerprint is not None and self.fingerprint != fingerprint:
            raise MaskError(
                f"mask {self.name} was found for {self.model or 'another model'} (fingerprint {self.fingerprint}), "
                f'not for this file ({fingerprint}); name a mask of this model, or its layers like "layers:4-7"'
            )
        beyond = [layer for layer in (*self.attention, *self.ffn) if layer >= n_layer]
        if beyond:
            raise MaskError(f"mask {self.name} skips layer {max(beyond)}; the model has layers 0-{n_layer - 1}")
        if len(self.attention) == n_layer:
            raise MaskError(f"mask {self.name} skips every attention block; keep at least one of {n_layer}")
        if not self.attention and not self.ffn:
            raise MaskError(f"mask {self.name} skips nothing; give at least one block")

    @property
    def blocks(self) -> frozenset[tuple[str, int]]:
        """What is skipped, as ("attn" or "ffn", layer)."""
        return frozenset([("attn", layer) for layer in self.attention] + [("ffn", layer) for layer in self.ffn])

    def overlap(self, other: LayerMask) -> float:
        """Blocks that both skip, as a share of those that either does (Jaccard); two that skip nothing are equal."""
        either = self.blocks | other.blocks
        return len(self.blocks & other.blocks) / len(either) if either else 1.0

    def share(self, n_layer: int) -> float:
        """The share of a model's blocks that is skipped."""
        return len(self.blocks) / (2 * n_layer)

    def layer_map(self, n_layer: int) -> str:
        """A character a layer: "." keeps both blocks, "a" skips attention, "f" the FFN, "#" both."""
        skips = [(("attn", layer) in self.blocks) + 2 * (("ffn", layer) in self.blocks) for layer in range(n_layer)]
        return "".join(".af#"[skip] for skip in skips)

    def flags(self, n_layer: int, *, keep_kv: bool) -> bytes:
        """One byte a layer for `llama_set_layer_skip`, uint8 [n_layer]."""
        flags = bytearray(n_layer)
        for layer in self.attention:
            flags[layer] |= SKIP_ATTENTION | (KEEP_KV if keep_kv else 0)
        for layer in self.ffn:
            flags[layer] |= SKIP_FFN
        return bytes(flags)

    def __str__(self) -> str:
        """The text form that `parse` reads."""
        terms = [("attn", self.attention), ("ffn", self.ffn)]
        return " ".join(f"{kind}:{_ranges(layers)}" for kind, layers in terms if layers)


def _numbers(text: str) -> Iterable[int]:
    for item in text.split(","):
        ends = item.split("-")
        if len(ends) > 2 or not all(re.fullmatch(r"\d{1,4}", end) for end in ends):  # noqa: PLR2004  # two ends
            raise MaskError(f"mask range {item!r} is not like 4 or 4-7")
        if int(ends[-1]) < int(ends[0]):
            raise MaskError(f"mask range {item!r} runs backwards")
        yield from range(int(ends[0]), int(ends[-1]) + 1)


def _layers(numbers: list[Any]) -> tuple[int, ...]:
    """Layer numbers of a file, ascending. Raises ValueError."""
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _MAX_LAYERS:
            raise ValueError(f"layer numbers must be whole, from 0 to {_MAX_LAYERS - 1}: {str(number)[:20]}")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a layer number is there twice")
    return tuple(sorted(numbers))


def _layer_count(model: dict[str, Any]) -> int | None:
    count = optional(model, "layers", int)
    if count is not None and not 0 < count <= _MAX_LAYERS:
        raise ValueError(f"a model has 1 to {_MAX_LAYERS} layers, not {count}")
    return count


def _ranges(layers: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
