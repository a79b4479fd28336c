"""`viasd-edge models`: the registry, and what of it is on this machine."""

from __future__ import annotations

import click
from click_default_group import DefaultGroup

from viasd_edge.cli.common import json_option, print_json, pull_progress, reports_errors
from viasd_edge.errors import ModelError


@click.group(cls=DefaultGroup, default="list", default_if_no_args=True)
def models() -> None:
    """Models by name: list, pull, show their path."""


@models.command(name="list")
@json_option
@reports_errors
def models_list(*, as_json: bool) -> None:
    """List the models and pairs that can be named."""
    from viasd_edge.registry import registry

    known = registry()
    if as_json:
        print_json(
            {
                "models": [
                    {
                        "name": model.name,
                        "description": model.description,
                        "license": model.license,
                        "size": model.size,
                        "path": str(model.path),
                        "pulled": model.path.is_file(),
                    }
                    for model in known.models.values()
                ],
                "pairs": [vars(pair) for pair in known.pairs.values()],
                "default": known.default,
            }
        )
        return
    for model in known.models.values():
        size = "pulled" if model.path.is_file() else f"{model.size >> 20} MiB"
        click.echo(f"{model.name:<20} {size:<9} {model.description} ({model.license})")
    for pair in known.pairs.values():
        default = ", the default" if pair.name == known.default else ""
        click.echo(f"{pair.name:<20} pair{default}: {pair.draft} drafts for {pair.target}, mask {pair.mask or '-'}")


@models.command(name="pull")
@click.argument("names", nargs=-1)
@click.option("--quiet", is_flag=True, help="No progress bar.")
@reports_errors
def models_pull(names: tuple[str, ...], *, quiet: bool) -> None:
    """Fetch models (a pair's name fetches both); resumes where an earlier pull stopped. Default: the default pair."""
    from viasd_edge.registry import resolve

    for name in _expand(names):
        with pull_progress(quiet=quiet) as progress:
            path = resolve(name, progress)
        click.echo(str(path))


@models.command(name="path")
@click.argument("name", required=False)
@reports_errors
def models_path(name: str | None) -> None:
    """Print where a model lies, or the folder of all pulled models."""
    from viasd_edge.folders import models_dir
    from viasd_edge.registry import on_disk, registry

    if name is None:
        click.echo(str(models_dir()))
        return
    if name not in registry().models:
        raise ModelError(f"{name}: not a model of the registry (known: {', '.join(registry().models)})")
    click.echo(str(on_disk(name)))


def _expand(names: tuple[str, ...]) -> list[str]:
    """Models for names of models and pairs, in order."""
    from viasd_edge.registry import registry

    known = registry()
    expanded = []
    for name in names or (known.default,):
        pair = known.pairs.get(name)
        expanded += [pair.target, pair.draft] if pair else [name]
    return expanded
