"""One GGUF file: its weights, its vocabulary, its fingerprint."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from viasd_edge._native import native
from viasd_edge.closing import Closing
from viasd_edge.errors import ModelError

_SAMPLE = 1 << 20  # bytes hashed at each end of a file for its fingerprint
_LFS = b"version https://git-lfs"


class Model(Closing):
    """A loaded GGUF file. Owns the native model; close it after every Runner made from it, or use `with`.

    Raises ModelError with one line that says what is wrong with the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        check_file(path)
        self.path = path
        self._native = native()
        self._api = self._native.api
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = 0
        self._native.errors.clear()
        self.handle = self._api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ModelError(f"{path}: {_load_reason(list(self._native.errors))}")
        self._closing.callback(self._api.llama_model_free, self.handle)
        self._vocab = self._api.llama_model_get_vocab(self.handle)

    @cached_property
    def n_layer(self) -> int:
        return int(self._api.llama_model_n_layer(self.handle))

    @cached_property
    def n_vocab(self) -> int:
        return int(self._api.llama_vocab_n_tokens(self._vocab))

    @cached_property
    def n_ctx_train(self) -> int:
        """The context length the model was trained for, tokens."""
        return int(self._api.llama_model_n_ctx_train(self.handle))

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether any layer keeps a state that cannot be rewound (recurrent and hybrid models)."""
        api = self._api
        return bool(api.llama_model_is_recurrent(self.handle) or api.llama_model_is_hybrid(self.handle))

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that name this file's contents: its size, its first and its last MiB."""
        return fingerprint(self.path)

    @cached_property
    def chat_template(self) -> str | None:
        """The jinja2 chat template in the file, if there is one."""
        template = self._api.llama_model_chat_template(self.handle, None)
        return template.decode() if template else None

    def text(self, token: int) -> bytes:
        """The vocabulary's own text of a token, not what it prints as."""
        return self._api.llama_vocab_get_text(self._vocab, token) or b""

    def first_difference(self, other: Model) -> int | None:
        """The first token number that both models have and whose text differs."""
        return self._native.vocab_first_difference(self._vocab, other._vocab)

    def special_text(self, name: str) -> str:
        """The text of the special token `name` ("bos" or "eos"), "" if the model has none."""
        token = getattr(self._api, f"llama_vocab_{name}")(self._vocab)
        return "" if token < 0 else self.text(token).decode(errors="replace")

    def is_end(self, token: int) -> bool:
        """Whether `token` ends a generation (end of text, end of turn)."""
        return bool(self._api.llama_vocab_is_eog(self._vocab, token))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`; with `special`, control tokens written in it count as such.

        The model's own begin-of-text token comes first if its file asks for one and `text` does not start with it.
        """
        raw = text.encode("utf-8", errors="surrogatepass")
        bos = self.special_text("bos")
        add_special = not (special and bos and text.startswith(bos))
        room = len(raw) + 16
        while True:
            tokens = (ctypes.c_int32 * room)()
            n = self._api.llama_tokenize(self._vocab, raw, len(raw), tokens, room, add_special, special)
            if n >= 0:
                return list(tokens[:n])
            if n == -(2**31):
                raise ModelError(f"{self.path}: the tokenizer cannot take a text of {len(raw)} bytes")
            room = -n

    def piece(self, token: int) -> bytes:
        """The bytes a token prints as; control tokens print as nothing. May end inside a UTF-8 character."""
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._api.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n


def fingerprint(path: Path) -> str:
    """See Model.fingerprint."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_SAMPLE))
        file.seek(max(size - _SAMPLE, 0))
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:16]


def check_file(path: Path) -> None:
    """Raise ModelError, each with its own sentence, for what is plainly not a GGUF file."""
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; name the .gguf file in it")
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS) + 32)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if not start:
        raise ModelError(f"{path}: is empty; download it again")
    if start.startswith(_LFS):
        raise ModelError(f"{path}: is a git-LFS pointer, not the model; run `git lfs pull`")
    if start.lstrip()[:1] == b"<":
        raise ModelError(f"{path}: is an HTML page, not a model; the download went wrong")
    if start[:4] != b"GGUF":
        raise ModelError(f"{path}: is not a GGUF file (starts with {start[:4]!r})")


def check_same_tokenizer(target: Model, draft: Model, draft_path: Path) -> None:
    """Raise ModelError unless both models give every token number the same text; `draft_path` is the file to blame.

    Sizes may differ when the larger vocabulary only pads: the common part must agree.
    """
    differing = target.first_difference(draft)
    padding = abs(target.n_vocab - draft.n_vocab)
    if differing is None and padding > _MAX_PADDING:
        differing = min(target.n_vocab, draft.n_vocab)
    if differing is None:
        return
    texts = [model.text(differing) if differing < model.n_vocab else b"(none)" for model in (target, draft)]
    shown = [text.decode(errors="replace") for text in texts]
    raise ModelError(
        f"{draft_path} cannot draft for {target.path}: different tokenizers ({draft.n_vocab} and {target.n_vocab} "
        f"tokens; token {differing} is {shown[1]!r} and {shown[0]!r}); choose a drafter of the target's family"
    )


_MAX_PADDING = 1024  # vocabularies are padded to a multiple of this at most (Qwen: 151936 and 152064)


def _load_reason(errors: Sequence[str]) -> str:
    """One sentence for llama.cpp's error lines of a failed load."""
    said = " ".join(errors)
    if "unknown model architecture" in said:
        name = said.split("unknown model architecture:")[1].split("'")[1:2]
        return f"its architecture {name[0] if name else ''!r} is unknown to this llama.cpp; update viasd-edge"
    if "must be loaded with the first split" in said or "illegal split" in said:
        return "is a later part of a split model; name its first part (...-00001-of-...)"
    if "not within the file bounds" in said or "incomplete" in said:
        return "is cut short; download it again"
    if "failed to read" in said or "bad read" in said.lower() or "end of file" in said:
        return "ends inside its header; download it again"
    lines: list[Any] = [line for line in errors if "llama_model_load:" not in line] or list(errors)
    return f"llama.cpp cannot load it: {lines[0] if lines else 'no reason given'}"
