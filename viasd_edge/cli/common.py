"""What commands share: errors to exit codes, progress bars, colour."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from viasd_edge.errors import EdgeError

Command = TypeVar("Command", bound=Callable[..., Any])


def reports_errors(command: Command) -> Command:
    """Turn our errors into one line on stderr and their exit code. Nothing else is caught."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except EdgeError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(error.exit_code)

    return wrapped  # type: ignore[return-value]  # wraps keeps the signature


errors_option = click.option(
    "--error",
    "errors",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    multiple=True,
    default=(0.01,),
    show_default=True,
    help="Share of emitted tokens that may differ from the full model's choice; may be given more than once.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def print_json(value: Any) -> None:
    """One JSON value on stdout; NaN is an error, not output."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


@contextmanager
def pull_progress(*, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress callback for pulls; its bar appears on stderr with the first call."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from viasd_edge.render import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console(stderr=True), disable=quiet)
    tasks: dict[int, Any] = {}

    def update(done: int, total: int) -> None:
        if not tasks:
            bar.start()
        if total not in tasks:  # one bar a file; no two files of ours have one size
            tasks[total] = bar.add_task("pulling", total=total)
        bar.update(tasks[total], completed=done)

    try:
        yield update
    finally:
        if tasks:
            bar.stop()


@contextmanager
def counting(total: int, done: int = 0, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A bar on stderr that counts up to `total`; call what it yields once for each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from viasd_edge.render import console

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda: bar.advance(task)
