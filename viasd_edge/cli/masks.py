"""`viasd-edge masks`: list, look at, carry and compare layer masks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click_default_group import DefaultGroup

from viasd_edge.cli.common import json_option, print_json, reports_errors
from viasd_edge.cli.compare import masks_compare, scores_text
from viasd_edge.errors import MaskError

if TYPE_CHECKING:
    from viasd_edge.mask import LayerMask

_MAIN_SCORES = ("agreement", "coverage", "tokens_per_s")
_TEXT_WIDTH = 30  # characters of what a mask skips, in a list


@click.group(cls=DefaultGroup, default="list", default_if_no_args=True)
def masks() -> None:
    """Layer masks, what the slim verifier skips: list, show, export, import, compare."""


masks.add_command(masks_compare)


@masks.command(name="list")
@click.option("-m", "--model", help="Only masks for this model: a pair, a model's name, or a .gguf path.")
@json_option
@reports_errors
def masks_list(*, model: str | None, as_json: bool) -> None:
    """List your masks and the shipped ones. A name stands for yours before a shipped one."""
    from viasd_edge.mask import LayerMask
    from viasd_edge.model import fingerprint
    from viasd_edge.names import mask_files

    wanted = fingerprint(_model_file(model)) if model else None
    found = []
    for path, origin in mask_files():
        try:
            mask = LayerMask.load(path)
        except MaskError as error:
            click.echo(f"passed over: {error}", err=True)
            continue
        if wanted is None or mask.fingerprint in (None, wanted):
            found.append((mask, origin, path))
    if as_json:
        entries = [{**_entry(mask), "origin": origin, "path": str(path)} for mask, origin, path in found]
        print_json({"masks": entries})
        return
    from viasd_edge.render import console, percent, table

    rows = [
        [
            mask.name,
            mask.model or "any",
            mask.method.partition(":")[0],
            _short(mask),
            percent(_share(mask)),
            scores_text(mask.scores, _MAIN_SCORES),
            ", ".join(f"{error:g}" for error in sorted({entry.error for entry in mask.calibrations})) or "-",
            origin,
        ]
        for mask, origin, _ in found
    ]
    if not rows:
        click.echo("no masks for this model; layers can be given like --mask layers:4-7", err=True)
        return
    columns = ("name", "model", "method", "skips", "of blocks", "scores", "calibrated errors", "origin")
    console().print(table("masks", columns, rows))


@masks.command(name="show")
@click.argument("mask")
@json_option
@reports_errors
def masks_show(mask: str, *, as_json: bool) -> None:
    """Show MASK (a file, a name, or text like "layers:4-7") in full."""
    from viasd_edge.names import load_mask
    from viasd_edge.render import console, number, percent, table

    found = load_mask(mask)
    if as_json:
        print_json(_entry(found))
        return
    share = f", {percent(_share(found))} of {found.n_layer} layers" if found.n_layer else ""
    lines = [
        ("model", f"{found.model or 'any'} (fingerprint {found.fingerprint or 'none'})"),
        ("skips", f"{len(found.attention)} attention and {len(found.ffn)} FFN blocks{share}"),
        ("method", found.method),
        ("device", found.device or "-"),
        ("created", found.created or "-"),
        *((name, json.dumps(value)) for name, value in found.scores.items()),
    ]
    click.echo(f"{found.name}: {found}")
    for name, value in lines:
        click.echo(f"  {name:<14} {value}")
    calibrations = sorted(found.calibrations, key=lambda entry: (entry.draft, entry.error))
    measures = list(dict.fromkeys(name for entry in calibrations for name in entry.measured))
    rows = [
        [number(entry.error, 4), entry.draft, entry.gate, "keep" if entry.keep_kv else "catch-up"]
        + [json.dumps(entry.measured[name]) if name in entry.measured else "-" for name in measures]
        for entry in calibrations
    ]
    if rows:
        columns = ("within", "drafter", "gate", "KV", *(name.replace("_", " ") for name in measures))
        console().print(table("calibrated, and what was measured", columns, rows))


@masks.command(name="export")
@click.argument("mask")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@reports_errors
def masks_export(mask: str, file: Path) -> None:
    """Write MASK (a file, a name, or text like "layers:4-7") into FILE as JSON; "-" is stdout."""
    from viasd_edge.folders import write_atomically
    from viasd_edge.names import load_mask

    text = load_mask(mask).to_json()
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        write_atomically(file, text)
    except OSError as error:
        raise MaskError(f"{file}: the mask cannot be written: {error.strerror}; name another file") from error


@masks.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option("--name", help="Keep the mask under this name. Default: the file's own.")
@click.option(
    "-m",
    "--model",
    help="Check the mask against this model (a pair, a model's name, or a .gguf path); one that names no model becomes "
    "a mask of it.",
)
@click.option("--force", is_flag=True, help="Take the place of your mask of that name.")
@reports_errors
def masks_import(file: Path, name: str | None, model: str | None, *, force: bool) -> None:
    """Check the mask in FILE ("-": stdin) and put it among yours, where `generate` finds it by its model.

    \b
    viasd-edge masks export qwen2.5-coder-1.5b-hand-picked - | viasd-edge masks import - --name mine
    """
    from viasd_edge.mask import LayerMask
    from viasd_edge.names import own_mask_path

    from_stdin = str(file) == "-"
    if from_stdin and name is None:
        raise click.UsageError("a mask from stdin needs a name: --name NAME")
    path = own_mask_path(file.stem if name is None else name)
    if path.exists() and not force:
        raise MaskError(f"you have a mask {path.stem} already: --force replaces it, --name keeps both")
    mask = LayerMask.from_json(_stdin_text(), name="stdin", source="stdin") if from_stdin else LayerMask.load(file)
    if model:
        from viasd_edge.model import Model

        with Model(_model_file(model)) as opened:
            mask = mask.bound(fingerprint=opened.fingerprint, model=opened.path.stem, n_layer=opened.n_layer)
    mask.save(path)
    click.echo(f"saved in {path}", err=True)


def _model_file(model: str) -> Path:
    """The file of a model that is on this machine. Raises ModelError."""
    from viasd_edge.model import check_file
    from viasd_edge.names import named
    from viasd_edge.registry import on_disk

    path = on_disk(named(model, None).target)
    check_file(path)
    return path


def _stdin_text() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise MaskError(f"stdin: cannot be read: {error}") from error


def _entry(mask: LayerMask) -> dict[str, Any]:
    return {"name": mask.name, "text": str(mask), "share": _share(mask), **mask.to_dict()}


def _share(mask: LayerMask) -> float | None:
    return None if mask.n_layer is None else round(mask.share(mask.n_layer), 4)


def _short(mask: LayerMask) -> str:
    text = str(mask)
    if mask.attention == mask.ffn:
        text = "layers" + text[text.rindex(":") :]
    return text if len(text) <= _TEXT_WIDTH else text[: _TEXT_WIDTH - 1] + "…"
