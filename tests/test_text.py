"""Text from tokens: characters split over tokens, stop strings, ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from viasd_edge.errors import PromptError
from viasd_edge.strategies import Token
from viasd_edge.text import Detokenizer, StopStrings, TextStream, chat_prompt

END = 999


class Bytes:
    """A vocabulary in which token n is `pieces[n]`."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def is_end(self, token: int) -> bool:
        return token == END


def stream(pieces: list[bytes], stops=(), end_at=None) -> TextStream:
    tokens = [Token(i, "draft" if i % 2 else "full") for i in range(len(pieces))]
    if end_at is not None:
        tokens[end_at] = Token(END, "full")
    return TextStream(iter(tokens), Bytes(pieces), stops)


def run(text: TextStream) -> list[str]:
    return [piece.text for piece in text]


@pytest.mark.parametrize("word", ["👨‍👩‍👧‍👦", "日本語", "é", "naïve 👍🏽", "plain"])
def test_characters_split_over_tokens_never_show_half(word):
    """Case 4: one byte a token, streamed."""
    text = stream([bytes([byte]) for byte in word.encode()])
    pieces = run(text)
    assert "".join(pieces) == text.text == word
    assert not any("�" in piece for piece in pieces)


def test_the_cap_inside_a_character():
    raw = "ab👍".encode()
    text = stream([bytes([byte]) for byte in raw[:-1]])
    pieces = run(text)
    assert text.text == "".join(pieces) == "ab�"
    assert not any("�" in piece for piece in pieces[:-1])
    assert len(text.token_ids) == len(raw) - 1


def test_invalid_bytes_in_the_middle_become_replacement_characters():
    assert "".join(run(stream([b"a", b"\xff", b"b"]))) == "a�b"


def test_end_of_text_inside_a_run_of_tokens():
    """Case 8: what follows the end in an accepted run is dropped; the end is no token of the answer."""
    text = stream([b"x"] * 8, end_at=5)
    assert "".join(run(text)) == "xxxxx"
    assert (text.finish_reason, len(text.token_ids)) == ("stop", 5)


def test_stop_string_from_token_6_to_8():
    text = stream([b"a", b"b", b"c", b"d", b"e", b"f", b"ST", b"O", b"Pz", b"never"], stops=["STOP"])
    assert "".join(run(text)) == "abcdef"
    assert (text.finish_reason, text.token_ids) == ("stop", list(range(9)))


def test_stop_wins_over_length():
    text = stream([b"a", b"EN", b"D"], stops=["END"])
    run(text)
    assert (text.text, text.finish_reason) == ("a", "stop")


def test_text_held_back_in_vain_is_let_go():
    text = stream([b"a", b"EN"], stops=["END"])
    assert run(text)[-1] == "EN"
    assert (text.text, text.finish_reason) == ("aEN", "length")


def test_pending_bytes_are_dropped_when_a_stop_string_matches():
    text = stream([b"stop" + "👍".encode()[:2]], stops=["stop"])
    assert "".join(run(text)) == ""


@pytest.mark.parametrize("stops", [["ab", "abc"], ["abc", "ab"], ["b"], ["", "ab"]])
def test_the_first_stop_string_wins(stops):
    matcher = StopStrings(stops)
    shown = matcher.add("xa") + matcher.add("bc")
    assert (shown, matcher.found) == ("x" if "b" not in stops else "xa", True)


def test_every_split_of_a_text_gives_the_same_stop():
    whole = "to be or not to be"
    for cuts in [(3, 9), (1, 2), (11, 13), (4, 17)]:
        bounds = [0, *cuts, len(whole)]
        parts = [whole[start:end] for start, end in pairwise(bounds)]
        matcher = StopStrings(["not", "nothing"])
        assert "".join(matcher.add(part) for part in parts if not matcher.found) == "to be or "


def test_detokenizer_flush_is_empty_for_whole_text():
    detokenizer = Detokenizer()
    assert detokenizer.add("é".encode()) == "é"
    assert detokenizer.flush() == ""


TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_chat_prompt():
    made = chat_prompt(TEMPLATE, "Hi", None, bos="<s>", eos="</s>")
    assert made == "<user>Hi<assistant>"
    assert chat_prompt(TEMPLATE, "Hi", "Be brief", bos="", eos="").startswith("<system>Be brief<user>")


@pytest.mark.parametrize("template", ["{{ raise_exception('no system role') }}", "{% if %}", "{{ undefined.x.y }}"])
def test_a_template_that_refuses_names_the_cure(template):
    with pytest.raises(PromptError, match="--raw"):
        chat_prompt(template, "Hi", None, bos="", eos="")


def test_templates_cannot_reach_the_system():
    with pytest.raises(PromptError):
        chat_prompt("{{ messages.__class__.__mro__[1].__subclasses__() }}", "Hi", None, bos="", eos="")
