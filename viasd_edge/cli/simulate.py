"""`viasd-edge bench simulate` and `bench profile`: what a traced run would take on another device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from viasd_edge.cli.common import json_option, print_json, pull_progress, reports_errors

if TYPE_CHECKING:
    from viasd_edge.profiles import Profile
    from viasd_edge.simulate import Prediction


@click.command(name="profile")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("-m", "--model", help="Pair, model name, .gguf path, or repo:file. Default: the default pair.")
@click.option("-md", "--draft-model", help="The drafter. Default: the pair's.")
@click.option("--mask", help="The slim verifier's mask. Default: as in generate.")
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@reports_errors
def bench_profile(
    *, file: Path, model: str | None, draft_model: str | None, mask: str | None, threads: int | None
) -> None:
    """Measure this machine's t(n) of a pair's tiers into FILE, a profile for `bench simulate`.

    \b
    viasd-edge bench profile here.toml
    """
    from viasd_edge.engine import Engine, find_mask
    from viasd_edge.profiles import measure_profile

    with pull_progress() as progress:
        engine = Engine.open(
            model,
            draft_model=draft_model,
            mode="exact",
            mask=mask or find_mask(model, draft_model, progress=progress),
            n_ctx=1024,
            n_threads=threads,
            progress=progress,
        )
    with engine:
        measure_profile(engine.parts, file)


@click.command(name="simulate")
@click.option(
    "--trace",
    "traces",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help="A file that `generate --trace` wrote; may be given more than once.",
)
@click.option("--profile", required=True, help="The device: a shipped profile's name, or a .toml file like those.")
@click.option("-m", "--model", help="A file in place of the traced model; only its size counts. Needs a roofline.")
@click.option("-md", "--draft", "draft_model", help="A file in place of the traced drafter, likewise.")
@json_option
@reports_errors
def bench_simulate(
    *, traces: tuple[Path, ...], profile: str, model: str | None, draft_model: str | None, as_json: bool
) -> None:
    """Replay traces at another device's costs: tokens/s there, of the run and of plain decoding.

    \b
    viasd-edge generate "Explain what a mutex is." --trace mutex.jsonl
    viasd-edge bench simulate --trace mutex.jsonl --profile laptop-8-cores
    """
    from viasd_edge.profiles import Profile
    from viasd_edge.simulate import simulate

    device = Profile.load(profile)
    predictions = simulate(traces, device, model=model, draft_model=draft_model)
    if as_json:
        print_json(
            {
                "profile": {"name": device.name, "description": device.description, "measured": device.is_measured},
                "predictions": [prediction.to_dict() for prediction in predictions],
            }
        )
    else:
        _print_predictions(device, predictions)


def _print_predictions(device: Profile, predictions: list[Prediction]) -> None:
    from viasd_edge.render import console, number, table

    columns = ["", "mode", "tokens", "traced tokens/s", "tokens/s there", "plain there", "ratio"]
    columns += ["draft ms", "slim ms", "full ms"]
    rows = [
        [
            prediction.trace,
            prediction.mode,
            prediction.tokens,
            number(prediction.traced_tokens_per_s),
            number(prediction.tokens_per_s),
            number(prediction.plain_tokens_per_s),
            number(prediction.ratio, 2),
            *(number(prediction.ms[tier]) for tier in ("draft", "slim", "full")),
        ]
        for prediction in predictions
    ]
    out = console()
    out.print(table(f"{device.name}: {device.description}", columns, rows))
    lines = {
        f"{tier}: {source.times} times of {source.file}"
        + (f", mask {source.mask}" if source.mask else "")
        + (" (random weights: only its size counts)" if source.random_weights else "")
        for prediction in predictions
        for tier, source in prediction.sources.items()
    }
    out.print("\n".join(sorted(lines)))
    out.print("measured: traced tokens/s. Which drafts stand is as traced, whatever models the times are of.")
