"""`viasd-edge masks`: look at layer masks."""

from __future__ import annotations

import click

from viasd_edge.cli.common import json_option, print_json, reports_errors


@click.group()
def masks() -> None:
    """Layer masks: what the slim verifier skips."""


@masks.command(name="show")
@click.argument("mask", required=False)
@json_option
@reports_errors
def masks_show(mask: str | None, *, as_json: bool) -> None:
    """Show MASK (a file, a name, or text like "layers:4-7"); without it, name those there are."""
    from viasd_edge.names import load_mask, mask_names

    if mask is None:
        names = mask_names()
        if as_json:
            print_json(names)
        else:
            click.echo("\n".join(names))
        return
    found = load_mask(mask)
    if as_json:
        print_json({"name": found.name, "text": str(found), **found.to_dict()})
        return
    click.echo(f"{found.name}: {found}")
    click.echo(f"  model   {found.model or 'any'} (fingerprint {found.fingerprint or 'none'})")
    click.echo(f"  method  {found.method}")
    for score, value in found.scores.items():
        click.echo(f"  {score}  {value}")
