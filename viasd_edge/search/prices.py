"""What a mask saves: milliseconds of attention and FFN blocks, measured once, added up for any mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viasd_edge.curves import Curve, Curves, curve, measure_curves
from viasd_edge.mask import LayerMask
from viasd_edge.runner import Runner
from viasd_edge.search.space import Space

PRICED_WIDTH = 8  # tokens of the pass by which blocks are priced
_REPEATS = 3
_LEAST = 1e-3  # of a pass, that a block takes at least: a machine's noise must not make it less than nothing


@dataclass(frozen=True)
class Prices:
    """Seconds of a pass of the full model and of the drafter; what one block of a kind takes of it, by full.n."""

    full: Curve
    attention: tuple[float, ...]
    ffn: tuple[float, ...]
    draft: Curve | None

    @classmethod
    def measure(cls, target: Runner, draft: Runner | None) -> Prices:
        """From curves by turns: of the full model, and of it without all attention or all FFN blocks but the outer two.

        Some seconds. The runners end up empty.
        """
        layers = tuple(range(1, target.model.n_layer - 1))
        masks = (None, LayerMask(attention=layers), LayerMask(ffn=layers))
        full, *without = measure_curves([(target, mask) for mask in masks], _REPEATS, min)
        attention, ffn = (
            tuple(max((full.at(n) - less.at(n)) / len(layers), _LEAST * full.at(n)) for n in full.n) for less in without
        )
        return cls(full, attention, ffn, curve(draft) if draft else None)

    def under(self, mask: LayerMask) -> Curves:
        """The curves of all tiers, the slim verifier's as expected under `mask`."""
        saved = [
            len(mask.attention) * attention + len(mask.ffn) * ffn
            for attention, ffn in zip(self.attention, self.ffn, strict=True)
        ]
        slim = tuple(max(whole - less, _LEAST * whole) for whole, less in zip(self.full.seconds, saved, strict=True))
        return Curves(self.draft, Curve(self.full.n, slim), self.full)

    def space(self, n_layer: int, *, blocks: bool) -> Space:
        """What a search may skip, at the prices of a pass about as wide as a draft."""
        at = self.full.n.index(PRICED_WIDTH) if PRICED_WIDTH in self.full.n else 0
        return Space(n_layer, blocks, self.attention[at], self.ffn[at])

    def to_dict(self) -> dict[str, Any]:
        return {
            "full": self.full.to_dict(),
            "attention_ms": [round(second * 1e3, 6) for second in self.attention],
            "ffn_ms": [round(second * 1e3, 6) for second in self.ffn],
            "draft": self.draft.to_dict() if self.draft else None,
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Prices:
        """Raises KeyError, TypeError, ValueError."""
        return cls(
            Curve.from_dict(table["full"]),
            tuple(float(ms) / 1e3 for ms in table["attention_ms"]),
            tuple(float(ms) / 1e3 for ms in table["ffn_ms"]),
            Curve.from_dict(table["draft"]) if table["draft"] else None,
        )
