"""The command line: what it says, where, and how it exits. A fake engine answers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from fakes import FakeTarget

from viasd_edge.cli import cli
from viasd_edge.curves import Curve
from viasd_edge.engine import Engine
from viasd_edge.errors import EdgeError, ModelError, NativeLibraryError, PromptError
from viasd_edge.mask import LayerMask
from viasd_edge.policy import Costs


class FakeModel:
    """Tokens of the fake target as letters."""

    path = Path("fake.gguf")
    n_layer = 4
    fingerprint = "f00d"
    chat_template = None

    def piece(self, token):
        return b"x" if token % 2 else b"y"

    def is_end(self, token):
        return token == 96

    def tokenize(self, text, *, special):
        return [ord(c) % 96 for c in text]


def fake_engine(mode="plain", n_ctx=256, **options):
    target, draft = FakeTarget(), FakeTarget()
    for runner in (target, draft):
        runner.model, runner.n_ctx, runner.n_threads, runner.can_rewind = FakeModel(), n_ctx, 1, True
        runner.work = {"full": Work(), "slim": Work()}
        runner.lock, runner.user = threading.Lock(), None
    mask = LayerMask.parse("layers:1") if mode == "tiered" else None
    passes = Curve((1, 8), (1e-5, 1.2e-5))
    costs = Costs(passes, {"model": 1e-6, "ngram": 0.0}, passes)
    return Engine(target, mode=mode, draft=None if mode == "plain" else draft, mask=mask, costs=costs, **options)


class Work:
    passes, tokens, seconds = 3, 3, 0.1


@pytest.fixture
def opened(monkeypatch):
    """Options the command opened its engine with; the engine is a fake."""
    calls = []

    def open_(model, **options):
        calls.append({"model": model, **options})
        kept = {key: options[key] for key in ("gate", "keep_kv", "draft_max", "drafters", "policy") if key in options}
        return fake_engine(options["mode"] or "plain", n_ctx=options["n_ctx"] or 256, **kept)

    monkeypatch.setattr(Engine, "open", open_)
    return calls


def invoke(*arguments, **options):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], **options)


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [(), *commands(cli)], ids=" ".join)
def test_every_command_has_help(path):
    result = invoke(*path, "--help")
    assert result.exit_code == 0
    assert len(result.stdout.split("\n\n")) > 1
    command = cli
    for name in path:
        command = command.commands[name]
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_help_needs_no_native_library():
    code = "import sys; from viasd_edge.cli import cli; cli(['generate', '--help'], standalone_mode=False); "
    code += "assert not {'llama_cpp', 'numpy'} & set(sys.modules), 'heavy import'"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_generate_is_the_default_and_keeps_answer_and_talk_apart(opened):
    result = invoke("Hi", "-n", 20)
    assert result.exit_code == 0
    assert set(result.stdout.strip()) <= {"x", "y"}
    assert "tokens/s" in result.stderr
    assert opened[0]["model"] is None


def test_quiet_prints_the_answer_only(opened):
    result = invoke("generate", "Hi", "-n", 20, "--quiet")
    assert result.stderr == ""
    assert result.stdout


def test_prompt_from_file_and_stdin(opened, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Hi")
    answers = {invoke("generate", "-f", path, "-n", 9, "--quiet").stdout}
    answers |= {invoke("generate", "-n", 9, "--quiet", input="Hi").stdout}
    answers |= {invoke("generate", "-", "-n", 9, "--quiet", input="Hi").stdout}
    answers |= {invoke("generate", "Hi", "-n", 9, "--quiet").stdout}
    assert len(answers) == 1


@pytest.mark.parametrize("mode", ["plain", "exact", "tiered"])
def test_json_is_one_object_with_null_for_what_does_not_apply(opened, mode):
    result = invoke("generate", "Hi", "--mode", mode, "-n", 50, "--json")
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert list(answer) == [
        *("text", "token_ids", "finish_reason", "mode", "lossless", "model", "draft_model", "mask", "seed", "timings"),
        *("full_passes", "tokens_per_full_pass", "rejection", "tiers", "drafters", "acceptance_by_position"),
        *("policy", "gave_up"),
    ]
    assert answer["lossless"] is (mode != "tiered")
    assert [tier["name"] for tier in answer["tiers"]] == {
        "plain": ["full"],
        "exact": ["draft", "full"],
        "tiered": ["draft", "slim", "full"],
    }[mode]
    applies = mode == "tiered"
    assert all((value is not None) == applies for value in answer["rejection"].values())
    assert (answer["draft_model"] is None) == (mode == "plain")
    assert (answer["mask"] is None) != applies
    assert set(answer["timings"]) == {
        *("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second"),
        *("draft_n", "draft_n_accepted"),
    }


def test_tiered_is_called_lossy_wherever_its_speed_is_printed(opened):
    assert "LOSSY" in invoke("generate", "Hi", "--mode", "tiered").stderr
    assert "LOSSY" not in invoke("generate", "Hi", "--mode", "exact").stderr
    assert "LOSSY" in invoke("generate", "--help").stdout


def test_zero_tokens(opened):
    """Case 3c."""
    answer = json.loads(invoke("generate", "Hi", "-n", 0, "--json").stdout)
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("", [], "length")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16])
def test_exactly_as_many_tokens_as_asked(opened, n):
    """Case 3b: a draft does not overshoot, and the text is plain decoding's."""
    plain = json.loads(invoke("generate", "Hi", "--mode", "plain", "-n", n, "--json").stdout)
    exact = json.loads(invoke("generate", "Hi", "--mode", "exact", "--draft-max", 4, "-n", n, "--json").stdout)
    assert exact["token_ids"] == plain["token_ids"]
    assert len(exact["token_ids"]) == n


