"""What a name stands for: pairs of the registry, masks of the user and of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from viasd_edge.errors import MaskError
from viasd_edge.folders import masks_dir
from viasd_edge.mask import LayerMask
from viasd_edge.registry import registry, shipped


@dataclass(frozen=True)
class Names:
    target: str
    draft: str | None
    mask: str | None


def named(model: str | None, draft_model: str | None) -> Names:
    """What `model` (a pair, a pair's target, or anything else) and an explicit drafter stand for."""
    pairs = registry().pairs
    model = model or registry().default
    pair = pairs.get(model) or next((pair for pair in pairs.values() if pair.target == model), None)
    if pair is None:
        return Names(model, draft_model, None)
    return Names(pair.target, draft_model or pair.draft, pair.mask)


def load_mask(text: str) -> LayerMask:
    """A mask from a file, by name (the user's own before a shipped one), or text like "attn:4-7". Raises MaskError."""
    if Path(text).is_file():
        return LayerMask.load(Path(text))
    if "/" not in text and "\\" not in text:
        for path in (masks_dir() / f"{text}.json", shipped(f"masks/{text}.json")):
            if path.is_file():
                return LayerMask.load(path)
    if ":" in text and not text.endswith(".json"):
        return LayerMask.parse(text)
    names = ", ".join(mask_names())
    raise MaskError(f'{text}: no mask file and no mask of that name ({names}); or give layers, "layers:4-7"')


def mask_names() -> list[str]:
    """Names of the masks in the package and of the user's own."""
    return sorted({path.stem for folder in (shipped("masks"), masks_dir()) for path in folder.glob("*.json")})


def model_name(path: Path) -> str:
    """The registry's name for a model's file, else the file's own."""
    return next((name for name, entry in registry().models.items() if entry.file == path.name), path.stem)


def hand_picked(fingerprint: str) -> LayerMask | None:
    """The shipped mask of a model that no search found: what found ones are compared with."""
    masks = [LayerMask.load(path) for path in sorted(shipped("masks").glob("*.json"))]
    return next((m for m in masks if m.fingerprint == fingerprint and m.method.startswith("hand-picked")), None)
