"""The `viasd-edge` command. A command parses, calls one library function and prints."""

from __future__ import annotations

import sys

import click
from click_default_group import DefaultGroup

from viasd_edge import __version__
from viasd_edge.cli.bench import bench
from viasd_edge.cli.calibrate import calibrate
from viasd_edge.cli.generate import generate
from viasd_edge.cli.masks import masks
from viasd_edge.cli.models import models
from viasd_edge.cli.native import native
from viasd_edge.cli.tune import tune


@click.group(
    cls=DefaultGroup,
    default="generate",
    default_if_no_args=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__)
def cli() -> None:
    """Answers from a local GGUF model, sped up by a drafter and a slim verifier.

    \b
    viasd-edge "Write a Python function that reverses a string."
    viasd-edge models list
    viasd-edge generate --help
    """


for command in (generate, models, masks, tune, calibrate, bench, native):
    cli.add_command(command)


def main() -> None:
    """Entry point of the `viasd-edge` script."""
    # answers are UTF-8 whatever the locale says; a character the terminal lacks is no reason to die
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    cli()
