"""Our prompts, and prompts read from files."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from viasd_edge.errors import PromptError
from viasd_edge.prompts import Prompt, embedded, read_prompts

GROUPS = {"code", "maths", "summary", "translation", "question", "chat", "extraction"}


def test_every_class_has_six_prompts_of_its_own():
    prompts = embedded()
    groups = Counter(prompt.group for prompt in prompts)
    assert set(groups) == GROUPS
    assert min(groups.values()) >= 6
    assert len({prompt.name for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert prompt.text == prompt.text.strip()
        assert "\\" not in prompt.text


@pytest.mark.parametrize("prompt", [prompt for prompt in embedded() if prompt.group == "summary"], ids=lambda p: p.name)
def test_texts_to_summarise_are_long(prompt):
    _task, text = prompt.text.split("\n\n", 1)
    assert 150 <= len(text.split()) <= 300


def write(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def test_the_forms_of_known_sets(tmp_path):
    path = write(
        tmp_path / "set.jsonl",
        {"question_id": 1, "category": "coding", "turns": ["first", "second"]},
        {"category": "math_reasoning", "turns": ["m"]},
        {"category": "summarization", "turns": ["s"]},
        {"category": "qa", "turns": ["q"]},
        {"category": "roleplay", "turns": ["r"]},
        {"question": "How many?", "answer": "#### 1"},
        {"task_id": "HumanEval/0", "prompt": "def f():\n"},
    )
    assert read_prompts(path) == [
        Prompt("code", "first", "set:1"),
        Prompt("maths", "m", "set:2"),
        Prompt("summary", "s", "set:3"),
        Prompt("question", "q", "set:4"),
        Prompt("roleplay", "r", "set:5"),
        Prompt("maths", "How many?", "set:6"),
        Prompt("code", "Complete this Python function:\n```python\ndef f():\n```", "set:7"),
    ]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, "0"), (2, "05"), (3, "036"), (10, "0123456789"), (99, "0123456789")]
)
def test_some_prompts_are_spread_evenly(tmp_path, count, expected):
    path = write(tmp_path / "ten.jsonl", *({"question": str(i)} for i in range(10)))
    assert "".join(prompt.text for prompt in read_prompts(path, count)) == expected


def test_characters_that_end_lines_elsewhere_stay_in_a_prompt(tmp_path):
    path = tmp_path / "separators.jsonl"
    path.write_bytes('{"question": "a\u2028b"}\r\n\n{"question": "c"}'.encode())
    assert [(prompt.text, prompt.name) for prompt in read_prompts(path)] == [
        ("a\u2028b", "separators:1"),
        ("c", "separators:3"),
    ]


@pytest.mark.parametrize(
    "bad",
    ["{", "[]", "7", "{}", '{"question": 3}', '{"prompt": ""}', '{"turns": ["x"]}', '{"category": "qa", "turns": []}'],
)
def test_a_malformed_line_is_named(tmp_path, bad):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "fine"}\n' + bad + "\n", encoding="utf-8")
    with pytest.raises(PromptError, match=r"^.*bad\.jsonl: line 2: expected .*Spec-Bench.*GSM8K.*HumanEval.*$"):
        read_prompts(path, 1)


@pytest.mark.parametrize(("raw", "reason"), [(b"", "no prompts"), (b"\n \n", "no prompts"), (b"\xff\n", "not UTF-8")])
def test_files_without_prompts(tmp_path, raw, reason):
    path = tmp_path / "file.jsonl"
    path.write_bytes(raw)
    with pytest.raises(PromptError, match=reason):
        read_prompts(path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="at least 1"):
        read_prompts(tmp_path / "none.jsonl", 0)
