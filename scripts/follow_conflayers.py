"""Let ConfLayers follow a stream of prompts that turns from code to summaries to translation.

    python scripts/follow_conflayers.py --trace follow.jsonl --plot follow.png

One engine drafts for itself, always, under the mask that the search has found so far. Writes the trace, plots which
layers were skipped and how many drafted tokens stood, and prints what a class gains: its first prompt again under the
mask that the class began with and under the best it found, both frozen, by turns with plain decoding. Last, what
reading the confidences adds to a full pass: no other pass is read.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viasd_edge.costs import RunnerMeter
from viasd_edge.curves import Timer, by_turns
from viasd_edge.engine import Engine
from viasd_edge.generation import Generation
from viasd_edge.limits import ConfidenceName
from viasd_edge.mask import LayerMask
from viasd_edge.prompts import embedded
from viasd_edge.runner import Runner
from viasd_edge.search.online import OnlineSearch, Schedule
from viasd_edge.strategies import Round
from viasd_edge.trace import tracing

CLASSES = ("code", "summary", "translation")
ALWAYS: dict[str, Any] = {"mode": "exact", "policy": "fixed", "drafters": ("layerskip",), "draft_max": 8}
SMOOTH = 8  # rounds over which the plot averages acceptance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--trace", type=Path, default=Path("follow.jsonl"))
    parser.add_argument("--plot", type=Path, default=Path("follow.png"))
    parser.add_argument("--prompts", type=int, default=2, help="of each class")
    parser.add_argument("-n", "--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--repeats", type=int, default=5, help="answers of each kind that are compared")
    parser.add_argument("--interval", type=int, default=8, help="rounds that a set is measured for")
    parser.add_argument("--skip-ratio", type=float, default=Schedule.skip_ratio)
    arguments = parser.parse_args()
    schedule = Schedule(interval=arguments.interval, skip_ratio=arguments.skip_ratio)
    with Engine.open(arguments.model, mode="plain") as plain:
        plain.generate("Warm up.", max_tokens=4)
        n_layer = plain.target.model.n_layer
        engine = Engine(plain.target, search=OnlineSearch(n_layer, schedule=schedule), **ALWAYS)
        followed: dict[str, list[Round]] = {}
        with tracing(arguments.trace, engine.parts) as on_round:
            for group in CLASSES:
                texts = [prompt.text for prompt in embedded() if prompt.group == group][: arguments.prompts]
                followed[group] = follow(engine, texts, arguments.tokens, on_round)
                masks = {"began with": followed[group][0].draft.mask, "best found": best(followed[group], schedule)}
                compare(plain, masks, texts[0], arguments.tokens, arguments.repeats)
        probe_cost(plain.target, (1, 1 + ALWAYS["draft_max"]))
    plot(followed, n_layer, arguments.plot)


def follow(
    engine: Engine, texts: Sequence[str], n_tokens: int, on_round: Callable[[Round], None] | None
) -> list[Round]:
    """Answer a class's prompts under the search; its rounds."""
    rounds: list[Round] = []

    def watch(round_: Round) -> None:
        rounds.append(round_)
        if on_round:
            on_round(round_)

    for text in texts:
        answer = engine.generate(text, max_tokens=n_tokens, on_round=watch)
        found = answer.search or {}
        full = sum(tier["ms"] for tier in answer.tiers if tier["name"] == "full") / answer.timings["predicted_ms"]
        print(
            f"{speed(answer)}, {found['iterations']} searches, {found['restarts']} restarts, {found['share']:.3%} of "
            f"the time in them, {full:.0%} in full passes: {text[:40]!r}"
        )
    return rounds


def best(rounds: Sequence[Round], schedule: Schedule) -> LayerMask | None:
    """The mask under which most tokens stood a round, of those that were measured for an interval."""
    accepted: dict[LayerMask | None, list[int]] = {}
    for round_ in rounds:
        accepted.setdefault(round_.draft.mask, []).append(round_.accepted)
    means = {mask: np.mean(counts) for mask, counts in accepted.items() if len(counts) >= schedule.interval}
    return max(means, key=means.__getitem__, default=None)


