#pragma once

// Attention of a few rows that share the keys and values of one head. The cache is walked in blocks at fixed positions,
// each converted to float once for all rows, and a row sees the same operations whatever the other rows are: the result
// does not depend on the batch, unlike upstream's, which has three paths with different sums.

#include "small-batch-x86.h"

namespace {

constexpr int ATTN_BLOCK = 32; // cache positions

// e^x for x <= 0; relative error 2e-7
inline __m256 exp_negative(__m256 x) {
    const __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_GE_OQ); // below, and for -inf and NaN: 0
    const __m256 n    = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);

    __m256 p = _mm256_set1_ps(1.0f/720.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f/120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f/24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f/6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));

    const __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);

    return _mm256_and_ps(keep, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e)));
}

// the sums of 8 vectors, as one
inline __m256 horizontal_add8(const __m256 * x) {
    const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));

    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

// n rows of halves -> floats; the rest of the block becomes zeros
inline void attn_convert(const char * from, size_t stride, int64_t n, int64_t dim, float * to) {
    for (int64_t j = 0; j < ATTN_BLOCK; ++j) {
        for (int64_t i = 0; i < dim; i += 8) {
            _mm256_store_ps(to + j*dim + i, j < n ? load_half8(from + j*stride + 2*i) : _mm256_setzero_ps());
        }
    }
}

// the mask of a block as floats, -inf behind its end; true: something in it is visible
inline bool attn_mask(const uint16_t * mask, int64_t n, float * to) {
    uint16_t half[ATTN_BLOCK];
    for (int64_t j = 0; j < ATTN_BLOCK; ++j) {
        half[j] = j >= n ? 0xFC00 : mask ? mask[j] : 0;
    }

    int hidden = -1;
    for (int j = 0; j < ATTN_BLOCK; j += 8) {
        const __m256 x = load_half8(half + j);

        _mm256_store_ps(to + j, x);
        hidden &= _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-__builtin_inff()), _CMP_EQ_OQ)) | ~0xFF;
    }

    return hidden != -1;
}

// weights of the block's positions, not yet normalised; returns what earlier sums must be multiplied by
inline float attn_weights(const float * q, const float * k, int64_t dim, float scale, float * p, float & max, float & sum) {
    __m256 s[ATTN_BLOCK/8];
    __m256 top = _mm256_set1_ps(max);

    for (int j = 0; j < ATTN_BLOCK/8; ++j) {
        __m256 dot[8];
        for (int i = 0; i < 8; ++i) {
            dot[i] = _mm256_setzero_ps();
        }
        for (int64_t d = 0; d < dim; d += 8) {
            const __m256 x = _mm256_loadu_ps(q + d);
#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                dot[i] = _mm256_fmadd_ps(x, _mm256_load_ps(k + (8*j + i)*dim + d), dot[i]);
            }
        }
        s[j] = _mm256_fmadd_ps(horizontal_add8(dot), _mm256_set1_ps(scale), _mm256_load_ps(p + 8*j));
        top  = _mm256_max_ps(top, s[j]);
    }

    const float max_new = horizontal_max(top);
    const float factor  = _mm256_cvtss_f32(exp_negative(_mm256_set1_ps(max - max_new)));

    __m256 total = _mm256_setzero_ps();
    for (int j = 0; j < ATTN_BLOCK/8; ++j) {
        s[j]  = exp_negative(_mm256_sub_ps(s[j], _mm256_set1_ps(max_new)));
        total = _mm256_add_ps(total, s[j]);
        _mm256_store_ps(p + 8*j, s[j]);
    }

    max = max_new;
    sum = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(sum), _mm_set_ss(factor), _mm_set_ss(horizontal_add(total))));

    return factor;
}

// out[0 .. 8*N) = out*factor + p*v
template <int N>
inline void attn_values(const float * v, int64_t dim, const float * p, float factor, float * out) {
    __m256 sum[N];
    for (int i = 0; i < N; ++i) {
        sum[i] = _mm256_mul_ps(_mm256_load_ps(out + 8*i), _mm256_set1_ps(factor));
    }
    for (int j = 0; j < ATTN_BLOCK; ++j) {
        const __m256 x = _mm256_broadcast_ss(p + j);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            sum[i] = _mm256_fmadd_ps(x, _mm256_load_ps(v + j*dim + 8*i), sum[i]);
        }
    }
    for (int i = 0; i < N; ++i) {
        _mm256_store_ps(out + 8*i, sum[i]);
    }
}

void attend(const small_batch_attn & task) {
    alignas(32) float block[ATTN_BLOCK*SMALL_BATCH_ATTN_DIM]; // keys, then values
    alignas(32) float out[SMALL_BATCH_ATTN_ROWS][SMALL_BATCH_ATTN_DIM];
    alignas(32) float p[SMALL_BATCH_ATTN_ROWS][ATTN_BLOCK];   // mask, then weights
    float max[SMALL_BATCH_ATTN_ROWS];
    float sum[SMALL_BATCH_ATTN_ROWS];
    float factor[SMALL_BATCH_ATTN_ROWS];
    bool  visible[SMALL_BATCH_ATTN_ROWS];

    for (int r = 0; r < task.n_rows; ++r) {
        max[r] = -__builtin_inff();
        sum[r] = 0.0f;
        __builtin_memset(out[r], 0, task.dim_v*sizeof(float));
    }

    for (int64_t j = 0; j < task.n_kv; j += ATTN_BLOCK) {
        const int64_t n = task.n_kv - j < ATTN_BLOCK ? task.n_kv - j : ATTN_BLOCK;

        bool any = false;
        for (int r = 0; r < task.n_rows; ++r) {
            visible[r] = attn_mask(task.mask[r] ? task.mask[r] + j : nullptr, n, p[r]);
            any        = any || visible[r];
        }
        if (!any) {
            continue;
        }

        attn_convert(task.k + j*task.stride_k, task.stride_k, n, task.dim_k, block);
        for (int r = 0; r < task.n_rows; ++r) {
            if (visible[r]) {
                factor[r] = attn_weights(task.q[r], block, task.dim_k, task.scale, p[r], max[r], sum[r]);
            }
        }

        attn_convert(task.v + j*task.stride_v, task.stride_v, n, task.dim_v, block);
        for (int r = 0; r < task.n_rows; ++r) {
            if (!visible[r]) {
                continue;
            }
            int64_t d = 0;
            for (; d + 64 <= task.dim_v; d += 64) {
                attn_values<8>(block + d, task.dim_v, p[r], factor[r], out[r] + d);
            }
            for (; d < task.dim_v; d += 8) {
                attn_values<1>(block + d, task.dim_v, p[r], factor[r], out[r] + d);
            }
        }
    }

    for (int r = 0; r < task.n_rows; ++r) {
        const __m256 inverse = _mm256_set1_ps(sum[r] == 0.0f ? 0.0f : 1.0f/sum[r]);

        for (int64_t d = 0; d < task.dim_v; d += 8) {
            _mm256_storeu_ps(task.dst[r] + d, _mm256_mul_ps(_mm256_load_ps(out[r] + d), inverse));
        }
    }
}

} // namespace
