"""Every strategy once, by the command, on real weights; and a run that was cut is gone on with."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from viasd_edge.cli import cli
from viasd_edge.limits import PEER, STOCK
from viasd_edge.results import COLUMNS

pytestmark = pytest.mark.model

LOSSLESS = (STOCK, "plain", "exact", "ngram", "cascade")
LOSSY = ("tiered", "bild", "fly", "token-v3")


def test_every_strategy_and_a_run_that_was_cut(pulled, peer_library, tmp_path):
    model, rows, prompts = pulled["smollm2-135m"], tmp_path / "rows.jsonl", tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"question": "What is 7 times 8?"}\n{"category": "chat", "turns": ["Say one two three, twice."]}\n'
    )
    command = ["bench", "-m", model, "-md", model, "-n", 16, "-r", 1, "-c", 256, "--prompts", prompts, "--json"]
    command += ["--mask", "layers:12", "--stock", peer_library, "--peer", "--rows", rows]
    command += [part for name in (*LOSSLESS, *LOSSY) for part in ("--strategy", name)]

    def run():
        result = CliRunner().invoke(cli, [str(part) for part in command], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout, parse_constant=pytest.fail)

    answer = run()
    summary = {found["strategy"]: found for found in answer["summary"] if found["class"] == "all"}
    assert list(summary) == [*LOSSLESS, *LOSSY, PEER]
    for name, found in summary.items():
        assert set(COLUMNS) < set(found)
        assert found["prompts"] == 2
        assert found["tokens_per_s"] > 0
        assert found["ratio_to_stock"] > 0
        assert (found["peak_rss_bytes"] is None) == (name == PEER)
    for name in LOSSLESS[1:]:
        assert (summary[name]["identical"], summary[name]["loss"]) == (2, 0.0)
    assert summary["plain"]["tokens_per_full_pass"] <= 1.0
    for name in ("bild", "fly"):  # it drafts for itself
        assert summary[name]["acceptance"] > 0
        assert summary[name]["acceptance_by_position"][0] > 0
    assert summary[PEER]["identical"] is None
    lines = rows.read_text().splitlines()
    assert len(lines) == 1 + 2 * len(summary)
    rows.write_text("\n".join(lines[:8]) + "\n" + lines[8][:40])
    assert run()["rows"][:7] == answer["rows"][:7]
    again = [json.loads(line) for line in rows.read_text().splitlines()[1:]]
    assert [(row["strategy"], row["prompt"]) for row in again] == [
        (row["strategy"], row["prompt"]) for row in answer["rows"]
    ]
    exact = [[row["token_ids"] for row in found if row["strategy"] in LOSSLESS] for found in (again, answer["rows"])]
    assert exact[0] == exact[1]