def compare(plain: Engine, masks: dict[str, LayerMask | None], text: str, n_tokens: int, repeats: int) -> None:
    """Answer `text` by plain decoding and under each mask without a search, by turns; medians of `repeats`."""
    plain.target.set_probe(None)
    ways = {"plain": plain, **{name: Engine(plain.target, mask=mask, **ALWAYS) for name, mask in masks.items() if mask}}
    answers: dict[str, list[Generation]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, engine in ways.items():
            answers[name].append(engine.generate(text, max_tokens=n_tokens))
    seconds = {
        name: statistics.median(each.timings["predicted_ms"] for each in found) for name, found in answers.items()
    }
    for name, found in answers.items():
        same = "same tokens" if found[0].token_ids == answers["plain"][0].token_ids else "OTHER TOKENS"
        faster = seconds["plain"] / seconds[name]
        print(f"  {name}: {faster:.2f}x of plain{stood(found[0])}, {same}: {ways[name].mask}", flush=True)


def probe_cost(runner: Runner, widths: Sequence[int], repeats: int = 40) -> None:
    """Print what reading the confidences adds to a full pass: the least of three passes, with and without by turns."""
    meter = RunnerMeter(runner)

    def timer(kind: ConfidenceName | None) -> Timer:
        def measure(n: int) -> float:
            runner.set_probe(kind)
            meter.measure(n)  # builds the graph
            return min(meter.measure(n) for _ in range(3))

        return measure

    pairs = zip(widths, *by_turns([timer(None), timer("hidden")], widths, repeats), strict=True)
    runner.set_probe(None)
    for n, without, probed in pairs:
        added = [more / less - 1 for less, more in zip(without, probed, strict=True)]
        error = statistics.stdev(added) / len(added) ** 0.5
        print(f"reading confidences in a full pass of {n}: {statistics.mean(added):+.2%}, standard error {error:.2%}")


def speed(answer: Generation) -> str:
    """Of its own run, and how much of what was drafted stood."""
    return f"{answer.timings['predicted_per_second']:.2f} tokens/s{stood(answer)}"


def stood(answer: Generation) -> str:
    """How much of what was drafted and tested stood."""
    drafted = answer.drafters.get("layerskip")
    return f", {drafted['accepted'] / max(drafted['tested'], 1):.1%} of tested drafts stood" if drafted else ""


def plot(followed: dict[str, list[Round]], n_layer: int, path: Path) -> None:
    """Layers skipped by token, and acceptance below; a line where a class begins."""
    from matplotlib.figure import Figure

    rounds = [round_ for group in followed.values() for round_ in group]
    widths = [len(round_.emitted) for round_ in rounds]
    skipped = np.zeros((n_layer, len(rounds)), bool)
    for i, round_ in enumerate(rounds):
        skipped[list(round_.draft.mask.attention if round_.draft.mask else ()), i] = True
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.imshow(
        np.repeat(skipped, widths, axis=1),
        aspect="auto",
        cmap="Greys",
        interpolation="nearest",
        origin="lower",
        extent=(0, sum(widths), -0.5, n_layer - 0.5),
    )
    upper.set(ylabel="layer (black: skipped)")
    kernel = np.ones(SMOOTH)
    stood = np.convolve([round_.accepted for round_ in rounds], kernel)[: len(rounds)]
    drafted = np.convolve([len(round_.draft.guesses) for round_ in rounds], kernel)[: len(rounds)]
    lower.plot(np.cumsum(widths), stood / np.maximum(drafted, 1))
    lower.set(xlabel="token", ylabel=f"drafts that stood,\n{SMOOTH} rounds", ylim=(0, 1.02))
    begins = 0
    for group, its_rounds in followed.items():
        for axes in (upper, lower):
            axes.axvline(begins, color="tab:red")
        upper.text(begins + 2, n_layer - 1, group, color="tab:red", va="top")
        begins += sum(len(round_.emitted) for round_ in its_rounds)
    figure.savefig(path)


if __name__ == "__main__":
    main()
