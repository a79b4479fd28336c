"""What a search found, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from viasd_edge.errors import EdgeError
from viasd_edge.render import number, percent, table

if TYPE_CHECKING:
    from rich.table import Table

    from viasd_edge.tuning import Found, Tuned

_SHOWN = 12  # masks in the picture


def tables(tuned: Tuned) -> list[Table]:
    """The finalists beside the hand-picked mask."""
    to = "stock" if tuned.stock_ratio else "plain"
    columns = ("mask", "skipped", "overshoot", "agreement", "coverage", f"predicted, x {to} (LOSSY)")
    shown = [(str(found.mask), found) for found in tuned.finalists or tuned.candidates[:1]]
    if tuned.hand_picked:
        shown.append((f"{tuned.hand_picked.mask.name}: {tuned.hand_picked.mask}", tuned.hand_picked))
    rows = [
        [
            name,
            percent(found.scores.share),
            f"{found.scores.dimr:.4f}",
            percent(found.scores.agreement),
            percent(found.scores.coverage),
            number(found.tokens_per_s / tuned.baseline if found.tokens_per_s else None),
        ]
        for name, found in shown
    ]
    title = f"{tuned.method}: {tuned.evaluations} masks in {tuned.seconds:.0f} s, {tuned.proposing:.1%} proposing"
    return [table(title, columns, rows)]


def pareto(found: Sequence[Found]) -> list[Found]:
    """Masks such that no other skips as much and agrees more, by ascending share."""
    front: list[Found] = []
    for entry in sorted(found, key=lambda entry: (-entry.scores.share, -entry.scores.agreement)):
        if not front or entry.scores.agreement > front[-1].scores.agreement:
            front.append(entry)
    return front[::-1]


def plot(tuned: Tuned, n_layer: int, path: Path) -> None:
    """Skipped blocks by layer of the best masks; agreement and cost of all, with the front. Raises EdgeError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EdgeError("--plot needs matplotlib: pip install 'viasd-edge[plot]'") from None
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    blocks, scatter = figure.subplots(1, 2)
    front = pareto(tuned.candidates)
    shown = list({str(found.mask): found for found in [*tuned.finalists, *front]}.values())[:_SHOWN]
    for row, found in enumerate(shown):
        blocks.scatter(found.mask.attention, [row + 0.15] * len(found.mask.attention), marker="s", s=18, color="C0")
        blocks.scatter(found.mask.ffn, [row - 0.15] * len(found.mask.ffn), marker="s", s=18, color="C1")
    blocks.set(xlim=(-1, n_layer), xlabel="layer", title="skipped: attention (blue), FFN (orange)")
    labels = [f"{found.scores.share:.0%}" for found in shown]
    blocks.set_yticks(range(len(shown)), labels)
    scatter.scatter(
        [found.scores.share for found in tuned.candidates],
        [found.scores.agreement for found in tuned.candidates],
        s=12,
        color="grey",
        label="scored",
    )
    scatter.plot(
        [found.scores.share for found in front], [found.scores.agreement for found in front], marker="o", label="front"
    )
    marked = [("chosen", "*", [found for found in tuned.candidates if str(found.mask) == str(tuned.mask)])]
    marked.append(("hand-picked", "D", [tuned.hand_picked] if tuned.hand_picked else []))
    for name, marker, masks in marked:
        for found in masks:
            scatter.scatter([found.scores.share], [found.scores.agreement], marker=marker, s=120, label=name)
    scatter.set(xlabel="share of the layers' cost skipped", ylabel="agreement with the full model")
    scatter.legend()
    figure.savefig(path)
