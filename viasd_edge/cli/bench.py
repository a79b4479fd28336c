"""`viasd-edge bench`: measure on this machine, beside stock llama.cpp."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click_default_group import DefaultGroup

from viasd_edge.cli.common import counting, json_option, print_json, pull_progress, reports_errors
from viasd_edge.cli.simulate import bench_profile, bench_simulate
from viasd_edge.limits import MAX_ROWS, PEER, POLICIES, STOCK, STRATEGIES

if TYPE_CHECKING:
    from viasd_edge.costs import CostReport
    from viasd_edge.mask import LayerMask
    from viasd_edge.prompts import Prompt


@click.group(cls=DefaultGroup, default="run", default_if_no_args=True)
def bench() -> None:
    """Measure on this machine: strategies over prompts (the default), or what a pass costs; predict other machines."""


bench.add_command(bench_profile)
bench.add_command(bench_simulate)


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


stock_option = click.option(
    "--stock",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="VIASD_STOCK_LIB",
    help="Folder of the stock library that scripts/build_stock.py builds. Default: $VIASD_STOCK_LIB, else ours alone.",
)
_PICTURES = (".pdf", ".png", ".svg")


def _in_a_folder(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """A file that can be written when the measuring is done."""
    if path and not path.parent.is_dir():
        raise click.BadParameter(f"{path.parent}: no such folder")
    return path


def picture(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path and path.suffix not in _PICTURES:
        raise click.BadParameter(f"{path.name} must end in one of {', '.join(_PICTURES)}")
    return _in_a_folder(context, option, path)


_file: dict[str, Any] = {"type": click.Path(path_type=Path, dir_okay=False), "callback": _in_a_folder}
_plot: dict[str, Any] = {**_file, "callback": picture}


@bench.command(name="run")
@click.option("-m", "--model", help="Pair, model name, .gguf path, or repo:file. Default: the default pair.")
@click.option("-md", "--draft-model", help="The drafter. Default: the pair's.")
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(STRATEGIES),
    multiple=True,
    help="What to compare; may be given more than once. Default: stock, plain, exact.",
)
@click.option("--peer", is_flag=True, help="Also llama.cpp's own speculative example (build_stock.py --peer).")
@click.option(
    "--prompts",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="JSON lines in Spec-Bench, HumanEval or GSM8K form; may be given more than once. Default: our own prompts.",
)
@click.option("--per-class", type=click.IntRange(1), help="Prompts of each class, evenly spread. Default: all.")
@click.option("--class", "classes", multiple=True, help="Only prompts of this class; may be given more than once.")
@click.option("-n", "--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="New tokens.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=5, show_default=True, help="Times every prompt runs.")
@click.option("-c", "--ctx-size", type=click.IntRange(64), default=4096, show_default=True, help="Context in tokens.")
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@click.option("--mask", help="Mask for tiered mode and self-speculation. Default: as in generate.")
@click.option("--tolerance", type=click.FloatRange(0, 1), help="tiered: the calibrated error. Default: the plain gate.")
@click.option("--policy", type=click.Choice(POLICIES), default="auto", show_default=True, help="See generate.")
@stock_option
@click.option("--rows", "rows_file", **_file, help="Keep every row in this file; the same run goes on from there.")
@click.option("--csv", "csv_file", **_file, help="Write the summary as CSV.")
@click.option("--md", "md_file", **_file, help="Write the summary as a Markdown table.")
@click.option("--plot", "plot_file", **_plot, help="Draw speed relative to stock by class (.png, .svg).")
@json_option
@reports_errors
def bench_run(
    *,
    files: tuple[Path, ...],
    per_class: int | None,
    classes: tuple[str, ...],
    peer: bool,
    stock: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run strategies over prompts by turns and compare them with plain decoding by stock llama.cpp.

    \b
    export VIASD_STOCK_LIB=$(python3 scripts/build_stock.py --peer)
    viasd-edge bench -r 5 --peer --rows rows.jsonl --plot speed.png
    viasd-edge bench --strategy plain --strategy exact --prompts humaneval.jsonl --per-class 5
    """
    from viasd_edge import results
    from viasd_edge.bench import Bench, Settings
    from viasd_edge.render import bench_details, bench_tables, console

    prompts = _prompts(files, classes, per_class)
    strategies = options["strategies"] or ((STOCK,) if stock else ()) + ("plain", "exact")
    strategies += (PEER,) if peer and PEER not in strategies else ()
    mask = _mask(options) if {"tiered", "self"} & set(strategies) else None
    settings = Settings(
        model=options["model"],
        draft_model=options["draft_model"],
        strategies=strategies,
        prompts=tuple(prompt.name for prompt in prompts),
        max_tokens=options["max_tokens"],
        repeats=options["repeats"],
        n_ctx=options["ctx_size"],
        n_threads=options["threads"],
        mask=(options["mask"] or mask.name) if mask else None,
        tolerance=options["tolerance"],
        policy=options["policy"],
    )
    with tempfile.TemporaryDirectory(prefix="viasd-edge-") as scratch:
        kept = results.Rows(options["rows_file"] or Path(scratch, "rows.jsonl"), settings)
        with pull_progress() as progress:
            opened = Bench(settings, stock=stock, mask=mask, progress=progress)
        total = len(prompts) * settings.repeats * len(strategies)
        with opened, kept.appending() as file, counting(total, len(kept.rows)) as advance:
            for row in opened.rows(prompts, {row.key for row in kept.rows}):
                kept.add(row, file)
                advance()
    for path, write in ((options["csv_file"], results.write_csv), (options["md_file"], results.write_markdown)):
        if path:
            write(kept.rows, path)
    if options["plot_file"]:
        results.plot(kept.rows, options["plot_file"])
    if as_json:
        print_json(results.to_dict(kept.rows, settings))
        return
    out = console()
    summary = results.summarise(kept.rows)
    for grid in (*bench_tables(summary), bench_details(summary)):
        out.print(grid)
    if stock is None:
        click.echo("no stock library: set VIASD_STOCK_LIB to what scripts/build_stock.py prints", err=True)


