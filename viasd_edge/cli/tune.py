"""`viasd-edge tune`: a mask for this model on this device."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viasd_edge.cli.bench import picture, stock_option
from viasd_edge.cli.calibrate import take_samples
from viasd_edge.cli.common import errors_option, json_option, print_json, pull_progress, reports_errors
from viasd_edge.cli.generate import INTERRUPTED
from viasd_edge.search import METHODS

if TYPE_CHECKING:
    from viasd_edge.engine import Engine
    from viasd_edge.tuning import Evaluation, Texts, Tuned

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _budget(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """Seconds from "10m", "90s", "1.5h"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found or float(found[1]) == 0:
        raise click.BadParameter(f'{text!r} is not like "10m", "90s" or "1h"')
    return float(found[1]) * _SECONDS[found[2]]


def _shares(_context: click.Context, _option: click.Parameter, texts: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(dict.fromkeys(texts))


@click.command()
@click.argument("model", required=False)
@click.option("-md", "--draft", "--draft-model", "draft_model", help="The drafter. Default: the pair's.")
@click.option("--budget", default="10m", callback=_budget, show_default=True, help="Time it may take: 90s, 10m, 1h.")
@click.option("--method", type=click.Choice(METHODS), default="dimr", show_default=True, help="How masks are sought.")
@click.option(
    "--skip",
    "shares",
    type=click.FloatRange(0, 0.9, min_open=True),
    multiple=True,
    default=(0.08, 0.16, 0.3),
    show_default=True,
    callback=_shares,
    help="Share of the layers' cost to skip; may be given more than once.",
)
@click.option("--layers", is_flag=True, help="Skip whole layers only, not attention and FFN blocks one by one.")
@errors_option
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Search on this text. Default: answers to the prompts of `bench`.",
)
@click.option("-n", "--max-tokens", type=click.IntRange(16), default=48, show_default=True, help="Tokens of a sample.")
@click.option("--samples", type=click.IntRange(3), default=18, show_default=True, help="Samples at most.")
@click.option("--evaluations", type=click.IntRange(1), help="Masks to score at most. Default: as many as fit.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Same seed, same masks.")
@click.option("--fresh", is_flag=True, help="Forget what earlier searches of this model measured here.")
@click.option("--name", help="Save the mask under this name. Default: the model's, with -tuned.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), callback=picture, help="Write a picture.")
@stock_option
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
@reports_errors
def tune(
    *,
    model: str | None,
    draft_model: str | None,
    text_file: Path | None,
    max_tokens: int,
    samples: int,
    fresh: bool,
    name: str | None,
    plot: Path | None,
    stock: Path | None,
    threads: int | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Find, score, calibrate and save a mask for MODEL on this device.

    With a drafter the mask is for tiered mode, without one for drafting by the model itself (--self). What is scored
    is written down as it comes: the same command goes on after an interruption, or with more time. Afterwards
    `generate` finds the mask by the model's file.

    \b
    viasd-edge tune
    viasd-edge tune qwen2.5-coder --budget 20m --error 0.01 --error 0.05 --plot masks.png
    viasd-edge tune my-model.gguf --draft my-small-model.gguf
    """
    from viasd_edge.engine import Engine
    from viasd_edge.names import hand_picked, model_name, own_mask_path
    from viasd_edge.search.objective import Journal
    from viasd_edge.tuning import Plan, Tuner, journal_path

    if name is not None:
        own_mask_path(name)  # a bad name costs no search
    plan = Plan(
        method=options["method"],
        shares=options["shares"],
        blocks=not options["layers"],
        errors=options["errors"],
        budget=options["budget"],
        evaluations=options["evaluations"],
        seed=options["seed"],
    )
    with pull_progress(quiet=quiet) as pulls:
        engine = Engine.open(model, draft_model=draft_model, mode="exact", n_threads=threads, progress=pulls)
    with engine, _progress(plan.budget, quiet=quiet) as (on_evaluation, on_phase):
        saved = own_mask_path(name or f"{model_name(engine.target.model.path)}-tuned")
        path = journal_path(engine, plan, _text_key(text_file, samples, max_tokens))
        on_phase("getting ready")
        tuner = Tuner(
            engine,
            plan,
            journal=None if fresh else Journal.load(path),
            path=path,
            texts=lambda: _texts(engine, text_file, samples, max_tokens),
            stock_ratio=_stock_ratio(engine, stock),
        )
        on_phase("searching")
        tuner.search(on_evaluation)
        tuned = tuner.finish(hand_picked(engine.target.model.fingerprint), on_phase)
        tuned.mask = replace(tuned.mask, name=saved.stem)
        tuned.mask.save(saved)
    if plot:
        from viasd_edge.search.report import plot as plot_masks

        plot_masks(tuned, engine.target.model.n_layer, plot)
    _report(tuned, saved, as_json=as_json)
    if tuned.interrupted:
        sys.exit(INTERRUPTED)


@contextmanager
def _progress(budget: float, *, quiet: bool) -> Iterator[tuple[Callable[[Evaluation], None], Callable[[str], None]]]:
    """(what to call with every mask, what to call with every phase): a bar of the budget with the best so far."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from viasd_edge.render import console

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[best]}"))
    with Progress(*columns, console=console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("", total=budget, best="")

        def on_evaluation(step: Evaluation) -> None:
            scores = step.best.scores
            best = f"{step.evaluations} masks, best {step.best.mask}: {scores.tokens_per_s:.1f} tokens/s predicted"
            bar.update(task, completed=bar.tasks[0].elapsed or 0.0, best=best)

        def on_phase(phase: str) -> None:
            bar.update(task, completed=bar.tasks[0].elapsed or 0.0, description=phase)

        yield on_evaluation, on_phase


def _text_key(text_file: Path | None, samples: int, max_tokens: int) -> str:
    """Names the text that is searched on."""
    contents = hashlib.sha256(text_file.read_bytes()).hexdigest() if text_file else "our prompts"
    return f"{contents} {samples} {max_tokens}"


def _texts(engine: Engine, text_file: Path | None, samples: int, max_tokens: int) -> Texts:
    from viasd_edge.samples import split
    from viasd_edge.tuning import Texts

    return Texts(*split(take_samples(engine, text_file, samples, max_tokens)))


def _stock_ratio(engine: Engine, stock: Path | None) -> float | None:
    """How much longer stock llama.cpp takes for a token."""
    from viasd_edge.costs import stock_ratio

    if stock is None:
        click.echo("no stock library (--stock): ratios are to our own plain decoding", err=True)
        return None
    return stock_ratio(engine.target, stock)


def _report(tuned: Tuned, saved: Path, *, as_json: bool) -> None:
    from viasd_edge.search.report import tables

    if as_json:
        print_json({**tuned.to_dict(), "saved": str(saved)})
    else:
        from viasd_edge.render import console

        out = console()
        for table in tables(tuned):
            out.print(table)
        for entry in tuned.mask.calibrations:
            click.echo(f"within {entry.error:g}: {entry.gate}, {'keep' if entry.keep_kv else 'catch-up'} (LOSSY)")
    for note in tuned.notes:
        click.echo(note, err=True)
    click.echo(f"saved in {saved}", err=True)
