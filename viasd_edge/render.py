"""What people see: text coloured by tier, tables of numbers. Everything goes to a rich console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from viasd_edge.engine import Generation

_FILE_WIDTH = 160  # columns, where no terminal says how many there are: room for every table
_PLACES = 8  # in a draft, of which acceptance is shown
TIER_STYLE = {"draft": "green", "slim": "yellow", "full": "default", None: "default"}


def console(*, stderr: bool = False, color: bool | None = None) -> Console:
    """A console; `color` None leaves it to the terminal and NO_COLOR."""
    options: dict[str, Any] = {} if color is None else {"force_terminal": color, "no_color": not color}
    found = Console(stderr=stderr, highlight=False, soft_wrap=True, **options)
    if not found.is_terminal:
        found.width = _FILE_WIDTH
    return found


def tier_legend(target: Console) -> None:
    """Which colour is which tier."""
    names = {"draft": "drafted", "slim": "rewritten by the slim verifier", "full": "chosen by the full model"}
    target.print("  ".join(f"[{TIER_STYLE[tier]}]{name}[/]" for tier, name in names.items()))


def summary(generation: Generation) -> str:
    """One line about a generation: its speed, and what it gave up for it."""
    timings = generation.timings
    parts = [
        f"{timings['predicted_n']} tokens",
        f"{number(timings['predicted_per_second'])} tokens/s",
        f"{generation.full_passes} full passes",
    ]
    if generation.draft_model:
        parts.append(f"{timings['draft_n_accepted']} of {timings['draft_n']} tested drafts accepted")
    if generation.gave_up:
        parts.append("drafting did not pay for a while: decoded plainly there")
    if not generation.lossless:
        parts.append(f"LOSSY: {_unchecked(generation)} tokens not checked by the full model")
    return f"[{generation.mode}] " + ", ".join(parts)


def _unchecked(generation: Generation) -> str:
    counts = generation.rejection
    full_tokens = next(tier["accepted"] for tier in generation.tiers if tier["name"] == "full")
    n = len(generation.token_ids)
    unchecked = n - min(n, max(full_tokens, counts["escalated"] or 0))
    return f"up to {unchecked} of {n}"


def bench_tables(summary: Sequence[dict[str, Any]]) -> list[Table]:
    """A table for every class of a bench run."""
    columns = ["", "tokens/s", "to stock", "lowest", "to plain", "a pass", "accepted", "changed", "escalated"]
    columns += ["identical", "loss"]
    tables = []
    for group in dict.fromkeys(entry["class"] for entry in summary):
        entries = [entry for entry in summary if entry["class"] == group]
        rows = [
            [
                entry["strategy"],
                number(entry["tokens_per_s"]),
                number(entry["ratio_to_stock"], 2),
                number(entry["lowest_ratio_to_stock"], 2),
                number(entry["ratio_to_plain"], 2),
                number(entry["tokens_per_full_pass"], 2),
                *(percent(entry[key]) for key in ("acceptance", "rejection_changed", "rejection_escalated")),
                "-" if entry["identical"] is None else f"{entry['identical']}/{entry['prompts']}",
                percent(entry["loss"]),
            ]
            for entry in entries
        ]
        tables.append(table(f"{group}, {max(entry['prompts'] for entry in entries)} prompts", columns, rows))
    return tables


def bench_details(summary: Sequence[dict[str, Any]]) -> Table:
    """Peak memory and acceptance by place in the draft, of each strategy over all prompts of a bench run."""
    over_all = [entry for entry in summary if entry["class"] == summary[-1]["class"]]
    rows = [
        [
            entry["strategy"],
            "-" if entry["peak_rss_bytes"] is None else entry["peak_rss_bytes"] >> 20,
            " ".join("-" if share is None else f"{share:.0%}" for share in entry["acceptance_by_position"][:_PLACES]),
        ]
        for entry in over_all
    ]
    return table("memory of the process, drafts", ["", "peak MiB", f"accepted at places 1-{_PLACES}"], rows)


def percent(share: float | None) -> str:
    """A share, or "-" for what does not apply."""
    return "-" if share is None else f"{share:.1%}"


def policy_table(rows: list[dict[str, Any]]) -> Table:
    """What the policy expects of every way to go on, and how often it went that way."""
    lines = [
        [
            "plain decoding" if row["drafter"] == "none" else f"{row['drafter']} for {row['verifier']}",
            number(row["guess_ms"]),
            number(row["chance"], 2),
            row["length"] or "-",
            number(row["tokens_per_s"]),
            row["rounds"],
        ]
        for row in rows
    ]
    columns = ("", "ms/guess", "chance", "length", "tokens/s", "rounds")
    return table("what the policy expects now: chance of a guess to stand, best length, speed", columns, lines)


def number(value: float | None, digits: int = 1) -> str:
    """A number, or "-" for what does not apply."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """A table with its first column left-aligned and numbers to the right."""
    grid = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        grid.add_column(column, justify="left" if i == 0 else "right", overflow="fold", no_wrap=i == 0)
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))  # names may hold what rich takes for markup
    return grid
