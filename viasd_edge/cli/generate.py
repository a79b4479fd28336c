"""`viasd-edge generate`: answer one prompt."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viasd_edge.cli.common import json_option, print_json, pull_progress, reports_errors
from viasd_edge.errors import PromptError
from viasd_edge.limits import ACCEPT, DRAFT_MAX, ESCALATE, MAX_DRAFT

if TYPE_CHECKING:
    from viasd_edge.engine import Stream

_INTERRUPTED = 128 + signal.SIGINT


@click.command()
@click.argument("prompt", required=False)
@click.option("-m", "--model", help="Pair, model name, .gguf path, or Hugging Face repo:file. Default: qwen2.5-coder.")
@click.option("-md", "--draft-model", help="The drafter, named like --model. Default: the pair's.")
@click.option(
    "--mode",
    type=click.Choice(["plain", "exact", "tiered"]),
    help="plain: the full model alone. exact: a drafter, the same output. tiered: drafter and slim verifier, LOSSY. "
    "Default: exact with a drafter, else plain.",
)
@click.option(
    "--draft-quant",
    type=click.Choice(["q4_0", "auto"]),
    help="Run a copy of the drafter in this quantisation, made once and cached: faster, a little less often right. "
    "auto: q4_0 in exact mode, where the output does not depend on it.",
)
@click.option("--mask", help='Layers the slim verifier skips: a mask file, a shipped mask, or "attn:4-7 ffn:4-7".')
@click.option(
    "--draft-max",
    type=click.IntRange(1, MAX_DRAFT),
    default=DRAFT_MAX,
    show_default=True,
    help="Tokens a draft may have.",
)
@click.option(
    "--accept",
    type=click.FloatRange(0, 1),
    default=ACCEPT,
    show_default=True,
    help="tiered: accept a drafted token from this ratio on.",
)
@click.option(
    "--escalate",
    type=click.FloatRange(0, 1),
    default=ESCALATE,
    show_default=True,
    help="tiered: below this ratio the full model decides.",
)
@click.option(
    "--keep-kv/--catch-up",
    default=True,
    show_default=True,
    help="tiered: keep the slim verifier's KV, or let the full model rewrite it.",
)
@click.option(
    "-n", "--max-tokens", type=click.IntRange(0), default=512, show_default=True, help="Tokens to generate at most."
)
@click.option(
    "-c",
    "--ctx-size",
    type=click.IntRange(2),
    help="Context in tokens. Default: 4096 or what the model was trained for.",
)
@click.option("-t", "--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores.")
@click.option("-s", "--system", help="System prompt.")
@click.option("--stop", multiple=True, help="Stop before this text. May be given more than once.")
@click.option("--raw", is_flag=True, help="Take the prompt as it is, without the model's chat template.")
@click.option(
    "-f", "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the prompt from a file."
)
@click.option("--seed", type=int, help="Accepted for scripts; greedy decoding draws nothing.")
@click.option(
    "--color/--no-color", default=None, help="Colour the answer by tier. Default: on a terminal, in tiered mode."
)
@click.option("--quiet", is_flag=True, help="Only the answer: no progress, no summary.")
@json_option
@reports_errors
def generate(
    prompt: str | None, file: Path | None, *, as_json: bool, quiet: bool, color: bool | None, **options: Any
) -> None:
    """Answer PROMPT (or a file, or stdin).

    \b
    viasd-edge "Write a Python function that reverses a string."
    viasd-edge generate --mode tiered --mask "layers:4-7" -n 200 -f prompt.txt
    cat notes.txt | viasd-edge generate -s "Summarise." --json
    """
    text = _read_prompt(prompt, file)
    if options["escalate"] > options["accept"]:
        raise click.UsageError(f"--escalate {options['escalate']} is above --accept {options['accept']}")

    from viasd_edge.engine import Engine
    from viasd_edge.strategies import RatioGate

    with pull_progress(quiet=quiet) as progress:
        engine = Engine.open(
            options["model"],
            draft_model=options["draft_model"],
            mode=options["mode"],
            mask=options["mask"],
            draft_quant=options["draft_quant"],
            n_ctx=options["ctx_size"],
            n_threads=options["threads"],
            progress=progress,
            gate=RatioGate(options["accept"], options["escalate"]),
            keep_kv=options["keep_kv"],
            draft_max=options["draft_max"],
        )
    with engine:
        _notice(engine, options, quiet=quiet)
        stream = engine.stream(
            text, max_tokens=options["max_tokens"], stop=options["stop"], system=options["system"], raw=options["raw"]
        )
        interrupted = _print_stream(stream, show=not as_json, color=color, tiers=engine.mode == "tiered")
        _report(stream, as_json=as_json, quiet=quiet)
    if interrupted:
        sys.exit(_INTERRUPTED)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise click.UsageError("give the prompt or --file, not both")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if prompt is None or prompt == "-":
            if sys.stdin.isatty():
                raise click.UsageError("no prompt: give it as an argument, with --file, or on stdin")
            return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{file or 'stdin'} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    return prompt


def _notice(engine: Any, options: dict[str, Any], *, quiet: bool) -> None:
    if not quiet and engine.mode == "plain" and options["mode"] is None:
        click.echo("no drafter for this model: plain decoding (name one with -md)", err=True)


def _print_stream(stream: Stream, *, show: bool, color: bool | None, tiers: bool) -> bool:
    """Print pieces as they come; whether Ctrl-C ended it."""
    from viasd_edge.render import TIER_STYLE, console

    out = console(color=color)
    colored = show and (color if color is not None else tiers) and out.color_system is not None
    try:
        for piece in stream:
            if not show or not piece.text:
                continue
            if colored:
                out.print(piece.text, style=TIER_STYLE[piece.tier], end="", markup=False)
            else:
                click.echo(piece.text, nl=False)
    except KeyboardInterrupt:
        return True
    finally:
        if show:
            click.echo()
    return False


def _report(stream: Stream, *, as_json: bool, quiet: bool) -> None:
    from viasd_edge.render import summary

    generation = stream.result()
    if as_json:
        print_json(generation.to_dict())
    elif not quiet:
        click.echo(summary(generation), err=True)
