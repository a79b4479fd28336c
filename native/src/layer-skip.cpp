#include "layer-skip.h"

#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-ext.h"
#include "llama-hparams.h"
#include "llama-model.h"

#include "ggml.h"

#include <vector>

#define LAYER_SKIP_VERSION 1

// flags of the skipped blocks whose hook ran while this thread built a graph, per layer; see llama_layer_skip_check
static thread_local std::vector<uint8_t> layer_skip_reached;

static bool layer_skip_test(const llama_cparams & cparams, int il, uint8_t flag) {
    if (il < 0 || (size_t) il >= cparams.layer_skip.size() || !(cparams.layer_skip[il] & flag)) {
        return false;
    }

    if ((size_t) il < layer_skip_reached.size()) {
        layer_skip_reached[il] |= flag;
    }

    return true;
}

bool layer_skip_attn(const llama_cparams & cparams, int il, ggml_tensor * & q_cur, ggml_tensor * k_cur) {
    if (!layer_skip_test(cparams, il, LLAMA_LAYER_SKIP_ATTN)) {
        return false;
    }

    if (k_cur == nullptr || !(cparams.layer_skip[il] & LLAMA_LAYER_SKIP_KEEP_KV)) {
        return true;
    }

    q_cur = k_cur;

    return false;
}

bool layer_skip_attn_stored(const llama_cparams & cparams, int il) {
    return layer_skip_test(cparams, il, LLAMA_LAYER_SKIP_ATTN);
}

bool layer_skip_ffn(const llama_cparams & cparams, int il) {
    return layer_skip_test(cparams, il, LLAMA_LAYER_SKIP_FFN);
}

ggml_tensor * layer_skip_out(ggml_context * ctx, int64_t n_out, int64_t n_tokens) {
    return ggml_fill(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_out, n_tokens), 0.0f);
}

ggml_tensor * layer_skip_attn_out(
         ggml_context  * ctx,
    const llama_hparams & hparams,
    const ggml_tensor  * wo,
    const ggml_tensor  * v_mla,
    const ggml_tensor  * v_cur,
              int64_t    n_tokens,
                  int    il) {
    if (wo) {
        return layer_skip_out(ctx, wo->ne[1], n_tokens);
    }

    const int64_t n_embd_head_v = v_mla ? v_mla->ne[1] : v_cur ? v_cur->ne[0] : (int64_t) hparams.n_embd_head_v(il);

    return layer_skip_out(ctx, n_embd_head_v*hparams.n_head(il), n_tokens);
}

void llama_context::set_layer_skip(const std::vector<uint8_t> & value) {
    // no scheduler reserve: a graph with blocks left out is never larger than the reserved one
    cparams.layer_skip = value;
}

int32_t llama_layer_skip_version(void) {
    return LAYER_SKIP_VERSION;
}

int32_t llama_set_layer_skip(llama_context * ctx, const uint8_t * mask, int32_t n_layer) {
    if (ctx == nullptr) {
        return LLAMA_LAYER_SKIP_STATUS_NO_CONTEXT;
    }

    if (mask == nullptr) {
        ctx->set_layer_skip({});
        return LLAMA_LAYER_SKIP_STATUS_OK;
    }

    const llama_model * model = &ctx->get_model();

    if (n_layer != llama_model_n_layer(model)) {
        return LLAMA_LAYER_SKIP_STATUS_WRONG_N_LAYER;
    }

    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
        return LLAMA_LAYER_SKIP_STATUS_RECURRENT;
    }

    if (llama_model_has_encoder(model)) {
        return LLAMA_LAYER_SKIP_STATUS_ENCODER;
    }

    int32_t n_attn = 0;
    for (int32_t il = 0; il < n_layer; ++il) {
        if (mask[il] & ~(LLAMA_LAYER_SKIP_ATTN | LLAMA_LAYER_SKIP_FFN | LLAMA_LAYER_SKIP_KEEP_KV)) {
            return LLAMA_LAYER_SKIP_STATUS_UNKNOWN_FLAG;
        }
        n_attn += !(mask[il] & LLAMA_LAYER_SKIP_ATTN);
    }

    if (n_attn == 0) {
        return LLAMA_LAYER_SKIP_STATUS_NO_ATTENTION;
    }

    ctx->set_layer_skip(std::vector<uint8_t>(mask, mask + n_layer));

    return LLAMA_LAYER_SKIP_STATUS_OK;
}

int32_t llama_layer_skip_check(llama_context * ctx) {
    if (ctx == nullptr) {
        return LLAMA_LAYER_SKIP_STATUS_NO_CONTEXT;
    }

    const std::vector<uint8_t> mask = ctx->get_cparams().layer_skip;

    layer_skip_reached.assign(mask.size(), 0);
    const bool built = llama_graph_reserve(ctx, 1, 1, 1) != nullptr;
    const std::vector<uint8_t> reached = std::move(layer_skip_reached);
    layer_skip_reached.clear();

    if (!built) {
        return LLAMA_LAYER_SKIP_STATUS_GRAPH_FAILED;
    }

    int32_t n_missed = 0;
    for (size_t il = 0; il < mask.size(); ++il) {
        const uint8_t missed = mask[il] & ~reached[il];
        n_missed += (missed & LLAMA_LAYER_SKIP_ATTN) != 0;
        n_missed += (missed & LLAMA_LAYER_SKIP_FFN)  != 0;
    }

    return n_missed;
}
