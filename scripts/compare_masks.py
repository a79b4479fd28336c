"""Tiered mode under several masks, by turns, each with the gate calibrated for it; beside plain decoding.

    .venv/bin/python scripts/compare_masks.py MASK MASK... --prompts FILE.jsonl [--tolerance 0.01] [--policy fixed]

With --policy fixed the slim verifier judges every draft, which is what masks differ in; auto lets the full model do so
where that is faster. Prints JSON: per mask tokens per second (median of the prompts' ratios to plain decoding), tokens
per full pass, and the loss: the share of tokens that the full model would have chosen otherwise in the same state.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from viasd_edge.engine import Engine
from viasd_edge.limits import POLICIES
from viasd_edge.modes import calibrated
from viasd_edge.names import load_mask
from viasd_edge.prompts import evenly, read_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masks", nargs="+", help="names or files, calibrated for the pair's drafter")
    parser.add_argument("-m", "--model", help="a pair (default: the default pair)")
    parser.add_argument("--prompts", type=Path, action="append", required=True, help="prompts; repeatable")
    parser.add_argument("--per-file", type=int, default=3)
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--policy", choices=POLICIES, default="fixed")
    arguments = parser.parse_args()
    prompts = [prompt for file in arguments.prompts for prompt in evenly(read_prompts(file), arguments.per_file)]
    with Engine.open(arguments.model, mode="exact") as exact:
        assert exact.draft is not None  # noqa: S101  # a pair has one
        engines = {"plain": Engine(exact.target, mode="plain")}
        for name in arguments.masks:
            mask = load_mask(name)
            gate = calibrated(mask, exact.draft, arguments.tolerance)
            engines[name] = Engine(
                exact.target, mode="tiered", draft=exact.draft, mask=mask, policy=arguments.policy, **gate
            )
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
        for engine in engines.values():  # warm up
            engine.generate(prompts[0].text, max_tokens=8)
        for prompt in prompts:
            for name, engine in engines.items():
                answer = engine.generate(prompt.text, max_tokens=arguments.tokens)
                row = {"rate": answer.timings["predicted_per_second"], "n": len(answer.token_ids)}
                row |= {"full_passes": answer.full_passes, "wrong": len(engine.disagreements(answer))}
                runs[name].append(row)
    print(json.dumps({name: summary(rows, runs["plain"]) for name, rows in runs.items()}, indent=2))


def summary(rows: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, float]:
    n = sum(row["n"] for row in rows)
    ratios = [row["rate"] / other["rate"] for row, other in zip(rows, plain, strict=True)]
    return {
        "ratio_to_plain": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "tokens_per_full_pass": round(n / max(sum(row["full_passes"] for row in rows), 1), 2),
        "loss": round(sum(row["wrong"] for row in rows) / n, 4),
        "tokens": n,
    }


if __name__ == "__main__":
    main()