def test_color_is_off_when_not_a_terminal_and_on_when_asked(opened, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in invoke("generate", "Hi", "--mode", "tiered", "-n", 50).stdout
    assert "\x1b[32m" in invoke("generate", "Hi", "--mode", "tiered", "-n", 50, "--color").stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["generate", "a", "-f", __file__], "not both"),
        (["generate", "a", "-n", "-1"], "--max-tokens"),
        (["generate", "a", "--mode", "fast"], "--mode"),
        (["generate", "a", "--gate", "ratio:accept=0.2"], "escalate <= accept"),
        (["generate", "a", "--gate", "magic"], "is none of ratio"),
        (["generate", "a", "--mode", "plain", "--tolerance", "0"], "exact mode, not --mode plain"),
        (["generate", "a", "--mode", "tiered", "--temp", "0.8"], "is greedy"),
        (["generate", "a", "--draft-max", "0"], "--draft-max"),
        (["generate", "-f", "no-such-file"], "no-such-file"),
        (["generate", "", "--quiet"], "empty"),
        (["generate", "x" * 300], "300 tokens, the context 256"),
        (["generate", "a", "-s", "Be brief"], "chat template"),
        (["masks", "show", "nothing"], "no mask file"),
        (["models", "path", "nothing"], "not a model"),
        (["models", "path", "smollm2-135m"], "models pull smollm2-135m"),
        (["models", "pull", "nothing"], "no such file"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(opened, arguments, reason):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stdout in ("", "\n")
    assert isinstance(result.exception, SystemExit)
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1


@pytest.mark.parametrize(
    ("error", "code"), [(ModelError, 2), (PromptError, 2), (NativeLibraryError, 1), (EdgeError, 1)]
)
def test_errors_of_the_library_keep_their_exit_code(monkeypatch, error, code):
    def fails(*_arguments, **_options):
        raise error("what to do")

    monkeypatch.setattr(Engine, "open", fails)
    result = invoke("Hi")
    assert (result.exit_code, result.stderr) == (code, "Error: what to do\n")


def test_stdin_that_is_not_text(opened):
    result = invoke("generate", input=b"\xff\xfe\x00")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


def test_an_interrupt_keeps_the_partial_text(opened, monkeypatch):
    calls = {"n": 0}

    def piece(self, token):
        calls["n"] += 1
        if calls["n"] == 6:
            raise KeyboardInterrupt
        return b"z"

    monkeypatch.setattr(FakeModel, "piece", piece)
    result = invoke("generate", "Hi", "-n", 50)
    assert result.exit_code == 130
    assert result.stdout == "zzzzz\n"
    calls["n"] = 0
    answer = json.loads(invoke("generate", "Hi", "-n", 50, "--json").stdout)
    assert (answer["finish_reason"], answer["text"]) == ("interrupted", "zzzzz")


def test_native_check_says_what_to_do(monkeypatch, tmp_path):
    environment = {"VIASD_EDGE_LIB": str(tmp_path)}
    command = [sys.executable, "-m", "viasd_edge", "native", "check"]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "pip install ." in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_models_and_masks_as_json():
    assert json.loads(invoke("models", "list", "--json").stdout)["default"] == "qwen2.5-coder"
    assert "qwen2.5-coder-1.5b-hand-picked" in [
        entry["name"] for entry in json.loads(invoke("masks", "list", "--json").stdout)["masks"]
    ]
    shown = json.loads(invoke("masks", "show", "layers:1-2", "--json").stdout)
    assert (shown["skip_attention"], shown["skip_ffn"], shown["text"]) == ([1, 2], [1, 2], "attn:1-2 ffn:1-2")


def test_shipped_mask_is_shown_with_its_origin():
    assert "hand-picked" in invoke("masks", "show", "qwen2.5-coder-1.5b-hand-picked").stdout


def test_a_trace_has_a_line_for_every_round(opened, tmp_path):
    path = tmp_path / "trace.jsonl"
    answer = json.loads(invoke("generate", "Hi", "--mode", "exact", "-n", 50, "--json", "--trace", path).stdout)
    header, *rounds = [json.loads(line) for line in path.read_text().splitlines()]
    assert (header["mode"], header["trace"]) == ("exact", 1)
    assert sum(len(round_["emitted"]) for round_ in rounds) >= len(answer["token_ids"])
    assert sum(round_["accepted"] for round_ in rounds) == answer["tiers"][0]["accepted"]
    refused = invoke("generate", "Hi", "--trace", tmp_path)
    assert (refused.exit_code, refused.stdout) == (2, "")


def test_explain_prints_what_the_policy_expects(opened):
    shown = invoke("generate", "Hi", "--mode", "exact", "-n", 50, "--explain").stderr
    assert "plain decoding" in shown
    assert "model for full" in shown
