#include "layer-probe.h"

#include "llama-context.h"
#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-model.h"

#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#define LAYER_PROBE_VERSION 2

// where one block's values go; the user data of its node
struct layer_probe_slot {
    layer_probe_state * state;
    int64_t             index; // in a token's row
};

struct layer_probe_state {
    llama_layer_probe_kind kind;
    int64_t n_last; // of an ubatch, 0: all
    int64_t n_slot; // values of a token

    // of the output norm and head, LM_HEAD only
    ggml_tensor * norm   = nullptr;
    ggml_tensor * norm_b = nullptr;
    ggml_tensor * head   = nullptr;
    float         eps    = 0.0f;
    bool          is_rms = true;

    std::vector<layer_probe_slot> slots;
    std::vector<float>            values; // [n_tokens][n_slot]
};

// exp for -1e6 < x <= 0: exactly 1 at 0, relative error under 2e-7, 0 where floats run out.
// No comparison of floats, which could trap: the compiler makes vectors of it.
static inline float layer_probe_exp(float x) {
    const float rounded = x*1.44269504f + 12582912.0f; // 1.5*2^23: what is behind the point is rounded away
    const float k = rounded - 12582912.0f;
    const float r = (x - k*0.693359375f) + k*2.12194440e-4f; // log(2) in two parts

    float y = 1.9875691500e-4f;
    y = y*r + 1.3981999507e-3f;
    y = y*r + 8.3334519073e-3f;
    y = y*r + 4.1665795894e-2f;
    y = y*r + 1.6666665459e-1f;
    y = y*r + 5.0000001201e-1f;
    y = y*r*r + r + 1.0f;

    const int32_t whole = (int32_t) k;
    const int32_t bits  = ((whole > -127 ? whole : -127) + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof(power));

    return y*power;
}

// the largest of n >= 1, eight side by side: each comparison waits for the one before
static float layer_probe_max(const float * x, int64_t n) {
    constexpr int64_t width = 8;

    float tops[width];
    std::fill(tops, tops + width, x[0]);
    for (int64_t i = 0; i + width <= n; i += width) {
        for (int64_t j = 0; j < width; ++j) {
            tops[j] = std::max(tops[j], x[i + j]);
        }
    }
    const float rest = *std::max_element(x + (n - 1)/width*width, x + n);

    return std::max(rest, *std::max_element(tops, tops + width));
}

// 1 - H(softmax(x))/log(n) with every x within lowest and highest, a chunk at a time: sums of floats stay short, and
// the scratch space small
static float layer_probe_confidence(const float * x, int64_t n, float lowest, float highest) {
    constexpr int64_t chunk = 256;
    constexpr int64_t width = 8; // sums side by side

    const float top = std::min(std::max(layer_probe_max(x, n), lowest), highest);

    double total  = 0.0; // sum of exp(x - top)
    double moment = 0.0; // sum of (x - top)*exp(x - top)
    float below[chunk];
    float e[chunk];
    for (int64_t begin = 0; begin < n; begin += chunk) {
        const int64_t size = std::min(n - begin, chunk);
        for (int64_t i = 0; i < size; ++i) {
            below[i] = std::min(std::max(x[begin + i], lowest), highest) - top;
        }
        for (int64_t i = 0; i < size; ++i) {
            e[i] = layer_probe_exp(below[i]);
        }

        float totals[width]  = {};
        float moments[width] = {};
        int64_t i = 0;
        for (; i + width <= size; i += width) {
            for (int64_t j = 0; j < width; ++j) {
                totals[j]  += e[i + j];
                moments[j] += below[i + j]*e[i + j];
            }
        }
        for (int64_t j = 0; j < width; ++j) {
            total  += totals[j];
            moment += moments[j];
        }
        for (; i < size; ++i) {
            total  += e[i];
            moment += below[i]*e[i];
        }
    }

    // H = log(total) - moment/total
    const double flat = std::log((double) n);

    return (float) ((flat - std::log(total) + moment/total)/flat);
}

// the node of a block: its tokens are the last ones of the values
static void layer_probe_compute(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const auto * slot = static_cast<const layer_probe_slot *>(userdata);
    const ggml_tensor * src = dst->src[0];
    layer_probe_state * state = slot->state;

    const int64_t n = src->ne[0];
    const int64_t n_tokens = (int64_t) state->values.size()/state->n_slot;
    const int64_t first = n_tokens - src->ne[1];
    if (first < 0) {
        return; // a graph that is run outside of a decode
    }

    // the released code's bounds, so that exp neither vanishes nor overflows in its float32
    const bool  bounded = state->kind == LLAMA_LAYER_PROBE_HIDDEN;
    const float lowest  = bounded ? std::log(std::numeric_limits<float>::min()) : std::numeric_limits<float>::lowest();
    const float highest = bounded ? 88.7f : std::numeric_limits<float>::max();

    for (int64_t i = ith; i < src->ne[1]; i += nth) {
        const auto * x = (const float *) ((const char *) src->data + i*src->nb[1]);
        state->values[(first + i)*state->n_slot + slot->index] = layer_probe_confidence(x, n, lowest, highest);
    }
}

