"""What a bench run found: rows kept on disk as they come, and summed up by class and strategy."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from viasd_edge.bench import Row, Settings
from viasd_edge.errors import EdgeError
from viasd_edge.folders import write_atomically
from viasd_edge.limits import STOCK
from viasd_edge.machine import describe, versions

ALL = "all"
"""The class of every prompt."""

COLUMNS = (
    "class",
    "strategy",
    "tokens_per_s",
    "ratio_to_stock",
    "lowest_ratio_to_stock",
    "ratio_to_plain",
    "tokens_per_full_pass",
    "acceptance",
    "rejection_changed",
    "rejection_escalated",
    "identical",
    "loss",
    "prompts",
)


class Rows:
    """Rows in a JSONL file whose first line says what the run does; a file of the same run is gone on with.

    Raises EdgeError for a file of another run, or one that cannot be read or written.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        header = json.loads(json.dumps({"bench": 1, **asdict(settings)}))
        self.rows: list[Row] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            if lines and json.loads(lines[0]) != header:
                raise EdgeError(f"{path}: holds a run of other settings; name another file or delete it")
            self.rows = [Row(**json.loads(line)) for line in lines[1:] if line.endswith("}")]  # the last may be cut
            fresh = [header, *map(asdict, self.rows)]
            write_atomically(path, "".join(json.dumps(entry) + "\n" for entry in fresh))
        except OSError as error:
            raise EdgeError(f"{path}: {error.strerror}; name another file for the rows") from error
        except (ValueError, TypeError) as error:
            raise EdgeError(f"{path}: is not a file of bench rows; name another file or delete it") from error

    @contextmanager
    def appending(self) -> Iterator[TextIO]:
        """The file, to add rows to."""
        with self._path.open("a", encoding="utf-8") as file:
            yield file

    def add(self, row: Row, file: TextIO) -> None:
        """Keep a row; it is on disk when this returns."""
        self.rows.append(row)
        file.write(json.dumps(asdict(row)) + "\n")
        file.flush()


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Per class and strategy, and over all classes: see COLUMNS, and two more.

    Of a prompt's repeats the median speed counts. A class's speed and its ratios are medians over its prompts;
    `lowest_ratio_to_stock` is the worst prompt's. `identical` is the number of prompts whose tokens are those of our
    plain decoding (of stock's, if plain did not run) in every repeat, None where the strategy does not tell. `loss` is
    the share of tokens that the full model, in the same state, would have chosen otherwise: 0 for lossless ones.
    `acceptance_by_position` is the share of tested tokens that stood, by their place in the draft.
    `peak_rss_bytes` is of the process that ran the strategy, ours share one: what was loaded or run before counts.
    """
    groups = list(dict.fromkeys(row.group for row in rows))
    strategies = list(dict.fromkeys(row.strategy for row in rows))
    summary = []
    for group in (*groups, ALL) if len(groups) > 1 else groups:
        for strategy in strategies:
            cells = [row for row in rows if row.strategy == strategy and group in (row.group, ALL)]
            if cells:
                summary.append({"class": group, "strategy": strategy, **_sums(cells, rows)})
    return summary


def _sums(cells: Sequence[Row], rows: Sequence[Row]) -> dict[str, Any]:
    speeds = _speeds(cells)
    to_stock = _ratios(speeds, _speeds([row for row in rows if row.strategy == STOCK]))
    to_plain = _ratios(speeds, _speeds([row for row in rows if row.strategy == "plain"]))
    reference = {row.prompt: row.token_ids for row in rows if row.strategy == STOCK}
    reference |= {row.prompt: row.token_ids for row in rows if row.strategy == "plain"}
    told = [row for row in cells if row.token_ids is not None and row.prompt in reference]
    differing = {row.prompt for row in told if row.token_ids != reference[row.prompt]}
    return {
        "tokens_per_s": _median(list(speeds.values())),
        "ratio_to_stock": _median(to_stock),
        "lowest_ratio_to_stock": round(min(to_stock), 3) if to_stock else None,
        "ratio_to_plain": _median(to_plain),
        "tokens_per_full_pass": _share(sum(row.tokens for row in cells), _sum(cells, "full_passes")),
        "acceptance": _share(_sum(cells, "accepted"), _sum(cells, "tested")),
        "rejection_changed": _share(_sum(cells, "changed"), _sum(cells, "gated")),
        "rejection_escalated": _share(_sum(cells, "escalated"), _sum(cells, "gated")),
        "identical": len({row.prompt for row in told} - differing) if told else None,
        "loss": _share(_sum(cells, "lost") or 0, sum(row.tokens for row in cells)),
        "prompts": len(speeds),
        "acceptance_by_position": [
            _share(accepted, tested)
            for accepted, tested in zip(
                _sums_by_position(row.accepted_by_position for row in cells),
                _sums_by_position(row.tested_by_position for row in cells),
                strict=True,
            )
        ],
        "peak_rss_bytes": max((row.peak_rss_bytes for row in cells if row.peak_rss_bytes), default=None),
    }


def _sums_by_position(counts: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def _speeds(rows: Sequence[Row]) -> dict[str, float]:
    """Median tokens/s by prompt."""
    by_prompt: dict[str, list[float]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row.tokens_per_s)
    return {prompt: statistics.median(speeds) for prompt, speeds in by_prompt.items()}


def _ratios(speeds: dict[str, float], base: dict[str, float]) -> list[float]:
    return [speed / base[prompt] for prompt, speed in speeds.items() if base.get(prompt)]


def _sum(rows: Sequence[Row], name: str) -> int | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(values) if values else None


def _share(part: int | None, of: int | None) -> float | None:
    return round(part / of, 4) if part is not None and of else None


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def to_dict(rows: Sequence[Row], settings: Settings) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "summary": summarise(rows),
        "rows": [asdict(row) for row in rows],
        "settings": asdict(settings),
        "machine": describe(),
        "versions": versions(),
    }


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """The summary as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(summarise(rows))
    write_atomically(path, text.getvalue())


def write_markdown(rows: Sequence[Row], path: Path) -> None:
    """The summary as a Markdown table."""
    cells = [["-" if entry[column] is None else str(entry[column]) for column in COLUMNS] for entry in summarise(rows)]
    lines = [" | ".join(line) for line in (COLUMNS, ["---"] * len(COLUMNS), *cells)]
    write_atomically(path, "".join(f"| {line} |\n" for line in lines))


def plot(rows: Sequence[Row], path: Path) -> None:
    """Speeds relative to stock (to our plain decoding, if stock did not run) by class, as bars. Raises EdgeError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EdgeError("--plot needs matplotlib: pip install 'viasd-edge[plot]'") from None
    summary = summarise(rows)
    key = "ratio_to_stock" if any(entry["ratio_to_stock"] for entry in summary) else "ratio_to_plain"
    groups = list(dict.fromkeys(entry["class"] for entry in summary))
    strategies = list(dict.fromkeys(entry["strategy"] for entry in summary))
    figure = Figure(figsize=(2 + 1.5 * len(groups), 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(strategies)
    for i, strategy in enumerate(strategies):
        found = {entry["class"]: entry[key] or 0.0 for entry in summary if entry["strategy"] == strategy}
        axes.bar(
            [at + i * width for at in range(len(groups))],
            [found.get(group, 0.0) for group in groups],
            width,
            label=strategy,
        )
    axes.axhline(1.0, color="grey", linestyle=":")
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(groups))], groups)
    axes.set(ylabel=key.replace("_", " "))
    axes.legend()
    figure.savefig(path)
