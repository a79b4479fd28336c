#pragma once

// Blocks of 32 with one scale. One type per format: `dot` adds the products of n blocks of 8 rows with C columns to acc.
// The activations of a column are `stride` blocks apart.

#include "small-batch-x86-act.h"

namespace {

struct type_0 {
    using act = small_batch_act_0;

    static constexpr int block_k = SMALL_BATCH_BLOCK_0;
};

// types of 4 and 5 bits: T::high adds the fifth to word i of the low halves (k 0..15) or high ones (k 16..31)
template <typename T, int C>
inline void dot_nibbles(const uint8_t * w, const uint8_t * d, int n, int64_t stride, const small_batch_act_0 * a, __m256 * acc) {
    for (int b = 0; b < n; ++b, w += T::words*32, d += 16, a += stride) {
        __m256i sum[C]; // started from -zero_point times its activations: below 8*2*16*127 < 2^15
        for (int c = 0; c < C; ++c) {
            sum[c] = dot_op::start(broadcast4(&a[c].offset));
        }

#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256i x   = load(w + 32*(T::words - 4 + i));
            const __m256i xlo = T::with_high(low_bits(x, 0x0F),                       w, i);
            const __m256i xhi = T::with_high(low_bits(_mm256_srli_epi16(x, 4), 0x0F), w, i + 4);

            for (int c = 0; c < C; ++c) {
                sum[c] = dot_op::mul_add(sum[c], xlo, broadcast4(a[c].qs + 4*i));
            }
            for (int c = 0; c < C; ++c) {
                sum[c] = dot_op::mul_add(sum[c], xhi, broadcast4(a[c].qs + 4*i + 16));
            }
        }

        __m256 scale;
        __m256 min;
        T::load_scale(w, d, scale, min);

        for (int c = 0; c < C; ++c) {
            acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_op::reduce(sum[c])), _mm256_mul_ps(scale, _mm256_broadcast_ss(&a[c].d)), acc[c]);
            if (T::has_min) {
                acc[c] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(&a[c].d_sum), acc[c]);
            }
        }
    }
}

struct type_q4_0 : type_0 {
    static constexpr int  words   = 4;
    static constexpr bool d_apart = true;
    static constexpr bool has_min = false;

    static inline __m256i with_high(__m256i x, const uint8_t *, int) { return x; }

    static inline void load_scale(const uint8_t *, const uint8_t * d, __m256 & scale, __m256 &) { scale = load_half8(d); }

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t * d, int n, int64_t stride, const act * a, __m256 * acc) {
        dot_nibbles<type_q4_0, C>(w, d, n, stride, a, acc);
    }
};

struct type_q4_1 : type_0 {
    static constexpr int  words   = 5;
    static constexpr bool d_apart = false;
    static constexpr bool has_min = true;

    static inline __m256i with_high(__m256i x, const uint8_t *, int) { return x; }

    static inline void load_scale(const uint8_t * w, const uint8_t *, __m256 & scale, __m256 & min) { unpack_half2(load(w), scale, min); }

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t * d, int n, int64_t stride, const act * a, __m256 * acc) {
        dot_nibbles<type_q4_1, C>(w, d, n, stride, a, acc);
    }
};

struct type_q5_0 : type_0 {
    static constexpr int  words   = 5;
    static constexpr bool d_apart = true;
    static constexpr bool has_min = false;

    // bit i of a byte of the first word belongs to word i
    static inline __m256i with_high(__m256i x, const uint8_t * w, int i) {
        const __m256i high = load(w);
        return _mm256_or_si256(x, low_bits(i < 4 ? _mm256_slli_epi16(high, 4 - i) : _mm256_srli_epi16(high, i - 4), 0x10));
    }

    static inline void load_scale(const uint8_t *, const uint8_t * d, __m256 & scale, __m256 &) { scale = load_half8(d); }

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t * d, int n, int64_t stride, const act * a, __m256 * acc) {
        dot_nibbles<type_q5_0, C>(w, d, n, stride, a, acc);
    }
};

// a pair of products of two bytes does not fit an int16: both become int16 before, even and odd bytes apart
struct type_q8_0 : type_0 {
    using act = small_batch_act_8;

    static constexpr int  words   = 8;
    static constexpr bool d_apart = true;

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t * d, int n, int64_t stride, const act * a, __m256 * acc) {
        for (int b = 0; b < n; ++b, w += words*32, d += 16, a += stride) {
            __m256i total[C];
            for (int c = 0; c < C; ++c) {
                total[c] = _mm256_setzero_si256();
            }

#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                const __m256i x    = load(w + 32*i);
                const __m256i even = even_bytes(x);
                const __m256i odd  = odd_bytes(x);

                for (int c = 0; c < C; ++c) {
                    total[c] = in_order(_mm256_add_epi32(total[c], _mm256_madd_epi16(even, broadcast4(a[c].even + 2*i))));
                }
                for (int c = 0; c < C; ++c) {
                    total[c] = in_order(_mm256_add_epi32(total[c], _mm256_madd_epi16(odd, broadcast4(a[c].odd + 2*i))));
                }
            }

            const __m256 scale = load_half8(d);
            for (int c = 0; c < C; ++c) {
                acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[c]), _mm256_mul_ps(scale, _mm256_broadcast_ss(&a[c].d)), acc[c]);
            }
        }
    }
};

} // namespace
