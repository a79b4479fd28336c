#pragma once

// Confidence of attention and FFN outputs, read during ordinary passes (ConfLayers, arXiv 2604.14612).
//
//   confidence = 1 - H(softmax(x)) / log(dim x)      0: x is flat, 1: all its weight is on one element
//
// x is the block's output before it is added to the residual: itself (HIDDEN, what the released code does), or the logits
// that the model's output norm and head make of it (LM_HEAD, what the paper says; two products with the head's matrix for
// every layer and token). Logit scales and soft caps are left out, and so is the 1e-12 that the code adds inside the log.
//
// Called from (patches/0003-layer-probe-hooks.patch):
//   llm_graph_context::build_attn    every variant, on return
//   llm_graph_context::build_ffn     on return
//   llm_graph_context::build_moe_ffn on return
//   llm_graph_params::allow_reuse    compares cparams.layer_probe, so that a graph is never reused under another probe
//   llama_context::decode            on entry: forgets the values of the call before
//   llama_context::process_ubatch    on entry: makes room for the ubatch's values
//
// A hook hangs a side node on the block's output. Nothing of the main path depends on it: logits do not change. With no
// probe set, or under a mask of layer-skip.h, the hooks do nothing: a draft's passes are many and nobody asks. Where a
// block has no value the answer is NaN: its hook is never reached, its output is not of the residual's form, or, for the
// last layer's FFN, the token's logits were not asked for while others' were. Of a MoE block with shared experts, the
// part that is computed last counts.

#include "llama.h"

#include <cstdint>

struct llama_cparams;
struct layer_probe_state;

enum layer_probe_block {
    LAYER_PROBE_ATTN = 0,
    LAYER_PROBE_FFN  = 1,
};

//
// hooks for llama-graph.cpp and llama-context.cpp
//

// cur: a block's output, n_tokens: those of the ubatch
void layer_probe(
         ggml_context  * ctx,
         ggml_cgraph   * gf,
    const llama_cparams & cparams,
         ggml_tensor   * cur,
         int64_t         n_tokens,
         int             il,
         layer_probe_block block);

// a llama_decode call begins
void layer_probe_begin(const llama_cparams & cparams);

// the next n_tokens tokens of that call are about to be computed
void layer_probe_extend(const llama_cparams & cparams, int64_t n_tokens);

//
// C API, bound by viasd_edge/_native.py
//

#ifdef __cplusplus
extern "C" {
#endif

    // Version of this API; raised when a declaration or a meaning below changes.
    LLAMA_API int32_t llama_layer_probe_version(void);

    enum llama_layer_probe_kind {
        LLAMA_LAYER_PROBE_NONE    = 0,
        LLAMA_LAYER_PROBE_HIDDEN  = 1,
        LLAMA_LAYER_PROBE_LM_HEAD = 2,
    };

    enum llama_layer_probe_status {
        LLAMA_LAYER_PROBE_STATUS_OK            =  0,
        LLAMA_LAYER_PROBE_STATUS_NO_CONTEXT    = -1, // ctx is null
        LLAMA_LAYER_PROBE_STATUS_UNKNOWN_KIND  = -2, // kind is not a llama_layer_probe_kind
        LLAMA_LAYER_PROBE_STATUS_NO_HEAD       = -3, // LM_HEAD: the model has no output norm or no output matrix
        LLAMA_LAYER_PROBE_STATUS_ENCODER       = -4, // an encoder has layers of the same numbers
        LLAMA_LAYER_PROBE_STATUS_OFF           = -5, // llama_layer_probe_get only: no probe is set
        LLAMA_LAYER_PROBE_STATUS_NO_ROOM       = -6, // llama_layer_probe_get only: out holds fewer tokens than there are
    };

    // Set what all later llama_decode calls without a mask measure; of each ubatch only its last n_last tokens, 0: all.
    // Returns a llama_layer_probe_status; on failure the probe is unchanged.
    LLAMA_API int32_t llama_set_layer_probe(struct llama_context * ctx, int32_t kind, int32_t n_last);

    // Copy what the latest llama_decode call measured: out[n_tokens][n_layer][2], attention before FFN.
    // Returns the number of tokens, at most n_max, none if it ran under a mask, or a negative llama_layer_probe_status.
    LLAMA_API int32_t llama_layer_probe_get(struct llama_context * ctx, float * out, int32_t n_max);

#ifdef __cplusplus
}
#endif
