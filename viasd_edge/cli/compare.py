"""`viasd-edge masks compare`: masks of one model side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from viasd_edge.cli.common import json_option, print_json, reports_errors
from viasd_edge.errors import MaskError

if TYPE_CHECKING:
    from viasd_edge.mask import LayerMask


@click.command(name="compare")
@click.argument("names", metavar="MASK MASK...", nargs=-1, required=True)
@json_option
@reports_errors
def masks_compare(names: tuple[str, ...], *, as_json: bool) -> None:
    """Compare masks of one model: what each skips by layer, overlap with the first (Jaccard), scores.

    \b
    viasd-edge masks compare mine qwen2.5-coder-1.5b-hand-picked "layers:4-7"
    """
    from viasd_edge.names import load_mask

    if len(names) == 1:
        raise click.UsageError("one mask compares with nothing: name at least two")
    found = [replace(load_mask(name), name=name) for name in names]
    known = _layers_of(found)
    n_layer = known or 1 + max(layer for mask in found for _, layer in mask.blocks)  # those they reach
    compared = [
        {
            "name": mask.name,
            "text": str(mask),
            "map": mask.layer_map(n_layer),
            "overlap": round(mask.overlap(found[0]), 4),
            "share": round(mask.share(known), 4) if known else None,
            "scores": mask.scores,
        }
        for mask in found
    ]
    if as_json:
        print_json({"layers": known, "masks": compared})
    else:
        _print(compared, n_layer)


def _layers_of(masks: list[LayerMask]) -> int | None:
    """The layers of the model that the masks are for, if one of them tells. Raises MaskError if they do not fit it."""
    bound = [mask for mask in masks if mask.fingerprint]
    for mask in bound:
        if mask.fingerprint != bound[0].fingerprint:
            raise MaskError(
                f"mask {bound[0].name} is for {bound[0].model} (fingerprint {bound[0].fingerprint}), mask {mask.name} "
                f"for {mask.model} ({mask.fingerprint}); compare masks of one model"
            )
    known = next((mask.n_layer for mask in masks if mask.n_layer), None)
    if known:
        for mask in masks:
            mask.check(known, mask.fingerprint or "")
    return known


def _print(compared: list[dict[str, Any]], n_layer: int) -> None:
    from viasd_edge.render import console, number, percent, table

    width = max(len(entry["name"]) for entry in compared)
    click.echo(f"{'layer':{width}}  " + "".join(f"{layer:<10}" for layer in range(0, n_layer, 10)).rstrip())
    for entry in compared:
        click.echo(f"{entry['name']:{width}}  {entry['map']}")
    click.echo(f"{'':{width}}  . both kept, a attention skipped, f FFN skipped, # both skipped\n")
    rows = [
        [entry["name"], number(entry["overlap"], 2), percent(entry["share"]), scores_text(entry["scores"])]
        for entry in compared
    ]
    console().print(table("masks", ("", "overlap with the first", "of blocks", "scores"), rows))


def scores_text(scores: dict[str, Any], names: tuple[str, ...] = ()) -> str:
    """Scores that are numbers: those of `names`, all if it has none of these."""
    numbers = {key: value for key, value in scores.items() if _is_number(value)}
    chosen = [key for key in names if key in numbers] or numbers
    return ", ".join(f"{key} {numbers[key]:.4g}" for key in chosen) or "-"


def _is_number(value: Any) -> bool:
    """Whether a score or count is one, and not a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