def _mask(options: dict[str, Any]) -> LayerMask | None:
    """The mask named, else the one that generate would take."""
    from viasd_edge.engine import find_mask
    from viasd_edge.names import load_mask

    if options["mask"]:
        return load_mask(options["mask"])
    with pull_progress() as progress:
        return find_mask(options["model"], options["draft_model"], tolerance=options["tolerance"], progress=progress)


def _prompts(files: tuple[Path, ...], classes: tuple[str, ...], per_class: int | None) -> list[Prompt]:
    """The prompts asked for. Raises PromptError if there are none."""
    from viasd_edge.errors import PromptError
    from viasd_edge.prompts import embedded, evenly, read_prompts

    prompts = [prompt for path in files for prompt in read_prompts(path)] if files else embedded()
    groups = list(dict.fromkeys(prompt.group for prompt in prompts))
    unknown = [name for name in classes if name not in groups]
    if unknown:
        raise PromptError(f"no prompt of class {unknown[0]!r}; there are {', '.join(groups)}")
    chosen = []
    for group in groups:
        if not classes or group in classes:
            chosen += evenly([prompt for prompt in prompts if prompt.group == group], per_class)
    return chosen


@bench.command(name="cost")
@click.option("-m", "--model", help="Model name, .gguf path, or repo:file. Default: the default pair's target.")
@click.option("--mask", help="Measure ours under this mask.")
@click.option("--widths", callback=_widths, default="1-16,24,32", show_default=True, help="Tokens in a pass.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=5, show_default=True, help="Rounds after a warm-up.")
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@stock_option
@click.option("--plot", **_plot, help="Draw t(n) into this file (.png, .svg).")
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
    from viasd_edge.names import load_mask
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
