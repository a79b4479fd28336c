"""A cheaper copy of a drafter: all its matrices in one fast quantisation, made once and cached.

A drafter's errors cost speed, never correctness in exact mode, and what a draft costs is the bytes it reads.
Tiered mode is calibrated for the file that drafts.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Literal

from viasd_edge._native import native
from viasd_edge.errors import ModelError
from viasd_edge.folders import cache_dir
from viasd_edge.model import check_file, fingerprint

DraftQuant = Literal["q4_0", "auto"]


def requantized(path: Path, quant: DraftQuant | None) -> Path:
    """The file to draft with: `path` itself for None, else its copy in `quant`, made now if it is not cached.

    "auto" is q4_0 if that makes the file smaller, else the file as it is. Raises ModelError if llama.cpp cannot
    requantise the file.
    """
    if quant is None:
        return path
    check_file(path)
    copy = cache_dir("drafters") / f"{path.stem}-{fingerprint(path)}-q4_0.gguf"
    no_gain = copy.with_suffix(".no-gain")  # an empty file: the copy was not smaller
    if not copy.is_file() and not (quant == "auto" and no_gain.is_file()):
        copy.parent.mkdir(parents=True, exist_ok=True)
        fresh = copy.with_name(f"{copy.name}.{os.getpid()}.tmp")
        try:
            _requantize(path, fresh)
            if quant == "auto" and fresh.stat().st_size >= path.stat().st_size:
                no_gain.touch()
            else:
                fresh.replace(copy)
        finally:
            fresh.unlink(missing_ok=True)
    return copy if copy.is_file() else path


def _requantize(source: Path, target: Path) -> None:
    library = native()
    api = library.api
    params = api.llama_model_quantize_default_params()
    params.ftype = api.LLAMA_FTYPE_MOSTLY_Q4_0
    params.pure = True  # the output head too: it is a quarter of a small model's work
    params.allow_requantize = True
    library.errors.clear()
    status = api.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if status != 0:
        reason = library.errors[-1] if library.errors else f"status {status}"
        raise ModelError(f"{source}: cannot be requantised: {reason}; leave out --draft-quant")
