"""Bench runs of strategies that cost nothing: order, sums, what is kept on disk, what the command prints."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from viasd_edge import results
from viasd_edge.bench import Bench, Row, Settings
from viasd_edge.cli import cli
from viasd_edge.closing import Closing
from viasd_edge.errors import EdgeError
from viasd_edge.prompts import Prompt, embedded

PROMPTS = [Prompt("code", "1", "a"), Prompt("code", "2", "b"), Prompt("chat", "3", "c")]
SETTINGS = Settings(None, None, ("stock", "plain", "exact"), ("a", "b", "c"), 8, 2, 256)
DOCUMENTED = {
    *("class", "strategy", "tokens_per_s", "ratio_to_stock", "tokens_per_full_pass", "acceptance"),
    *("rejection_changed", "rejection_escalated", "identical", "prompts"),
}


def row(strategy="plain", prompt="a", repeat=0, speed=10.0, **fields):
    group = next(item.group for item in PROMPTS if item.name == prompt)
    values = {"tokens": 8, "tokens_per_s": speed, "token_ids": [1, 2], "full_passes": 8, **fields}
    return Row(strategy, group, prompt, repeat, **values)


def entry(rows, strategy, group=results.ALL):
    [found] = [e for e in results.summarise(rows) if (e["strategy"], e["class"]) == (strategy, group)]
    return found


class FakeBench(Bench):
    """A bench whose strategies note when they ran; "exact" is twice as fast as "plain"."""

    def __init__(self, settings, **_options):
        Closing.__init__(self)
        self.settings = settings
        self.calls = []
        self._runs = {name: self._strategy(name) for name in settings.strategies}

    def _strategy(self, name):
        def run(prompt, n):
            self.calls.append((name, prompt.name, n))
            fields = asdict(row(name, speed=20.0 if name == "exact" else 10.0, peak_rss_bytes=1 << 30))
            return {key: value for key, value in fields.items() if key not in {"strategy", "group", "prompt", "repeat"}}

        return run


def test_strategies_take_turns_after_a_warm_up_and_each_comes_first():
    bench = FakeBench(SETTINGS)
    rows = list(bench.rows(PROMPTS))
    assert bench.calls[:3] == [("stock", "a", 8), ("plain", "a", 8), ("exact", "a", 8)]
    order = [(row.prompt, row.repeat, row.strategy) for row in rows]
    assert len(order) == len(set(order)) == 18
    turns = [order[i : i + 3] for i in range(0, 18, 3)]
    for turn in turns:
        assert {name for _, _, name in turn} == set(SETTINGS.strategies)
        assert len({(prompt, repeat) for prompt, repeat, _ in turn}) == 1
    assert [turn[0][2] for turn in turns] == ["stock", "plain", "exact", "plain", "exact", "stock"]


def test_what_is_done_is_not_done_again():
    bench = FakeBench(SETTINGS)
    done = {row.key for row in list(bench.rows(PROMPTS))[:-1]}
    bench.calls.clear()
    [last] = bench.rows(PROMPTS, done)
    assert bench.calls == [(last.strategy, last.prompt, 8)] * 2  # one to warm up
    assert list(bench.rows(PROMPTS, done | {last.key})) == []


def test_a_speed_is_the_median_of_repeats_and_a_ratio_is_of_one_prompt():
    rows = [row("stock", "a", i, speed) for i, speed in enumerate((10.0, 11.0, 99.0))]
    rows += [row("stock", "b", i, 20.0) for i in range(3)]
    rows += [row("exact", "a", i, speed) for i, speed in enumerate((1.0, 22.0, 23.0))]
    rows += [row("exact", "b", i, 10.0) for i in range(3)]
    [stock, exact] = results.summarise(rows)  # one class: no sum over all
    assert (stock["class"], stock["tokens_per_s"], stock["ratio_to_stock"], stock["prompts"]) == ("code", 15.5, 1.0, 2)
    assert exact["tokens_per_s"] == 16.0
    assert exact["ratio_to_stock"] == pytest.approx((22 / 11 + 10 / 20) / 2)  # not 16 / 15.5
    assert exact["lowest_ratio_to_stock"] == 0.5
    assert exact["ratio_to_plain"] is None


def test_classes_and_all_of_them():
    rows = [row("plain", name, speed=speed) for name, speed in (("a", 10.0), ("b", 12.0), ("c", 30.0))]
    assert [(e["class"], e["tokens_per_s"], e["prompts"]) for e in results.summarise(rows)] == [
        ("code", 11.0, 2),
        ("chat", 30.0, 1),
        ("all", 12.0, 3),
    ]


def test_counts_are_summed_before_they_are_divided():
    counts = {"tested": 4, "accepted": 1, "full_passes": 2, "gated": 10, "changed": 1, "escalated": 3, "lost": 1}
    positions = {"tested_by_position": [3, 1], "accepted_by_position": [1, 0]}
    more = {"tested": 6, "accepted": 5, "full_passes": 6, "gated": 30, "changed": 5, "escalated": 1, "lost": 0}
    further = {"tested_by_position": [4, 1, 0], "accepted_by_position": [4, 1, 0]}
    rows = [row("tiered", "a", **counts, **positions), row("tiered", "c", **more, **further), row("plain", "c")]
    found = entry(rows, "tiered")
    assert (found["acceptance"], found["tokens_per_full_pass"]) == (0.6, 2.0)
    assert (found["rejection_changed"], found["rejection_escalated"]) == (0.15, 0.1)
    assert found["loss"] == pytest.approx(1 / 16, abs=1e-3)
    assert found["acceptance_by_position"] == [pytest.approx(5 / 7, abs=1e-3), 0.5, None]
    plain = entry(rows, "plain")
    assert (plain["acceptance"], plain["rejection_changed"], plain["loss"]) == (None, None, 0.0)
    assert plain["acceptance_by_position"] == []


def test_identity_is_with_plain_in_every_repeat():
    rows = [row("plain", name) for name in "ab"] + [row("stock", "a", token_ids=[9])]
    rows += [row("exact", "a"), row("exact", "b", 0), row("exact", "b", 1, token_ids=[1, 3])]
    rows += [row("stock-speculative", "a", token_ids=None)]
    assert [entry(rows, name, "code")["identical"] for name in ("plain", "exact", "stock", "stock-speculative")] == [
        2,
        1,
        0,
        None,
    ]
    without_plain = [row("stock", "a"), row("exact", "a")]
    assert entry(without_plain, "exact", "code")["identical"] == 1
    assert entry([row("exact", "a")], "exact", "code")["identical"] is None


def test_peak_memory_is_the_most_of_its_rows():
    rows = [row("exact", "a", peak_rss_bytes=5), row("exact", "b", peak_rss_bytes=7), row("stock-speculative", "a")]
    assert entry(rows, "exact", "code")["peak_rss_bytes"] == 7
    assert entry(rows, "stock-speculative", "code")["peak_rss_bytes"] is None


def test_rows_survive_and_a_cut_one_is_dropped(tmp_path):
    path = tmp_path / "rows.jsonl"
    kept = results.Rows(path, SETTINGS)
    with kept.appending() as file:
        for i in range(3):
            kept.add(row(repeat=i), file)
    whole = path.read_bytes()
    assert results.Rows(path, SETTINGS).rows == kept.rows
    for cut in (whole[:-1], whole[:-2], whole[:-30]):
        path.write_bytes(cut)
        again = results.Rows(path, SETTINGS)
        assert again.rows == kept.rows[: 3 if cut.endswith(b"}") else 2]
        with again.appending() as file:
            again.add(row("exact"), file)
        assert results.Rows(path, SETTINGS).rows == [*again.rows]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change", [{"max_tokens": 9}, {"mask": "layers:1"}, {"prompts": ("a",)}, {"strategies": ("plain",)}, {"n_ctx": 64}]
)
def test_rows_of_other_settings_are_refused(tmp_path, change):
    path = tmp_path / "rows.jsonl"
    results.Rows(path, SETTINGS)
    before = path.read_bytes()
    with pytest.raises(EdgeError, match=r"rows\.jsonl: holds a run of other settings; name another file"):
        results.Rows(path, replace(SETTINGS, **change))
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["nonsense\n", "[]\n{}\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(EdgeError, match=r"rows\.jsonl: "):
        results.Rows(path, SETTINGS)
    assert path.read_text() == text


def test_an_unknown_strategy_is_named():
    with pytest.raises(ValueError, match="'fast'; it must be one of stock, "):
        replace(SETTINGS, strategies=("fast",))


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr("viasd_edge.bench.Bench", FakeBench)
    monkeypatch.delenv("VIASD_STOCK_LIB", raising=False)


def invoke(*arguments):
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


def test_json_has_the_documented_keys(bench):
    result = invoke("--per-class", 1, "-r", 1, "--json", "--strategy", "plain", "--strategy", "exact")
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert set(answer) == {"summary", "rows", "settings", "machine", "versions"}
    for found in answer["summary"]:
        assert set(found) == {*results.COLUMNS, "acceptance_by_position", "peak_rss_bytes"} > DOCUMENTED
    groups = list(dict.fromkeys(prompt.group for prompt in embedded()))
    assert [(e["class"], e["strategy"]) for e in answer["summary"]] == [
        (group, name) for group in (*groups, "all") for name in ("plain", "exact")
    ]
    assert set(answer["rows"][0]) == set(Row.__dataclass_fields__)
    assert {"cpu", "cores"} <= set(answer["machine"])
    assert {"python", "viasd-edge", "llama-cpp-python"} <= set(answer["versions"])


def test_tables_and_files(bench, tmp_path):
    files = [tmp_path / name for name in ("out.csv", "out.md", "out.svg", "rows.jsonl")]
    arguments = ["--class", "code", "--class", "chat", "--per-class", 2, "-r", 1]
    for option, file in zip(("--csv", "--md", "--plot", "--rows"), files, strict=True):
        arguments += [option, file]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    for text in ("code, 2 prompts", "all, 4 prompts", "exact", "20.0", "peak MiB", "1024"):
        assert text in result.stdout
    assert "VIASD_STOCK_LIB" in result.stderr
    table, markdown, picture, _ = (file.read_text() for file in files)
    lines = list(csv.DictReader(table.splitlines()))
    assert [tuple(lines[0])] == [results.COLUMNS]
    assert [line["ratio_to_plain"] for line in lines if line["strategy"] == "exact"] == ["2.0"] * 3
    assert len(markdown.splitlines()) == len(lines) + 2
    assert "<svg" in picture
    before = files[3].read_text()
    again = invoke(*arguments)  # all of it is there
    assert (again.exit_code, again.stdout, files[3].read_text()) == (0, result.stdout, before)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--strategy", "fast"], 2, "'fast' is not one of"),
        (["--class", "poetry"], 2, "no prompt of class 'poetry'; there are code"),
        (["--prompts", "none.jsonl"], 2, "none.jsonl"),
        (["--prompts", __file__], 2, "line 1: expected"),
        (["--csv", "no/such/folder/x.csv"], 2, "no such folder"),
        (["--plot", "x.txt"], 2, "must end in one of"),
        (["--tolerance", "2"], 2, "--tolerance"),
        (["--strategy", "tiered", "--mask", "nothing"], 2, "no mask file"),
        (["--rows", __file__], 1, "is not a file of bench rows"),
    ],
)
def test_errors_are_one_line(bench, arguments, code, reason):
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert reason in line


def test_stock_needs_its_library(monkeypatch):
    bare = Bench.__new__(Bench)
    bare.settings, bare._stock, bare._target_path = SETTINGS, None, None
    with pytest.raises(EdgeError, match=r"^stock needs the stock library: set VIASD_STOCK_LIB"):
        bare._strategy("stock")