void layer_probe(
         ggml_context  * ctx,
         ggml_cgraph   * gf,
    const llama_cparams & cparams,
         ggml_tensor   * cur,
         int64_t         n_tokens,
         int             il,
         layer_probe_block block) {
    layer_probe_state * state = cparams.layer_probe.get();
    if (state == nullptr || !cparams.layer_skip.empty() || il < 0 || 2*il >= state->n_slot) {
        return;
    }

    // rows chosen before the block: it is not known here which tokens they are
    if (cur->type != GGML_TYPE_F32 || cur->ne[1] != n_tokens || cur->ne[2] != 1 || cur->nb[0] != sizeof(float)) {
        return;
    }

    if (state->n_last > 0 && state->n_last < n_tokens) {
        cur = ggml_view_2d(ctx, cur, cur->ne[0], state->n_last, cur->nb[1], (n_tokens - state->n_last)*cur->nb[1]);
    }

    if (state->kind == LLAMA_LAYER_PROBE_LM_HEAD) {
        if (cur->ne[0] != state->head->ne[0]) {
            return;
        }
        cur = state->is_rms ? ggml_rms_norm(ctx, cur, state->eps) : ggml_norm(ctx, cur, state->eps);
        cur = ggml_mul(ctx, cur, state->norm);
        if (state->norm_b) {
            cur = ggml_add(ctx, cur, state->norm_b);
        }
        cur = ggml_mul_mat(ctx, state->head, cur);
    }

    ggml_tensor * node = ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, &cur, 1, layer_probe_compute, GGML_N_TASKS_MAX,
            &state->slots[2*il + block]);
    ggml_build_forward_expand(gf, node);
}

void layer_probe_begin(const llama_cparams & cparams) {
    if (cparams.layer_probe) {
        cparams.layer_probe->values.clear();
    }
}

void layer_probe_extend(const llama_cparams & cparams, int64_t n_tokens) {
    if (cparams.layer_probe && cparams.layer_skip.empty()) {
        std::vector<float> & values = cparams.layer_probe->values;
        values.resize(values.size() + n_tokens*cparams.layer_probe->n_slot, NAN);
    }
}

void llama_context::set_layer_probe(std::shared_ptr<layer_probe_state> value) {
    // no scheduler reserve: the allocator grows with the first graph that has more nodes
    cparams.layer_probe = std::move(value);
}

int32_t llama_layer_probe_version(void) {
    return LAYER_PROBE_VERSION;
}

int32_t llama_set_layer_probe(llama_context * ctx, int32_t kind, int32_t n_last) {
    if (ctx == nullptr) {
        return LLAMA_LAYER_PROBE_STATUS_NO_CONTEXT;
    }

    if (kind == LLAMA_LAYER_PROBE_NONE) {
        ctx->set_layer_probe(nullptr);
        return LLAMA_LAYER_PROBE_STATUS_OK;
    }

    if (kind != LLAMA_LAYER_PROBE_HIDDEN && kind != LLAMA_LAYER_PROBE_LM_HEAD) {
        return LLAMA_LAYER_PROBE_STATUS_UNKNOWN_KIND;
    }

    const llama_model & model = ctx->get_model();

    if (llama_model_has_encoder(&model)) {
        return LLAMA_LAYER_PROBE_STATUS_ENCODER;
    }

    // a new state every time: graphs of the old one keep it alive, and compare as different
    auto state = std::make_shared<layer_probe_state>();
    state->kind   = (llama_layer_probe_kind) kind;
    state->n_last = std::max(n_last, 0);
    state->n_slot = 2*llama_model_n_layer(&model);

    if (kind == LLAMA_LAYER_PROBE_LM_HEAD) {
        if (model.output == nullptr || model.output_norm == nullptr) {
            return LLAMA_LAYER_PROBE_STATUS_NO_HEAD;
        }
        state->norm   = model.output_norm;
        state->norm_b = model.output_norm_b;
        state->head   = model.output;
        state->is_rms = model.hparams.f_norm_rms_eps > 0.0f;
        state->eps    = state->is_rms ? model.hparams.f_norm_rms_eps : model.hparams.f_norm_eps;
    }

    for (int64_t i = 0; i < state->n_slot; ++i) {
        state->slots.push_back({ state.get(), i });
    }

    ctx->set_layer_probe(std::move(state));

    return LLAMA_LAYER_PROBE_STATUS_OK;
}

int32_t llama_layer_probe_get(llama_context * ctx, float * out, int32_t n_max) {
    if (ctx == nullptr) {
        return LLAMA_LAYER_PROBE_STATUS_NO_CONTEXT;
    }

    const layer_probe_state * state = ctx->get_cparams().layer_probe.get();
    if (state == nullptr) {
        return LLAMA_LAYER_PROBE_STATUS_OFF;
    }

    ctx->synchronize();

    const int64_t n_tokens = (int64_t) state->values.size()/state->n_slot;
    if (n_tokens > n_max) {
        return LLAMA_LAYER_PROBE_STATUS_NO_ROOM;
    }

    std::copy(state->values.begin(), state->values.end(), out);

    return (int32_t) n_tokens;
}
