"""`viasd-edge native`: whether the library is there, and ours."""

from __future__ import annotations

import click

from viasd_edge.cli.common import json_option, print_json, reports_errors


@click.group()
def native() -> None:
    """The native library."""


@native.command(name="check")
@json_option
@reports_errors
def native_check(*, as_json: bool) -> None:
    """Load the library and print what it is; exit 1 with the cure if it is not usable."""
    from viasd_edge._native import LAYER_PROBE_VERSION, LAYER_SKIP_VERSION
    from viasd_edge._native import native as load

    library = load()
    facts = {
        "folder": str(library.folder),
        "layer_skip_version": LAYER_SKIP_VERSION,
        "layer_probe_version": LAYER_PROBE_VERSION,
        "system_info": library.system_info(),
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name:<20}{value}")
