"""`viasd-edge calibrate`: thresholds for tiered mode."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viasd_edge.cli.common import counting, errors_option, json_option, print_json, pull_progress, reports_errors
from viasd_edge.errors import MaskError

if TYPE_CHECKING:
    from viasd_edge.calibration import Forecast, Measured
    from viasd_edge.engine import Engine
    from viasd_edge.evaluation import Sample
    from viasd_edge.strategies import Gate


@click.command()
@click.option("-m", "--model", help="Pair, model name, .gguf path, or repo:file. Default: the default pair.")
@click.option("-md", "--draft-model", help="The drafter. Default: the pair's.")
@click.option("--mask", help="The mask to calibrate: a file, a name, or text. Default: as in generate.")
@click.option("--name", help="Save the mask under this name. Default: its own.")
@errors_option
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Calibrate on this text. Default: answers to the prompts of `bench`.",
)
@click.option("--gate", "gates", multiple=True, help="Only gates of this name; may be given more than once.")
@click.option("-n", "--max-tokens", type=click.IntRange(16), default=64, show_default=True, help="Tokens of a sample.")
@click.option("--samples", type=click.IntRange(3), default=27, show_default=True, help="Samples at most.")
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@json_option
@reports_errors
def calibrate(
    *,
    model: str | None,
    draft_model: str | None,
    mask: str | None,
    name: str | None,
    errors: tuple[float, ...],
    text_file: Path | None,
    gates: tuple[str, ...],
    max_tokens: int,
    samples: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Find the gate and thresholds of tiered mode for a stated error, and keep them with the mask.

    Two thirds of the samples choose, the rest measure what is chosen, with the slim verifier's KV kept and with the
    full model catching up. Afterwards `generate --tolerance` uses what was found.

    \b
    viasd-edge calibrate --error 0.01
    viasd-edge generate --tolerance 0.01 "Write a Python function that reverses a string."
    """
    from viasd_edge.calibration import best, candidates, settle
    from viasd_edge.engine import Engine
    from viasd_edge.machine import device_text
    from viasd_edge.names import model_name, own_mask_path
    from viasd_edge.samples import split
    from viasd_edge.strategies import GATES

    if name is not None:
        own_mask_path(name)  # a bad name costs no calibration
    unknown = [gate for gate in gates if gate not in GATES]
    if unknown:
        raise click.UsageError(f"gate {unknown[0]!r} is none of {', '.join(GATES)}")
    with pull_progress() as progress:
        engine = Engine.open(
            model, draft_model=draft_model, mode="tiered", mask=mask, n_threads=threads, progress=progress
        )
    with engine:
        found = engine.mask
        if found is None or engine.draft is None:
            raise MaskError("calibration needs a mask and a drafter")
        if name is None and found.method == "given":
            raise MaskError("this mask has no name to be found by: give it one with --name")
        path = own_mask_path(name or found.name)
        judged, held_out = split(take_samples(engine, text_file, samples, max_tokens))
        forecasts = _forecasts(engine, judged, list(candidates(gates or GATES)))
        click.echo(f"measuring the best on {len(held_out)} other samples", err=True)
        tried: dict[tuple[Gate, bool], Measured] = {}
        target = engine.target.model
        saved = found.bound(fingerprint=target.fingerprint, model=model_name(target.path), n_layer=target.n_layer)
        if found.method == "given":
            saved = replace(saved, device=device_text(), created=date.today().isoformat())  # noqa: DTZ011  # the user's
        for error in errors:
            calibration = settle(
                forecasts,
                held_out,
                error=error,
                target=engine.target,
                draft=engine.draft,
                mask=found,
                n=max_tokens,
                measured=tried,
            )
            saved = saved.with_calibration(calibration)
    saved.save(path)
    kinds = dict.fromkeys(entry.gate.name for entry in forecasts)
    of_kind = [[entry for entry in forecasts if entry.gate.name == kind] for kind in kinds]
    tops = [best(entries, max(errors)) for entries in of_kind if min(e.error for e in entries) <= max(errors)]
    if as_json:
        calibrations = [asdict(entry) for entry in saved.calibrations]
        print_json(_report(calibrations, tops, list(tried.values()), path))
        return
    _print(tops, list(tried.values()))
    for entry in saved.calibrations:
        click.echo(f"within {entry.error:g}: {entry.gate}, {'keep' if entry.keep_kv else 'catch-up'}")
    click.echo(f"saved in {path}", err=True)


def take_samples(engine: Engine, text_file: Path | None, count: int, n: int) -> list[Sample]:
    """Text to judge, with a progress bar while the full model answers."""
    from viasd_edge.prompts import embedded, evenly
    from viasd_edge.samples import answers, of_file

    if text_file:
        return of_file(engine, text_file, count, n)
    prompts = evenly(embedded(), count)
    click.echo("asking the full model", err=True)
    with counting(len(prompts)) as advance:
        return answers(engine, prompts, n, advance)


def _forecasts(engine: Engine, samples: list[Sample], gates: list[Any]) -> list[Forecast]:
    """What every gate would have done on the samples."""
    from viasd_edge.calibration import forecasts
    from viasd_edge.curves import Curves
    from viasd_edge.evaluation import Teacher

    parts = engine.parts
    assert parts.mask is not None  # noqa: S101  # checked before
    curves = Curves(parts.draft_curve, parts.slim_curve, parts.full_curve)
    click.echo("asking drafter and slim verifier", err=True)
    observed = Teacher(parts.target, parts.draft, samples).positions(parts.mask)
    return forecasts(observed, curves, gates)


def _report(
    calibrations: list[dict[str, Any]], tops: list[Forecast], tries: list[Measured], path: Path
) -> dict[str, Any]:
    from viasd_edge.strategies import gate_text

    return {
        "calibrations": calibrations,
        "forecasts": [{**vars(entry), "gate": gate_text(entry.gate)} for entry in tops],
        "measured": [{**vars(entry), "gate": gate_text(entry.gate)} for entry in tries],
        "saved": str(path),
    }


def _print(tops: list[Forecast], tries: list[Measured]) -> None:
    from viasd_edge.render import console, number, percent, table
    from viasd_edge.strategies import gate_text

    out = console()
    rows = [
        [gate_text(e.gate), percent(e.error), percent(e.accepted), percent(e.escalated), number(1 / e.seconds)]
        for e in tops
    ]
    out.print(table("best of each kind, forecast", ("gate", "error", "accepted", "escalated", "tokens/s"), rows))
    lines = [
        [
            f"{gate_text(e.gate)}, {'keep' if e.keep_kv else 'catch-up'}",
            percent(e.error),
            e.tokens,
            e.full_passes,
            number(e.tokens_per_s),
        ]
        for e in tries
    ]
    columns = ("gate and KV", "error (LOSSY)", "tokens", "full passes", "tokens/s")
    out.print(table("measured on other samples", columns, lines))
