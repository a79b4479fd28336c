"""The user's folders, and how files are written there."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def models_dir() -> Path:
    """Folder of pulled models: `VIASD_EDGE_MODELS`, else the user's data folder."""
    override = os.environ.get("VIASD_EDGE_MODELS")
    return Path(override) if override else Path(platformdirs.user_data_dir("viasd-edge", appauthor=False)) / "models"


def masks_dir() -> Path:
    """Folder of the user's masks: `VIASD_EDGE_MASKS`, else the user's data folder."""
    override = os.environ.get("VIASD_EDGE_MASKS")
    return Path(override or Path(platformdirs.user_data_dir("viasd-edge", appauthor=False)) / "masks")


def cache_dir(kind: str) -> Path:
    """Folder of what can be made anew, "drafters" or "curves": in `VIASD_EDGE_CACHE`, else the user's cache folder."""
    override = os.environ.get("VIASD_EDGE_CACHE")
    return Path(override or platformdirs.user_cache_dir("viasd-edge", appauthor=False)) / kind


def write_atomically(path: Path, text: str) -> None:
    """Write a text file; `path` is the old file or the whole new one at any time."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
