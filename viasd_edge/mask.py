"""Layer masks: which attention and FFN blocks the slim verifier leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from viasd_edge.errors import MaskError
from viasd_edge.folders import write_atomically

SKIP_ATTENTION, SKIP_FFN, KEEP_KV = 1, 2, 4  # llama_layer_skip_flag in native/src/layer-skip.h

_FORMAT = 1
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
            table = json.loads(path.read_text(encoding="utf-8"))
            if table["format"] != _FORMAT:
                raise MaskError(f"{path}: mask format {table['format']}, this version reads {_FORMAT}")
            model = table.get("model") or {}
            return cls(
                attention=_layers(table["skip_attention"]),
                ffn=_layers(table["skip_ffn"]),
                name=path.stem,
                model=model.get("name"),
                fingerprint=model.get("fingerprint"),
                method=table.get("method", "unknown"),
                scores=table.get("scores") or {},
                calibrations=tuple(Calibration(**entry) for entry in table.get("calibrations") or ()),
            )
        except (OSError, UnicodeDecodeError) as error:
            raise MaskError(f"{path}: cannot be read: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MaskError(f"{path}: not a mask file: {type(error).__name__}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return {
            "format": _FORMAT,
            "model": {"name": self.model, "fingerprint": self.fingerprint},
            "skip_attention": list(self.attention),
            "skip_ffn": list(self.ffn),
            "method": self.method,
            "scores": self.scores,
            "calibrations": [asdict(calibration) for calibration in self.calibrations],
        }

    def save(self, path: Path) -> None:
        """Write the JSON file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")

    def calibration(self, draft: str, tolerance: float) -> Calibration:
        """The boldest calibration for the drafter with fingerprint `draft` that stays within `tolerance`.

        Raises MaskError if there is none.
        """
        found = [entry for entry in self.calibrations if entry.draft == draft and entry.error <= tolerance]
        if not found:
            raise MaskError(
                f"mask {self.name} is not calibrated for this drafter at {tolerance:g}; "
                f"run `viasd-edge calibrate --error {tolerance:g}`"
            )
        return max(found, key=lambda entry: entry.error)

    def with_calibration(self, calibration: Calibration, *, fingerprint: str, model: str) -> LayerMask:
        """The same mask, bound to its model, with a calibration in the place of an older one for the same error."""
        key = (calibration.draft, calibration.error)
        others = [entry for entry in self.calibrations if (entry.draft, entry.error) != key]
        return replace(self, fingerprint=fingerprint, model=model, calibrations=(*others, calibration))

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
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise MaskError(f"layer numbers must be integers from 0: {numbers}")
    return tuple(sorted(set(numbers)))


def _ranges(layers: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
