"""`viasd-edge bench`: measure on this machine, beside stock llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from viasd_edge.cli.common import json_option, print_json, pull_progress, reports_errors
from viasd_edge.limits import MAX_ROWS

if TYPE_CHECKING:
    from viasd_edge.costs import CostReport


@click.group()
def bench() -> None:
    """Measure: what a pass costs."""


def _widths(_context: click.Context, _option: click.Parameter, text: str) -> list[int]:
    """Widths from "1-16,24,32"."""
    try:
        ends = [[int(end) for end in item.split("-")] for item in text.split(",")]
        widths = sorted({n for first, *last in ends for n in range(first, (last or [first])[0] + 1)})
    except ValueError:
        raise click.BadParameter('give widths like "1-16,24,32"') from None
    if not widths or widths[0] < 1 or widths[-1] > MAX_ROWS:
        raise click.BadParameter(f"widths must be from 1 to {MAX_ROWS}")
    return widths


@bench.command(name="cost")
@click.option("-m", "--model", help="Model name, .gguf path, or repo:file. Default: the default pair's target.")
@click.option("--mask", help="Measure ours under this mask.")
@click.option("--widths", callback=_widths, default="1-16,24,32", show_default=True, help="Tokens in a pass.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds after a warm-up.")
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@click.option(
    "--stock",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="VIASD_STOCK_LIB",
    help="Folder of the stock library that scripts/build_stock.py builds. Default: $VIASD_STOCK_LIB, else ours alone.",
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw t(n) into this file (.png, .svg).")
@json_option
@reports_errors
def bench_cost(
    *,
    model: str | None,
    mask: str | None,
    widths: list[int],
    repeats: int,
    threads: int | None,
    stock: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Time one pass of n tokens, all logits: t(n) and C(n) = t(n)/t(1), ours beside stock, by turns.

    \b
    export VIASD_STOCK_LIB=$(python3 scripts/build_stock.py)
    viasd-edge bench cost --plot cost.png
    """
    from viasd_edge.costs import measure_costs, plot_costs
    from viasd_edge.engine import load_mask
    from viasd_edge.registry import registry, resolve

    known = registry()
    pair = known.pairs.get(model or known.default)
    with pull_progress() as progress:
        path = resolve(pair.target if pair else str(model), progress)
    report = measure_costs(
        path,
        widths=widths,
        repeats=repeats,
        mask=load_mask(mask) if mask else None,
        n_threads=threads,
        stock=stock,
    )
    if plot:
        plot_costs(report, plot)
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if stock is None:
        click.echo("ours alone; to compare, set VIASD_STOCK_LIB to what scripts/build_stock.py prints", err=True)


def _print_report(report: CostReport) -> None:
    from viasd_edge.render import console, number, table

    rows = []
    for i, n in enumerate(report.n):
        ours = report.ours_ms[i]
        row = [n, number(ours), number(report.cost(report.ours_ms, i), 2)]
        if report.stock_ms:
            stock = report.stock_ms[i]
            row += [number(stock), number(report.cost(report.stock_ms, i), 2), number(stock / ours, 2)]
        rows.append(row)
    columns = ["n", "t(n) ms", "C(n)"] + (["stock ms", "stock C(n)", "stock/ours"] if report.stock_ms else [])
    out = console()
    out.print(table(f"{report.model}, mask {report.mask or '-'}, kernel {report.kernel}", columns, rows))
    shares = [("t(1): ", report.bandwidth_share, f"of {report.memory_bandwidth_gbs} GB/s memory bandwidth")]
    shares += [(f"t({report.n[-1]}): ", report.int8_share, f"of {report.int8_gmacs} G int8 multiply-accumulates/s")]
    for label, share, of in shares:
        if share is not None:
            out.print(f"{label}{share:.0%} {of}")
    stock_load = f", stock {report.stock_load_s:.1f} s" if report.stock_load_s else ""
    out.print(f"load {report.load_s:.1f} s{stock_load}")
