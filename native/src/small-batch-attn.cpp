#include "small-batch.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>

// plain attention over a cache of halves; sinks, ALiBi, soft-capping and other caches are upstream's
static bool small_batch_attn_takes(const ggml_tensor * op) {
    const ggml_tensor * q    = op->src[0];
    const ggml_tensor * k    = op->src[1];
    const ggml_tensor * v    = op->src[2];
    const ggml_tensor * mask = op->src[3];

    float params[3]; // scale, max_bias, logit_softcap
    memcpy(params, op->op_params, sizeof(params));

    return small_batch_kernel_get() && op->src[4] == nullptr && params[1] == 0.0f && params[2] == 0.0f &&
        q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 &&
        (mask == nullptr || mask->type == GGML_TYPE_F16) &&
        q->nb[0] == sizeof(float) && k->nb[0] == sizeof(ggml_fp16_t) && v->nb[0] == sizeof(ggml_fp16_t) &&
        k->ne[0] % 8 == 0 && k->ne[0] <= SMALL_BATCH_ATTN_DIM &&
        v->ne[0] % 8 == 0 && v->ne[0] <= SMALL_BATCH_ATTN_DIM &&
        k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3];
}

bool small_batch_attn_compute(const ggml_compute_params * params, ggml_tensor * op) {
    if (!small_batch_attn_takes(op)) {
        return false;
    }

    const ggml_tensor * q    = op->src[0];
    const ggml_tensor * k    = op->src[1];
    const ggml_tensor * v    = op->src[2];
    const ggml_tensor * mask = op->src[3];

    small_batch_attn task;
    memcpy(&task.scale, op->op_params, sizeof(float));
    task.dim_k    = k->ne[0];
    task.dim_v    = v->ne[0];
    task.n_kv     = k->ne[1];
    task.stride_k = k->nb[1];
    task.stride_v = v->nb[1];

    // the rows of a key head: all tokens of all the query heads that share it
    const int64_t n_shared = q->ne[2]/k->ne[2];
    const int64_t n_rows   = n_shared*q->ne[1];
    const int64_t n_heads  = k->ne[2]*q->ne[3];
    const int64_t n_tile   = std::max<int64_t>(1, std::min<int64_t>(SMALL_BATCH_ATTN_ROWS, n_rows*n_heads/params->nth));
    const int64_t n_tiles  = (n_rows + n_tile - 1)/n_tile;

    for (int64_t i = params->ith; i < n_tiles*n_heads; i += params->nth) {
        const int64_t ik2 = i/n_tiles%k->ne[2];
        const int64_t iq3 = i/n_tiles/k->ne[2];
        const int64_t ik3 = iq3/(q->ne[3]/k->ne[3]);

        const int64_t first = i%n_tiles*n_tile;

        task.n_rows = (int) std::min(n_tile, n_rows - first);
        task.k      = (const char *) k->data + ik2*k->nb[2] + ik3*k->nb[3];
        task.v      = (const char *) v->data + ik2*v->nb[2] + ik3*v->nb[3];

        for (int r = 0; r < task.n_rows; ++r) {
            const int64_t iq1 = (first + r)/n_shared;
            const int64_t iq2 = (first + r)%n_shared + ik2*n_shared;

            task.q[r]    = (const float *) ((const char *) q->data + iq1*q->nb[1] + iq2*q->nb[2] + iq3*q->nb[3]);
            task.dst[r]  = (float *) ((char *) op->data + iq2*op->nb[1] + iq1*op->nb[2] + iq3*op->nb[3]);
            task.mask[r] = mask == nullptr ? nullptr : (const uint16_t *) ((const char *) mask->data +
                iq1*mask->nb[1] + iq2%mask->ne[2]*mask->nb[2] + iq3%mask->ne[3]*mask->nb[3]);
        }

        small_batch_kernel_get()->attend(task);
    }

    return true;
}
