"""Tiny random GGUF files for the native ring: real architectures, a few kilobytes of weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_HEAD, N_FF, N_LAYER, N_CTX = 64, 4, 96, 4, 256
N_EXPERT, N_EXPERT_USED = 4, 2
_LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_LETTERS, *(f"▁{c}" for c in _LETTERS)]

Tensors = dict[str, np.ndarray]


def write(
    path: Path,
    arch: str = "llama",
    *,
    layers: Collection[int] = range(N_LAYER),
    zero: Callable[[str], bool] = lambda _name: False,
    tokens: list[str] | None = None,
    split_part: int | None = None,
    quantized: Callable[[str], bool] = lambda _name: False,
) -> Path:
    """A model of `arch` ("llama", "llama-moe", "gemma3" with sliding windows, "mamba").

    Weights depend only on a tensor's name, so files made with other `layers` (kept, renumbered from 0) share them.
    `zero` names tensors of zeros, `quantized` those in Q4_0; all others are floats. `split_part` says this file is
    that part (from 0) of two.
    """
    kind = arch.removesuffix("-moe")
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_name(f"tiny-{arch}")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(len(layers))
    writer.add_vocab_size(len(tokens or TOKENS))
    if split_part is not None:
        writer.add_uint16("split.no", split_part)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 1)
    {"llama": _attention_keys, "gemma3": _gemma_keys, "mamba": _mamba_keys}[kind](writer, moe=arch.endswith("-moe"))
    _add_vocabulary(writer, tokens or TOKENS)
    tensors = _mamba_layer if kind == "mamba" else _attention_layer
    shapes = {"token_embd.weight": (len(tokens or TOKENS), N_EMBD), "output_norm.weight": (N_EMBD,)}
    if kind != "gemma3":
        shapes["output.weight"] = (len(tokens or TOKENS), N_EMBD)
    for name, shape in shapes.items():
        writer.add_tensor(name, _weights(name, shape, zero))
    for new, old in enumerate(sorted(layers)):
        for name, shape in tensors(arch).items():
            weights = _weights(f"blk.{old}.{name}", shape, zero)
            if quantized(name):
                q4_0 = gguf.GGMLQuantizationType.Q4_0
                writer.add_tensor(f"blk.{new}.{name}", gguf.quants.quantize(weights, q4_0), raw_dtype=q4_0)
            else:
                writer.add_tensor(f"blk.{new}.{name}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights(name: str, shape: tuple[int, ...], zero: Callable[[str], bool]) -> np.ndarray:
    if zero(name):
        return np.zeros(shape, np.float32)
    random = np.random.default_rng(list(name.encode()))
    values = random.standard_normal(shape, np.float32)
    if "norm" in name:
        return 1 + 0.1 * values
    if name.endswith("ssm_a"):
        return -np.exp(0.1 * values)
    return values * np.float32(0.2)


def _attention_keys(writer: gguf.GGUFWriter, *, moe: bool) -> None:
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    if moe:
        writer.add_expert_count(N_EXPERT)
        writer.add_expert_used_count(N_EXPERT_USED)


def _gemma_keys(writer: gguf.GGUFWriter, *, moe: bool) -> None:
    _attention_keys(writer, moe=moe)
    writer.add_key_length(N_EMBD // N_HEAD)
    writer.add_value_length(N_EMBD // N_HEAD)
    writer.add_sliding_window(16)
    writer.add_sliding_window_pattern([True, True, True, False])


def _mamba_keys(writer: gguf.GGUFWriter, *, moe: bool) -> None:
    assert not moe
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(2 * N_EMBD)
    writer.add_ssm_state_size(16)
    writer.add_ssm_time_step_rank(4)


def _attention_layer(arch: str) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's tensors, rows first, by name after `blk.N.`."""
    n_kv = N_EMBD // 2
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (N_EMBD,),
        "attn_q.weight": (N_EMBD, N_EMBD),
        "attn_k.weight": (n_kv, N_EMBD),
        "attn_v.weight": (n_kv, N_EMBD),
        "attn_output.weight": (N_EMBD, N_EMBD),
        "ffn_norm.weight": (N_EMBD,),
    }
    if arch == "gemma3":
        head = (N_EMBD // N_HEAD,)
        shapes |= {"attn_q_norm.weight": head, "attn_k_norm.weight": head}
        shapes |= {"post_attention_norm.weight": (N_EMBD,), "post_ffw_norm.weight": (N_EMBD,)}
    if arch.endswith("-moe"):
        shapes |= {
            "ffn_gate_inp.weight": (N_EXPERT, N_EMBD),
            "ffn_gate_exps.weight": (N_EXPERT, N_FF, N_EMBD),
            "ffn_up_exps.weight": (N_EXPERT, N_FF, N_EMBD),
            "ffn_down_exps.weight": (N_EXPERT, N_EMBD, N_FF),
        }
    else:
        shapes |= {
            "ffn_gate.weight": (N_FF, N_EMBD),
            "ffn_up.weight": (N_FF, N_EMBD),
            "ffn_down.weight": (N_EMBD, N_FF),
        }
    return shapes


def _mamba_layer(_arch: str) -> dict[str, tuple[int, ...]]:
    inner, state, rank = 2 * N_EMBD, 16, 4
    return {
        "attn_norm.weight": (N_EMBD,),
        "ssm_in.weight": (2 * inner, N_EMBD),
        "ssm_conv1d.weight": (inner, 4),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (rank + 2 * state, inner),
        "ssm_dt.weight": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_a": (inner, state),
        "ssm_d": (inner,),
        "ssm_out.weight": (N_EMBD, inner),
    }


def _add_vocabulary(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE if token.startswith("<0x") else gguf.TokenType.NORMAL for token in tokens[3:]]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
