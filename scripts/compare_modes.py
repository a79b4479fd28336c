"""Run plain, exact and tiered over prompts; print identity, passes, rejection, loss and tokens/s per mode.

    .venv/bin/python scripts/compare_modes.py FILE.jsonl [FILE.jsonl ...] --per-file 4 --max-tokens 96 [--json]

A FILE is HumanEval (`prompt`), GSM8K (`question`) or Spec-Bench (`category`, `turns`) in JSON lines; prompts are
spread evenly over it. Speeds are of one interleaved run, each prompt in all modes; for identity the first
difference is shown with the gap between the full model's two best logits there: a near-tie rounds either way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from viasd_edge.engine import Engine, Generation
from viasd_edge.limits import DRAFT_MAX
from viasd_edge.memory import peak_rss
from viasd_edge.prompts import Prompt, read_prompts
from viasd_edge.render import console, number, table
from viasd_edge.strategies import RatioGate
from viasd_edge.strategies.common import matching_prefix


def first_difference(engine: Engine, one: Generation, other: Generation) -> dict[str, Any] | None:
    """Where two generations of one prompt part, and how near the full model's two best logits are there."""
    at = matching_prefix(one.token_ids, other.token_ids)
    if at == min(len(one.token_ids), len(other.token_ids)):
        return None
    target = engine.target
    target.rewind(0)
    target.decode([*one.prompt_ids, *one.token_ids[:at]][:-1], rows=0)
    logits = target.decode([[*one.prompt_ids, *one.token_ids[:at]][-1]])[0]
    best = np.partition(logits, -2)[-2:]
    return {"at": at, "of": len(one.token_ids), "top2_gap": round(float(best[1] - best[0]), 4)}


def run(engines: dict[str, Engine], prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """One prompt in every mode."""
    generations = {mode: engine.generate(prompt.text, max_tokens=max_tokens) for mode, engine in engines.items()}
    plain = generations["plain"]
    row: dict[str, Any] = {"group": prompt.group, "prompt": prompt.text[:60]}
    for mode, generation in generations.items():
        row[mode] = {
            "tokens": len(generation.token_ids),
            "tokens_per_s": generation.timings["predicted_per_second"],
            "full_passes": generation.full_passes,
            "rejection": generation.rejection,
            "tiers": generation.tiers,
            "identical": generation.token_ids == plain.token_ids,
            "first_difference": first_difference(engines["plain"], plain, generation),
            "loss": len(engines["plain"].disagreements(generation)) if not generation.lossless else None,
        }
        print(".", end="", file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--per-file", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--draft-max", type=int, default=DRAFT_MAX)
    parser.add_argument("--accept", type=float, default=RatioGate.accept)
    parser.add_argument("--escalate", type=float, default=RatioGate.escalate)
    parser.add_argument("--catch-up", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    prompts = [prompt for path in arguments.files for prompt in read_prompts(path, arguments.per_file)]
    gate = RatioGate(arguments.accept, arguments.escalate)
    options = {"gate": gate, "draft_max": arguments.draft_max, "keep_kv": not arguments.catch_up}
    with Engine.open(arguments.model, mode="tiered", **options) as tiered:
        target, draft = tiered.target, tiered.draft
        engines = {
            "plain": Engine(target, mode="plain"),
            "exact": Engine(target, mode="exact", draft=draft, draft_max=arguments.draft_max),
            "tiered": tiered,
        }
        engines["plain"].generate("Warm up.", max_tokens=8)
        rows = [run(engines, prompt, arguments.max_tokens) for prompt in prompts]
    print(file=sys.stderr)
    if arguments.json:
        print(json.dumps({"rows": rows, "peak_rss_bytes": peak_rss()}, indent=1))
    else:
        report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """Tables per mode and per class."""
    out = console()
    lines = []
    for mode in ("plain", "exact", "tiered"):
        cells = [row[mode] for row in rows]
        tokens = sum(cell["tokens"] for cell in cells)
        passes = sum(cell["full_passes"] for cell in cells)
        rejection = [sum(cell["rejection"][key] or 0 for cell in cells) for key in ("changed", "escalated", "gated")]
        loss = sum(cell["loss"] or 0 for cell in cells)
        identical = sum(cell["identical"] for cell in cells)
        lossy = mode == "tiered"
        lines.append(
            [
                mode,
                number(_median_ratio(rows, mode), 2),
                passes,
                number(tokens / passes if passes else None, 2),
                "/".join(map(str, rejection)) if lossy else "-",
                f"{identical}/{len(rows)}",
                f"{loss / tokens:.1%}" if lossy else "0",
            ]
        )
    columns = ("mode", "median speed / plain", "full passes", "tokens per pass")
    columns += ("changed/escalated/gated", "identical to plain", "loss")
    out.print(table(f"{len(rows)} prompts", columns, lines))
    for group in dict.fromkeys(row["group"] for row in rows):
        cells = [row for row in rows if row["group"] == group]
        speeds = [f"{mode} {number(_median_ratio(cells, mode), 2)}" for mode in ("exact", "tiered")]
        out.print(f"{group} ({len(cells)}): speed / plain: {', '.join(speeds)}")
    for row in rows:
        if difference := row["exact"]["first_difference"]:
            out.print(f"exact differs from plain: {row['prompt']!r}: {difference}")
    out.print(f"peak RSS {peak_rss() / 2**20:.0f} MiB")


def _median_ratio(rows: list[dict[str, Any]], mode: str) -> float:
    return statistics.median(row[mode]["tokens_per_s"] / row["plain"]["tokens_per_s"] for row in rows)


if __name__ == "__main__":
    main()
