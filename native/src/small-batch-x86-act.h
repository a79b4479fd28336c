#pragma once

// Activations, quantised to int8 once per product.

#include "small-batch-x86.h"

namespace {

inline float horizontal_max(__m256 x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

inline float horizontal_add(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

// sums of every other of 16 neighbouring pairs' sums: (k = 0 1 4 5 .., k = 2 3 6 7 ..) as int16 in each 32-bit word of
// the lower half for the first 16 bytes, of the upper half for the others
inline __m256i pair_sums16(__m256i q) {
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4E));
    return _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xB1));
}

// both of a pair
inline int32_t pair_sum(int32_t pair) {
    return (int16_t) pair + (pair >> 16);
}

// the pair times -factor
inline int32_t pair_offset(int32_t pair, int32_t factor) {
    return ((-factor*(int16_t) pair) & 0xFFFF) | (int32_t) ((uint32_t) (-factor*(pair >> 16)) << 16);
}

// the scale that takes n floats to -127..127, and its inverse; a block with a number that is not finite gets NaN, so
// that the result says so
inline float act_scale(const float * x, int n, float & inverse) {
    __m256 max    = _mm256_setzero_ps();
    __m256 finite = _mm256_setzero_ps(); // x*0 is 0 or NaN

    for (int i = 0; i < n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);

        max    = _mm256_max_ps(max, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v));
        finite = _mm256_fmadd_ps(v, _mm256_setzero_ps(), finite);
    }

    const float m = horizontal_max(max);

    // below this the inverse overflows, and no sum would see the block anyway
    inverse = m > 1e-30f ? 127.0f/m : 0.0f;

    return (m > 1e-30f ? m/127.0f : 0.0f) + horizontal_add(finite);
}

// 32 floats -> 32 bytes
inline __m256i act_quantize32(const float * x, __m256 inverse) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x),      inverse));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8),  inverse));
    const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), inverse));
    const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), inverse));

    // packing works in 128-bit lanes: the words end up as a0 b0 c0 d0 a1 b1 c1 d1
    const __m256i q = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));

    // what was not finite became -128; a dot product must not overflow on it
    return _mm256_max_epi8(q, _mm256_set1_epi8(-127));
}

void quantize_k(const float * x, small_batch_act_k * act, int64_t n_cols, int64_t ib_first, int64_t ib_last) {
    for (int64_t ib = ib_first; ib < ib_last; ++ib) {
        small_batch_act_k & y = act[ib*n_cols];

        float inverse;
        y.d = act_scale(x + ib*SMALL_BATCH_BLOCK_K, SMALL_BATCH_BLOCK_K, inverse);

        for (int i = 0; i < SMALL_BATCH_BLOCK_K/32; ++i) {
            const __m256i q = act_quantize32(x + ib*SMALL_BATCH_BLOCK_K + 32*i, _mm256_set1_ps(inverse));
            _mm256_storeu_si256((__m256i *) (y.qs + 32*i), q);

            const __m256i pairs = pair_sums16(q);
            const int32_t a = _mm256_extract_epi32(pairs, 0);
            const int32_t b = _mm256_extract_epi32(pairs, 4);

            y.sum32[i] = (int16_t) (pair_sum(a) + pair_sum(b));

            y.offset[2*i]     = pair_offset(a, 32);
            y.offset[2*i + 1] = pair_offset(b, 32);
        }
    }
}

// weights are stored as q = w + zero_point
void quantize_0(const float * x, small_batch_act_0 * act, int64_t n_cols, int64_t ib_first, int64_t ib_last, int32_t zero_point) {
    for (int64_t ib = ib_first; ib < ib_last; ++ib) {
        small_batch_act_0 & y = act[ib*n_cols];

        float inverse;
        y.d = act_scale(x + ib*SMALL_BATCH_BLOCK_0, SMALL_BATCH_BLOCK_0, inverse);

        const __m256i q = act_quantize32(x + ib*SMALL_BATCH_BLOCK_0, _mm256_set1_ps(inverse));
        _mm256_storeu_si256((__m256i *) y.qs, q);

        __m256i pairs = pair_sums16(q);
        pairs = _mm256_add_epi16(pairs, _mm256_permute4x64_epi64(pairs, 0x4E));
        const int32_t pair = _mm256_extract_epi32(pairs, 0);

        y.offset = pair_offset(pair, zero_point);
        y.d_sum  = y.d*(float) pair_sum(pair);
    }
}

void quantize_8(const float * x, small_batch_act_8 * act, int64_t n_cols, int64_t ib_first, int64_t ib_last) {
    for (int64_t ib = ib_first; ib < ib_last; ++ib) {
        small_batch_act_8 & y = act[ib*n_cols];

        float inverse;
        y.d = act_scale(x + ib*SMALL_BATCH_BLOCK_0, SMALL_BATCH_BLOCK_0, inverse);

        const __m256i q = act_quantize32(x + ib*SMALL_BATCH_BLOCK_0, _mm256_set1_ps(inverse));

        _mm256_storeu_si256((__m256i *) y.even, even_bytes(q));
        _mm256_storeu_si256((__m256i *) y.odd,  odd_bytes(q));
    }
}

void quantize(ggml_type type, const float * x, void * act, int64_t n_cols, int64_t ib_first, int64_t ib_last) {
    switch (type) {
        case GGML_TYPE_Q4_0: quantize_0(x, (small_batch_act_0 *) act, n_cols, ib_first, ib_last,  8); break;
        case GGML_TYPE_Q4_1: quantize_0(x, (small_batch_act_0 *) act, n_cols, ib_first, ib_last,  0); break;
        case GGML_TYPE_Q5_0: quantize_0(x, (small_batch_act_0 *) act, n_cols, ib_first, ib_last, 16); break;
        case GGML_TYPE_Q8_0: quantize_8(x, (small_batch_act_8 *) act, n_cols, ib_first, ib_last); break;
        default:             quantize_k(x, (small_batch_act_k *) act, n_cols, ib_first, ib_last); break;
    }
}

} // namespace
