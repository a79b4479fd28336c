"""What a name stands for: pairs of the registry, masks of the user and of the package."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from viasd_edge.errors import MaskError
from viasd_edge.folders import masks_dir
from viasd_edge.mask import LayerMask
from viasd_edge.registry import registry, shipped

logger = logging.getLogger(__name__)

Origin = Literal["yours", "shipped"]

_PLAIN_NAME = re.compile(r"\w(?:[\w .+-]{0,98}\w)?")


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
    named_path = _by_name(text)
    if named_path:
        return LayerMask.load(named_path)
    if ":" in text and not text.endswith(".json"):
        return LayerMask.parse(text)
    names = ", ".join(mask_names())
    raise MaskError(f'{text}: no mask file and no mask of that name ({names}); or give layers, "layers:4-7"')


def _by_name(name: str) -> Path | None:
    if "/" in name or "\\" in name:
        return None
    paths = (masks_dir() / f"{name}.json", shipped(f"masks/{name}.json"))
    return next((path for path in paths if path.is_file()), None)


def mask_files() -> list[tuple[Path, Origin]]:
    """The files of all masks, by name; the user's own before a shipped one of the same name."""
    found: list[tuple[Path, Origin]] = [(path, "yours") for path in _files(masks_dir())]
    found += [(path, "shipped") for path in _files(shipped("masks"))]
    return sorted(found, key=lambda entry: (entry[0].stem, entry[1] == "shipped"))


def mask_names() -> list[str]:
    """Names of the masks in the package and of the user's own."""
    return sorted({path.stem for path, _ in mask_files()})


def own_mask_path(name: str) -> Path:
    """Where the user's mask of that name lies, or would. Raises MaskError for what is no plain file name."""
    if not _PLAIN_NAME.fullmatch(name):
        raise MaskError(f"{name!r} cannot name a mask: use letters, digits, and . _ + - between them (--name)")
    return masks_dir() / f"{name}.json"


def masks_of(fingerprint: str, pair_mask: str | None = None) -> list[LayerMask]:
    """The masks of the model with this fingerprint, best guess first.

    The user's own come first, the file last written before older ones; then `pair_mask`, by name; then the shipped
    ones. A file that is not a usable mask is passed over, with a line in the log.
    """
    own = sorted(_files(masks_dir()), key=lambda path: (path.stat().st_mtime_ns, path.stem), reverse=True)
    of_pair = _by_name(pair_mask) if pair_mask else None
    paths = [*own, *([of_pair] if of_pair else []), *_files(shipped("masks"))]
    return [mask for path in dict.fromkeys(paths) if (mask := _usable(path)) and mask.fingerprint == fingerprint]


def default_mask(
    pair_mask: str | None, fingerprint: str, *, draft: str | None = None, tolerance: float | None = None
) -> LayerMask | None:
    """The mask of a mode that needs one when none is named: the first of `masks_of` the model.

    With a tolerance, the first that is calibrated for it and for the drafter with fingerprint `draft`; if none is, the
    first of all, which says so when it is asked for its gate.
    """
    found = masks_of(fingerprint, pair_mask)
    calibrated = [mask for mask in found if draft and tolerance and mask.is_calibrated(draft, tolerance)]
    return next(iter(calibrated or found), None)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.is_file())


def _usable(path: Path) -> LayerMask | None:
    try:
        return LayerMask.load(path)
    except MaskError as error:
        logger.warning("mask passed over: %s", error)
        return None


def model_name(path: Path) -> str:
    """The registry's name for a model's file, else the file's own."""
    return next((name for name, entry in registry().models.items() if entry.file == path.name), path.stem)


def hand_picked(fingerprint: str) -> LayerMask | None:
    """The shipped mask of a model that no search found: what found ones are compared with."""
    masks = [LayerMask.load(path) for path in _files(shipped("masks"))]
    return next((m for m in masks if m.fingerprint == fingerprint and m.method.startswith("hand-picked")), None)
