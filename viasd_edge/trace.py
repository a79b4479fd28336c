"""Traces: every round of a generation as a line of JSON, enough to replay it at other costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viasd_edge.errors import EdgeError
from viasd_edge.modes import Parts
from viasd_edge.strategies import Round, gate_text


@contextmanager
def tracing(path: Path | None, parts: Parts) -> Iterator[Callable[[Round], None] | None]:
    """A callback that writes rounds into `path`, after a line that says what ran; None for None.

    Raises EdgeError if the file cannot be written.
    """
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise EdgeError(f"{path}: the trace cannot be written: {error.strerror}") from error
    with file:

        def write(value: dict[str, Any]) -> None:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")

        write(trace_header(parts))
        yield lambda round_: write(round_record(round_))


def trace_header(parts: Parts) -> dict[str, Any]:
    """What ran."""
    return {
        "trace": 1,
        "mode": parts.mode,
        "model": parts.target.model.path.name,
        "draft_model": parts.draft.model.path.name if parts.draft else None,
        "mask": str(parts.mask) if parts.mask else None,
        "gate": gate_text(parts.gate) if parts.mode == "tiered" else None,
        "policy": parts.policy,
        "threads": parts.target.n_threads,
    }


def round_record(round_: Round) -> dict[str, Any]:
    """One round; ids are tokens, widths tokens in a pass (0: none), `asked` guesses made by the drafter."""
    draft = round_.draft
    return {
        "n_past": round_.n_past,
        "drafter": draft.drafter,
        "drafted": draft.ids,
        "confidence": [round(guess.confidence, 4) for guess in draft.guesses],
        "asked": draft.asked,
        "tested": round_.tested,
        "accepted": round_.accepted,
        "changed": round_.changed,
        "escalated": round_.escalated,
        "emitted": [[token.id, token.tier] for token in round_.emitted],
        "slim_width": round_.slim_width,
        "full_width": round_.full_width,
        "draft_ms": round(round_.draft_seconds * 1e3, 3),
        "slim_ms": round(round_.slim_seconds * 1e3, 3),
        "full_ms": round(round_.full_seconds * 1e3, 3),
    }
