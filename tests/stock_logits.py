"""Run by the tests in a process of its own: logits of one pass by any libllama, saved as .npy.

LLAMA_CPP_LIB_PATH=FOLDER python stock_logits.py MODEL.gguf OUT.npy TOKEN ...
"""

from __future__ import annotations

import sys

import llama_cpp.llama_cpp as api
import numpy as np


def main(path: str, out: str, *numbers: str) -> None:
    tokens = [int(number) for number in numbers]
    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.n_gpu_layers = 0
    model = api.llama_model_load_from_file(path.encode(), params)
    options = api.llama_context_default_params()
    options.n_ctx, options.n_threads, options.n_threads_batch = 256, 1, 1
    options.n_batch = options.n_ubatch = 512
    options.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
    options.swa_full = True
    context = api.llama_init_from_model(model, options)
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert api.llama_decode(context, batch) == 0
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    np.save(out, np.ctypeslib.as_array(api.llama_get_logits(context), (len(tokens), n_vocab)))


main(*sys.argv[1:])
