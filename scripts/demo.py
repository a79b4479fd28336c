"""Set everything up and show the three tiers at work on a coding prompt.

    python3 scripts/demo.py ["another prompt"]

Answers with the Qwen2.5-Coder pair three ways - plain, speculative (drafter and full model), tiered (drafter, slim
verifier, full model) - streams the last one coloured by tier, and prints what each did.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import bootstrap

if TYPE_CHECKING:
    from viasd_edge import Engine, Generation

PROMPT = "Write a Python function that checks whether a string is a palindrome, ignoring case and punctuation."
MAX_TOKENS = 160
_KINDS = (("plain", "plain"), ("exact", "speculative"), ("tiered", "three tiers"))


def main() -> None:
    bootstrap.ensure(["qwen2.5-coder"])
    prompt = sys.argv[1] if len(sys.argv) > 1 else PROMPT

    from viasd_edge import Engine
    from viasd_edge.render import console

    out = console()
    with Engine.open(mode="tiered") as tiered:
        target, draft = tiered.target, tiered.draft
        engines = {
            "plain": Engine(target, mode="plain"),
            "exact": Engine(target, mode="exact", draft=draft),
            "tiered": tiered,
        }
        engines["plain"].generate("Warm up.", max_tokens=4)
        generations = {}
        for mode, kind in _KINDS:
            out.rule(kind, align="left")
            generations[mode] = show(engines[mode], prompt)
        loss = len(tiered.disagreements(generations["tiered"]))
    report(generations, loss)


def show(engine: Engine, prompt: str) -> Generation:
    """Stream an answer, coloured by tier where there are three."""
    from viasd_edge.render import TIER_STYLE, console, tier_legend

    out = console()
    if engine.mode == "tiered":
        tier_legend(out)
    stream = engine.stream(prompt, max_tokens=MAX_TOKENS)
    for piece in stream:
        style = TIER_STYLE[piece.tier] if engine.mode == "tiered" else None
        out.print(piece.text, style=style, end="", markup=False)
    out.print()
    return stream.result()


def report(generations: dict[str, Generation], loss: int) -> None:
    """One row a way of decoding; tiered says what it lost."""
    from viasd_edge.render import console, number, table

    rows = []
    plain = generations["plain"]
    for mode, kind in _KINDS:
        generation = generations[mode]
        tiers = {tier["name"]: tier for tier in generation.tiers}
        draft, slim = tiers.get("draft"), tiers.get("slim")
        counts = generation.rejection
        rows.append(
            [
                kind,
                number(generation.timings["predicted_per_second"]),
                generation.full_passes,
                number(generation.tokens_per_full_pass, 2),
                f"{draft['drafted']}/{draft['tested']}/{draft['accepted']}" if draft else "-",
                slim["accepted"] if slim else "-",
                tiers["full"]["accepted"],
                f"{counts['changed']}/{counts['gated']}" if slim else "-",
                f"{counts['escalated']}/{counts['gated']}" if slim else "-",
                "yes" if generation.token_ids == plain.token_ids else "no",
                f"{loss}/{len(generation.token_ids)}" if slim else "0",
            ]
        )
    columns = ("", "tokens/s", "full passes", "tokens/pass", "drafted/tested/accepted", "by slim", "by full")
    columns += ("changed/gated", "escalated/gated", "same as plain", "loss*")
    out = console()
    out.print(table("", columns, rows))
    out.print("* tokens that the full model, in the same state, would have chosen otherwise")


if __name__ == "__main__":
    main()
