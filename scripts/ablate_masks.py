"""Masks of every search at several shares of skipped cost, judged on text of other classes than they were sought on.

    .venv/bin/python scripts/ablate_masks.py --prompts FILE.jsonl [--prompts FILE.jsonl] [--steps 50] [--out FILE]

Searches see answers to our own prompts of the --sought classes; masks are judged on answers to the prompts of the files
that are of other classes. Beside them stand the hand-picked mask and an independent intermediate model, the pair's
drafter as it is in its file. Rows and scores are written as they come: the same command goes on where it was. Prints a
Markdown table; `speed` is what tiered mode is predicted to reach, in our plain decoding's; it and `coverage` are at 5 %
error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from viasd_edge.curves import Curve, Curves, curve
from viasd_edge.engine import Engine, open_draft
from viasd_edge.evaluation import Teacher, View, mean_confidences
from viasd_edge.folders import cache_dir
from viasd_edge.mask import LayerMask
from viasd_edge.names import hand_picked, named
from viasd_edge.prompts import Prompt, embedded, evenly, read_prompts
from viasd_edge.registry import resolve
from viasd_edge.runner import Runner
from viasd_edge.samples import answers
from viasd_edge.search import METHODS, make
from viasd_edge.search.objective import Journal, Objective, measures, predicted, share_of
from viasd_edge.search.prices import Prices

SHARES = (0.15, 0.25, 0.35, 0.45)
TOKENS = 48  # of an answer
ERROR = 0.05
COLUMNS = ("method", "target", "share", "t8", "dimr_sought", "dimr", "kl", "agreement", "coverage", "speed", "mask")

Row = dict[str, Any]


class Ablation:
    """Searches on one text, judged on another."""

    def __init__(self, engine: Engine, sought: Sequence[Prompt], others: Sequence[Prompt], path: Path) -> None:
        self._engine = engine
        self._prices = Prices.measure(engine.target, engine.draft)
        self._space = self._prices.space(engine.target.model.n_layer, blocks=True)
        journal = Journal.load(path) or Journal(path, {})
        samples = answers(engine, sought, TOKENS)
        self._confidences = mean_confidences(engine.target, samples)
        teacher = Teacher(engine.target, engine.draft, samples)
        self._objective = Objective(teacher, self._space, self._prices, ERROR, journal)
        self._judge = Teacher(engine.target, engine.draft, answers(engine, others, TOKENS))

    def searched(self, method: str, share: float, steps: int) -> Row | None:
        """The best mask that a search found by its own loss, judged; single blocks do not count as steps."""
        search = make(method, self._space, share, confidences=lambda: self._confidences)
        best: tuple[float, LayerMask] | None = None
        while steps and (units := search.ask()) is not None:
            scores = self._objective.score(self._space.mask(units))
            search.tell(units, scores)
            steps -= len(units) > 1
            if self._space.fills(units, share) and (best is None or search.loss(scores) < best[0]):
                best = (search.loss(scores), self._space.mask(units))
        return self.masked(method, best[1], target=share) if best else None

    def masked(self, method: str, mask: LayerMask, **more: Any) -> Row:
        slim = curve(self._engine.target, mask)
        dimr = self._objective.score(mask).dimr
        share = round(share_of(mask, self._space), 4)
        row = {"method": method, "mask": str(mask), "share": share, "dimr_sought": dimr, **more}
        return {**row, **self._judged(self._judge.views(mask), slim)}

    def independent(self, model: Runner) -> Row:
        """Another model in the slim verifier's place."""
        row = {"method": "independent", "mask": model.model.path.name}
        return {**row, **self._judged(self._judge.views_of(model), curve(model))}

    def _judged(self, views: list[list[View]], slim: Curve) -> Row:
        full = self._prices.full
        samples = [list(chain.from_iterable(view.positions for view in sample)) for sample in views]
        rate = predicted(samples, Curves(self._prices.draft, slim, full), ERROR, keep_kv=False)
        scores = measures(list(chain.from_iterable(views)), ERROR)
        return {**scores, "t8": round(slim.at(8) / full.at(8), 4), "speed": round(rate * full.at(1), 4)}


def rows(arguments: argparse.Namespace, done: set[tuple[str, float | None]]) -> Iterator[Row]:
    """A row for every search and share, and for what they are compared with, but for what is done."""
    sought = [prompt for prompt in embedded() if prompt.group in arguments.sought]
    others = [p for file in arguments.prompts for p in read_prompts(file) if p.group not in arguments.sought]
    if not sought or not others:
        raise SystemExit(f"no prompts of the classes {', '.join(arguments.sought)}, or none of another to judge on")
    with Engine.open(arguments.model, mode="exact") as engine:
        target = engine.target.model
        name = f"ablation-{target.fingerprint}-{'-'.join(arguments.sought)}-{arguments.samples}.jsonl"
        texts = (evenly(prompts, arguments.samples) for prompts in (sought, others))
        ablation = Ablation(engine, *texts, cache_dir("searches") / name)
        known = hand_picked(target.fingerprint)
        if known and (known.method, None) not in done:
            yield {**ablation.masked("hand-picked", known), "method": known.method}
        draft_name = named(arguments.model, None).draft
        if draft_name and ("independent", None) not in done:
            with open_draft(resolve(draft_name), target, None) as weights, Runner(weights, n_ctx=1024) as model:
                yield ablation.independent(model)
        for share in SHARES:
            for method in METHODS:
                if (method, share) not in done and (row := ablation.searched(method, share, arguments.steps)):
                    yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="a pair (default: the default pair)")
    parser.add_argument("--prompts", type=Path, action="append", required=True, help="development prompts; repeatable")
    parser.add_argument("--sought", nargs="+", default=["code", "maths"], help="classes to search on")
    parser.add_argument("--steps", type=int, default=50, help="masks a search may score beyond single blocks")
    parser.add_argument("--samples", type=int, default=12, help="answers to search on, and to judge on")
    parser.add_argument("--out", type=Path, default=Path("ablation.jsonl"))
    arguments = parser.parse_args()
    found = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = {(row["method"], row.get("target")) for row in found}
    with arguments.out.open("a", encoding="utf-8") as out:
        for row in rows(arguments, done):
            print(json.dumps(row), file=out, flush=True)
            print(row["method"], row.get("target", ""), row["mask"], file=sys.stderr)
            found.append(row)
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for row in found:
        cells = [row.get(column, "") for column in COLUMNS]
        print("| " + " | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")


if __name__ == "__main__":
    main()
