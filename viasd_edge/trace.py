"""Traces: every round of a generation as a line of JSON, enough to replay it at other costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viasd_edge.errors import EdgeError, TraceError
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

        def write_round(round_: Round) -> None:
            events = parts.search.take_events() if parts.search else []
            write(round_record(round_) | ({"search": [event.to_dict() for event in events]} if events else {}))

        yield write_round


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
        "search": parts.search.name if parts.search else None,
        "threads": parts.target.n_threads,
    }


def round_record(round_: Round) -> dict[str, Any]:
    """One round; ids are tokens, widths tokens in a pass (0: none), `asked` guesses made by the drafter.

    `mask` is what a search had the model draft under. Beside it stand the `search` events that came with the round.
    """
    draft = round_.draft
    return {
        "n_past": round_.n_past,
        "drafter": draft.drafter,
        "mask": str(draft.mask) if draft.mask else None,
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


@dataclass(frozen=True)
class TracedRound:
    """What of a round a replay needs; see Round."""

    n_past: int
    drafter: str | None
    drafted: int
    asked: int
    accepted: int
    emitted: int
    slim_width: int
    full_width: int
    ms: float  # that it took where it was traced


@dataclass(frozen=True)
class Trace:
    """A trace read back: file names of what ran, and its rounds."""

    name: str
    mode: str
    model: str
    draft_model: str | None
    mask: str | None
    rounds: tuple[TracedRound, ...]

    @property
    def tokens(self) -> int:
        """Tokens its rounds emitted; the text may have ended before the last of them."""
        return sum(round_.emitted for round_ in self.rounds)

    @classmethod
    def read(cls, path: Path) -> Trace:
        """From a file that `tracing` wrote. Raises TraceError."""
        number = 1
        try:
            header, *lines = path.read_text(encoding="utf-8").splitlines()
            ran = json.loads(header)
            if ran["trace"] != 1:
                raise TraceError(f"{path}: trace format {ran['trace']}, this version reads 1")
            rounds = []
            for number, line in enumerate(lines, 2):  # noqa: B007  # the error below names it
                rounds.append(_traced(json.loads(line)))
            return cls(path.stem, ran["mode"], ran["model"], ran["draft_model"], ran["mask"], tuple(rounds))
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(
                f"{path}: line {number}: is not of a trace; write one with `viasd-edge generate --trace FILE`"
            ) from error


def _traced(table: Mapping[str, Any]) -> TracedRound:
    return TracedRound(
        n_past=int(table["n_past"]),
        drafter=table["drafter"],
        drafted=len(table["drafted"]),
        asked=int(table["asked"]),
        accepted=int(table["accepted"]),
        emitted=len(table["emitted"]),
        slim_width=int(table["slim_width"]),
        full_width=int(table["full_width"]),
        ms=float(table["draft_ms"]) + float(table["slim_ms"]) + float(table["full_ms"]),
    )
