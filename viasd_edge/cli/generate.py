"""`viasd-edge generate`: answer one prompt."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from viasd_edge.cli.common import json_option, print_json, pull_progress, reports_errors
from viasd_edge.errors import PromptError
from viasd_edge.limits import DRAFT_MAX, DRAFTERS, LOSSLESS, MAX_DRAFT, MODES, POLICIES, Mode

if TYPE_CHECKING:
    from viasd_edge.engine import Engine
    from viasd_edge.generation import Stream
    from viasd_edge.strategies import Gate

INTERRUPTED = 128 + signal.SIGINT
_SAMPLING = (
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "repeat_last_n",
    "seed",
)


def _gate(_context: click.Context, _option: click.Parameter, text: str | None) -> Gate | None:
    """A gate from its text form."""
    from viasd_edge.strategies import parse_gate

    try:
        return parse_gate(text) if text else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("prompt", required=False)
@click.option("-m", "--model", help="Pair, model name, .gguf path, or Hugging Face repo:file. Default: qwen2.5-coder.")
@click.option("-md", "--draft-model", help="The drafter, named like --model. Default: the pair's.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="plain: the full model alone. exact: drafts, the same output. tiered: drafter and slim verifier, LOSSY. "
    "cascade: n-gram drafts seen through by the draft model first, the same output. token-v3, bild, fly: the LOSSY "
    "rules of speculative cascades, BiLD and FLy, to compare with. Default: exact.",
)
@click.option("--self", "self_speculation", is_flag=True, help="No draft model: the model drafts for itself.")
@click.option(
    "--drafter",
    "drafters",
    type=click.Choice(DRAFTERS),
    multiple=True,
    help="Who may draft; may be given more than once. Default: all that the models and the mask allow.",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="auto",
    show_default=True,
    help="auto: draft only what pays, by measured costs. fixed: always draft, until confidence or --draft-max ends it.",
)
@click.option(
    "--draft-quant",
    type=click.Choice(["q4_0", "auto", "none"]),
    default="auto",
    show_default=True,
    help="Run a copy of the drafter in this quantisation, made once and cached: faster, a little less often right. "
    "auto: q4_0 if that is smaller.",
)
@click.option(
    "--mask",
    help='Layers the slim verifier skips: a mask file, a mask\'s name, or "attn:4-7 ffn:4-7". Default, where the mode '
    "needs one: your newest mask of the model, else the pair's, see `masks list`.",
)
@click.option(
    "--draft-max",
    type=click.IntRange(1, MAX_DRAFT),
    default=DRAFT_MAX,
    show_default=True,
    help="Tokens a draft may have.",
)
@click.option(
    "--gate",
    callback=_gate,
    help="tiered: how the slim verifier judges, with its thresholds: ratio, nested, confident, chow, diff, opt, "
    "token-v1, token-v2, token-v3. Default: ratio:accept=0.6,escalate=0.3.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of tokens that may differ from the full model's choice: 0 is exact mode, above it tiered mode with the "
    "gate that `viasd-edge calibrate` found for it.",
)
@click.option(
    "--keep-kv/--catch-up",
    default=None,
    help="tiered: keep the slim verifier's KV, or let the full model rewrite it. Default: keep, or as calibrated.",
)
@click.option("--temp", type=click.FloatRange(0), default=0.0, show_default=True, help="Temperature; 0 is greedy.")
@click.option("--top-k", type=click.IntRange(0), default=40, show_default=True, help="0: off.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95, show_default=True, help="1: off.")
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="0: off.")
@click.option(
    "--repeat-penalty",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Divides the logits of recent tokens; 1: off.",
)
@click.option("--presence-penalty", type=float, default=0.0, show_default=True, help="Taken off recent tokens' logits.")
@click.option(
    "--frequency-penalty", type=float, default=0.0, show_default=True, help="Taken off for every recent occurrence."
)
@click.option(
    "--repeat-last-n", type=click.IntRange(0), default=64, show_default=True, help="Tokens penalties look at."
)
@click.option(
    "--seed", type=click.IntRange(0), help="Same seed, same text, in plain and in exact mode. Default: drawn."
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
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), help="Write every round into this JSONL file."
)
@click.option("--explain", is_flag=True, help="Print what the policy expects of every way to go on, and what it chose.")
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
    mode = _mode(options)

    from viasd_edge.engine import Engine
    from viasd_edge.strategies import Sampling
    from viasd_edge.trace import tracing

    sampling = Sampling(
        temperature=options["temp"],
        **{name: options[name] for name in _SAMPLING},
    )
    if not sampling.is_greedy and mode not in (None, *LOSSLESS):
        raise click.UsageError(f"--mode {mode} is greedy; use exact mode for a temperature or penalties")
    with pull_progress(quiet=quiet) as progress:
        engine = Engine.open(
            options["model"],
            draft_model=options["draft_model"],
            mode=mode,
            self_speculation=options["self_speculation"],
            mask=options["mask"],
            tolerance=options["tolerance"],
            draft_quant=None if options["draft_quant"] == "none" else options["draft_quant"],
            n_ctx=options["ctx_size"],
            n_threads=options["threads"],
            progress=progress,
            draft_max=options["draft_max"],
            drafters=options["drafters"] or None,
            policy=options["policy"],
            **{name: options[name] for name in ("gate", "keep_kv") if options[name] is not None},
        )
    with engine, tracing(options["trace"], engine.parts) as on_round, _one_interrupt():
        _notice(engine, options, quiet=quiet)
        stream = engine.stream(
            text,
            max_tokens=options["max_tokens"],
            stop=options["stop"],
            system=options["system"],
            raw=options["raw"],
            sampling=sampling,
            on_round=on_round,
        )
        interrupted = _print_stream(stream, show=not as_json, color=color, tiers=engine.mode == "tiered")
        _report(stream, as_json=as_json, quiet=quiet, explain=options["explain"])
    if interrupted:
        sys.exit(INTERRUPTED)


def _mode(options: dict[str, Any]) -> Mode | None:
    """The mode asked for, by name or by --tolerance."""
    tolerance: float | None = options["tolerance"]
    mode: Mode | None = options["mode"]
    if tolerance is None:
        return mode
    wanted: Mode = "tiered" if tolerance > 0 else "exact"
    if mode not in (None, wanted):
        raise click.UsageError(f"--tolerance {tolerance:g} is {wanted} mode, not --mode {mode}")
    return wanted


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


def _notice(engine: Engine, options: dict[str, Any], *, quiet: bool) -> None:
    if quiet or (engine.mode == "plain" and options["mode"] == "plain"):
        return
    if not engine.parts.costs_known:
        click.echo("measuring what passes cost on this machine, once: some seconds", err=True)
    if engine.mode == "plain":
        click.echo("the model's cache cannot drop tokens: plain decoding", err=True)
    elif engine.draft is None and engine.mask is None:
        click.echo("no draft model and no mask: drafts by n-gram lookup only (-md, or --self --mask)", err=True)


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C through and ignore the rest: they must not cost the partial answer and its report.

    After a first one they stay ignored: the process is about to leave, with the exit code of an interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)


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


def _report(stream: Stream, *, as_json: bool, quiet: bool, explain: bool) -> None:
    from viasd_edge.render import console, policy_table, summary

    generation = stream.result()
    if as_json:
        print_json(generation.to_dict())
    elif not quiet:
        click.echo(summary(generation), err=True)
    if explain and generation.policy is not None:
        console(stderr=True).print(policy_table(generation.policy))
