"""Write a GGUF file of a known model's shape and quantisation whose weights are random, to time passes with.

    .venv/bin/python scripts/make_shape.py qwen2.5-7b shape.gguf --quant q4_k_m [--layers 4]

A pass costs the same whatever the weights are, so this measures models too large to download; what such a file says
means nothing, and how often drafts are accepted cannot be learnt from it. Nothing is quantised: the blocks are random
bytes, and only their float16 scales are set, so that every weight is finite and has a standard deviation of about 0.02.
With `--layers` the file has fewer layers, in the same mix of types: t(n) of the whole model can be extrapolated from
two such files, since embedding, output and each layer take their own fixed time. Noise is multiplied, too: from 4 and 8
of 28 layers, t(1), t(4) and t(16) came out 8 to 27 % off. Use as many layers as fit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


@dataclass(frozen=True)
class Shape:
    """Hyperparameters of a dense decoder; all are facts of the model it is named after."""

    arch: str  # "llama", or "qwen2", which has biases on Q, K and V
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_ctx: int
    rope_base: float
    rms_eps: float


SHAPES = {
    "qwen2.5-7b": Shape("qwen2", 152064, 3584, 28, 28, 4, 18944, 32768, 1e6, 1e-6),
    "qwen2.5-14b": Shape("qwen2", 152064, 5120, 48, 40, 8, 13824, 32768, 1e6, 1e-6),
    "llama-3-8b": Shape("llama", 128256, 4096, 32, 32, 8, 14336, 8192, 5e5, 1e-5),
}
QUANTS = {  # most matrices, the more precise ones, the file type
    "q4_k_m": (Type.Q4_K, Type.Q6_K, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "q4_0": (Type.Q4_0, Type.Q6_K, gguf.LlamaFileType.MOSTLY_Q4_0),
    "q8_0": (Type.Q8_0, Type.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
SCALES = {  # a block's float16 numbers by their place; random Q4_K blocks are centred by their minimum's scale
    Type.Q4_K: {0: 7.7e-5, 2: 7.5 * 7.7e-5},
    Type.Q6_K: {208: 1.5e-5},
    Type.Q4_0: {0: 4.3e-3},
    Type.Q8_0: {0: 2.7e-4},
}
HEADROOM = 200 << 20  # bytes of disk that stay free


def tensors(shape: Shape, quant: str) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    """Name, dimensions (rows first) and type of every tensor, in the mix that llama.cpp's quantizer makes."""
    most, precise, _ = QUANTS[quant]
    n_kv = shape.n_embd // shape.n_head * shape.n_head_kv
    yield "token_embd.weight", (shape.n_vocab, shape.n_embd), most
    yield "output_norm.weight", (shape.n_embd,), Type.F32
    yield "output.weight", (shape.n_vocab, shape.n_embd), precise
    for i in range(shape.n_layer):
        mixed = precise if quant == "q4_k_m" and _more_bits(i, shape.n_layer) else most
        for name, rows in (("q", shape.n_embd), ("k", n_kv), ("v", n_kv)):
            yield f"blk.{i}.attn_{name}.weight", (rows, shape.n_embd), mixed if name == "v" else most
            if shape.arch == "qwen2":
                yield f"blk.{i}.attn_{name}.bias", (rows,), Type.F32
        yield f"blk.{i}.attn_output.weight", (shape.n_embd, shape.n_embd), most
        yield f"blk.{i}.attn_norm.weight", (shape.n_embd,), Type.F32
        yield f"blk.{i}.ffn_norm.weight", (shape.n_embd,), Type.F32
        yield f"blk.{i}.ffn_gate.weight", (shape.n_ff, shape.n_embd), most
        yield f"blk.{i}.ffn_up.weight", (shape.n_ff, shape.n_embd), most
        yield f"blk.{i}.ffn_down.weight", (shape.n_embd, shape.n_ff), mixed


def _more_bits(i: int, n_layer: int) -> bool:
    """llama.cpp's `use_more_bits`: the first and the last eighth, and every third layer between."""
    eighth = n_layer // 8
    return i < eighth or i >= 7 * n_layer // 8 or (i - eighth) % 3 == 2  # noqa: PLR2004  # as there


def write(path: Path, shape: Shape, quant: str, *, name: str) -> None:
    """Write the file, tensor by tensor; the name `path` appears when all of it is there."""
    entries = list(tensors(shape, quant))
    sizes = [_n_bytes(dimensions, kind) for _, dimensions, kind in entries]
    path.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(path.parent).free < sum(sizes) + HEADROOM:
        raise SystemExit(f"{path.parent} has no room for {sum(sizes) >> 20} MiB; name another folder or use --layers")
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    writer = gguf.GGUFWriter(fresh, shape.arch)
    try:
        _add_metadata(writer, shape, quant, name)
        for (tensor, dimensions, kind), size in zip(entries, sizes, strict=True):
            writer.add_tensor_info(tensor, dimensions, np.dtype(np.float32), size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        random = np.random.default_rng(0)
        done = 0
        for (tensor, dimensions, kind), size in zip(entries, sizes, strict=True):
            writer.write_tensor_data(_weights(tensor, dimensions, kind, random))
            done += size
            print(f"\r{done >> 20} of {sum(sizes) >> 20} MiB", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        writer.close()
        fresh.replace(path)
    finally:
        writer.close()
        fresh.unlink(missing_ok=True)


def _n_bytes(dimensions: tuple[int, ...], kind: Type) -> int:
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(np.prod(dimensions)) // per_block * block_bytes


def _weights(name: str, dimensions: tuple[int, ...], kind: Type, random: np.random.Generator) -> np.ndarray:
    if kind == Type.F32:
        return np.full(dimensions, "norm" in name, np.float32)
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    n_bytes = _n_bytes(dimensions, kind)
    blocks = random.integers(0, 256, (n_bytes // block_bytes, block_bytes), np.uint8)
    for at, scale in SCALES[kind].items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks


def _add_metadata(writer: gguf.GGUFWriter, shape: Shape, quant: str, name: str) -> None:
    writer.add_name(f"{name} {quant} with random weights")
    writer.add_file_type(QUANTS[quant][2])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    # a byte-level vocabulary: any text can be tokenised, and the rest of it only has the right size
    known = [*_byte_letters(), "\u0120\u0120", "<|endoftext|>"]
    control, normal, unused = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED
    n_unused = shape.n_vocab - len(known)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if shape.arch == "qwen2" else "llama-bpe")
    writer.add_token_list([*known, *(f"<unused {i}>" for i in range(n_unused))])
    writer.add_token_types([*[normal] * (len(known) - 1), control, *[unused] * n_unused])
    writer.add_token_merges(["\u0120 \u0120"])  # llama.cpp wants one at least
    writer.add_eos_token_id(len(known) - 1)
    writer.add_bos_token_id(len(known) - 1)
    writer.add_add_bos_token(False)


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it prints, else one from 256 on."""
    printing = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printing else next(others)) for byte in range(256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quant", choices=QUANTS, default="q4_k_m")
    parser.add_argument("--layers", type=int, help="default: all of the model's")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    n_layer = shape.n_layer if arguments.layers is None else arguments.layers
    if not 1 <= n_layer <= shape.n_layer:
        parser.error(f"--layers must be from 1 to {shape.n_layer}")
    name = arguments.shape if n_layer == shape.n_layer else f"{arguments.shape} ({n_layer} layers)"
    write(arguments.file, replace(shape, n_layer=n_layer), arguments.quant, name=name)


if __name__ == "__main__":
    main()
