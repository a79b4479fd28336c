#pragma once

// Per-call layer skipping: attention, FFN and MoE blocks that a routing mask leaves out of the compute graph.
//
// Called from (patches/0001-layer-skip-hooks.patch):
//   llm_graph_context::build_attn    every variant, twice: on entry, and after K and V are stored
//   llm_graph_context::build_ffn     on entry
//   llm_graph_context::build_moe_ffn on entry
//   llm_graph_params::allow_reuse    compares cparams.layer_skip, so that a graph is never reused under another mask
//
// A hook that answers true obliges its caller to return a zero tensor at once. The residual stream then passes
// unchanged, and what only the skipped block needed (norms, projections) never enters the graph, because a graph
// holds nothing that its outputs do not depend on. With no mask set every hook answers false.

#include "llama.h"

#include <cstdint>

struct llama_cparams;
struct llama_hparams;

// one byte a layer, any combination
enum llama_layer_skip_flag {
    LLAMA_LAYER_SKIP_ATTN    = 1, // the attention block
    LLAMA_LAYER_SKIP_FFN     = 2, // the feed-forward block, dense or MoE, shared experts included
    LLAMA_LAYER_SKIP_KEEP_KV = 4, // with ATTN: still project and store K and V, so that the cache has no hole
};

//
// hooks for llama-graph.cpp
//

// true: the attention block of layer il is skipped and stores nothing; return layer_skip_attn_out().
// When the block is skipped but keeps its K and V the answer is false and q_cur becomes k_cur: the caller expands
// q_cur into the graph before it stores K and V, and this is how the query projection stays out of it.
// k_cur == nullptr: this variant stores no K.
bool layer_skip_attn(const llama_cparams & cparams, int il, ggml_tensor * & q_cur, ggml_tensor * k_cur);

// true: the attention block of layer il is skipped, K and V are stored by now; return layer_skip_attn_out()
bool layer_skip_attn_stored(const llama_cparams & cparams, int il);

// true: the FFN block of layer il is skipped; return layer_skip_out()
bool layer_skip_ffn(const llama_cparams & cparams, int il);

// zeros of the shape that build_attn returns, F32 [n_out, n_tokens]; without wo the caller projects the heads itself
ggml_tensor * layer_skip_attn_out(
         ggml_context  * ctx,
    const llama_hparams & hparams,
    const ggml_tensor  * wo,
    const ggml_tensor  * v_mla,
    const ggml_tensor  * v_cur,
              int64_t    n_tokens,
                  int    il);

// zeros, F32 [n_out, n_tokens]
ggml_tensor * layer_skip_out(ggml_context * ctx, int64_t n_out, int64_t n_tokens);

//
// C API, bound by viasd_edge/_native.py
//

#ifdef __cplusplus
extern "C" {
#endif

    // Version of this API; raised when a declaration or a meaning below changes.
    LLAMA_API int32_t llama_layer_skip_version(void);

    enum llama_layer_skip_status {
        LLAMA_LAYER_SKIP_STATUS_OK             =  0,
        LLAMA_LAYER_SKIP_STATUS_NO_CONTEXT     = -1, // ctx is null
        LLAMA_LAYER_SKIP_STATUS_WRONG_N_LAYER  = -2, // n_layer is not the model's
        LLAMA_LAYER_SKIP_STATUS_UNKNOWN_FLAG   = -3, // a byte has bits that llama_layer_skip_flag does not name
        LLAMA_LAYER_SKIP_STATUS_RECURRENT      = -4, // recurrent and hybrid layers have no block that can be left out
        LLAMA_LAYER_SKIP_STATUS_ENCODER        = -5, // an encoder has layers of the same numbers
        LLAMA_LAYER_SKIP_STATUS_NO_ATTENTION   = -6, // every attention block skipped: the graph would have no use for
                                                     // its inputs and leave them unallocated
        LLAMA_LAYER_SKIP_STATUS_GRAPH_FAILED   = -7, // llama_layer_skip_check only: the graph could not be built
    };

    // Set the mask of all later llama_decode calls on ctx: mask[il] is a combination of llama_layer_skip_flag.
    // mask == nullptr: skip nothing. Returns a llama_layer_skip_status; on failure the mask is unchanged.
    LLAMA_API int32_t llama_set_layer_skip(struct llama_context * ctx, const uint8_t * mask, int32_t n_layer);

    // Build a one-token graph under the present mask and return the number of blocks that are to be skipped but whose
    // hook the architecture never reached (it builds that block by hand), or a negative llama_layer_skip_status.
    LLAMA_API int32_t llama_layer_skip_check(struct llama_context * ctx);

#ifdef __cplusplus
}
#endif
