#pragma once

// K-quants: blocks of 256 with integer scales inside. One type per format: `dot` adds the products of one block of 8 rows
// with C columns to acc. Weights go from registers into products, and an activation is broadcast as it is loaded: unpacking
// for several columns into memory first, or broadcasting in memory first, was slower.

#include "small-batch-x86-act.h"

namespace {

// byte b of each word as int16 pair (b, b), zero-extended
inline __m256i pair_same(__m256i x, int b) {
    return _mm256_shuffle_epi8(x, _mm256_add_epi8(
        _mm256_setr_epi8(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128,
                         0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128),
        _mm256_set1_epi8((char) b)));
}

// bytes b and b + 1 of each word as int16 pair, zero-extended
inline __m256i pair_next(__m256i x, int b) {
    return _mm256_shuffle_epi8(x, _mm256_add_epi8(
        _mm256_setr_epi8(0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13, -128,
                         0, -128, 1, -128, 4, -128, 5, -128, 8, -128, 9, -128, 12, -128, 13, -128),
        _mm256_set1_epi8((char) b)));
}

// byte b of each word as int16 pair (b, b), sign-extended
inline __m256i pair_same_signed(__m256i x, int b) {
    const __m256i high = _mm256_shuffle_epi8(x, _mm256_add_epi8(
        _mm256_setr_epi8(-128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12,
                         -128, 0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12),
        _mm256_set1_epi8((char) b)));

    return _mm256_srai_epi16(high, 8);
}

// activations 4*i .. 4*i + 3
inline __m256i broadcast_q(const small_batch_act_k & a, int i) {
    return broadcast4(a.qs + 4*i);
}

// what Q4_K and Q5_K have before their weights: 2 halves and 12 bytes of 6-bit scales and mins
struct scales_k4 {
    __m256i scale[8]; // int16 pairs (s, s)
    __m256i min[4];   // int16 pairs of neighbouring sub-blocks
    __m256  d;
    __m256  dmin;

    explicit inline scales_k4(const uint8_t * w) {
        unpack_half2(load(w), d, dmin);

        const __m256i x0 = load(w + 32);
        const __m256i x1 = load(w + 64);
        const __m256i x2 = load(w + 96);

        const __m256i scale_lo = low_bits(x0, 0x3F);
        const __m256i min_lo   = low_bits(x1, 0x3F);
        const __m256i scale_hi = _mm256_or_si256(low_bits(x2, 0x0F), low_bits(_mm256_srli_epi16(x0, 2), 0x30));
        const __m256i min_hi   = _mm256_or_si256(low_bits(_mm256_srli_epi16(x2, 4), 0x0F), low_bits(_mm256_srli_epi16(x1, 2), 0x30));

        for (int i = 0; i < 4; ++i) {
            scale[i]     = pair_same(scale_lo, i);
            scale[i + 4] = pair_same(scale_hi, i);
        }
        for (int i = 0; i < 2; ++i) {
            min[i]     = pair_next(min_lo, 2*i);
            min[i + 2] = pair_next(min_hi, 2*i);
        }
    }

    template <int C>
    inline void add(const __m256i * total, const small_batch_act_k * a, __m256 * acc) const {
        for (int c = 0; c < C; ++c) {
            const __m256 da = _mm256_broadcast_ss(&a[c].d);

            __m256i offset = _mm256_madd_epi16(min[0], broadcast4(a[c].sum32));
            for (int i = 1; i < 4; ++i) {
                offset = in_order(_mm256_add_epi32(offset, _mm256_madd_epi16(min[i], broadcast4(a[c].sum32 + 2*i))));
            }

            acc[c] = _mm256_fmadd_ps (_mm256_cvtepi32_ps(total[c]), _mm256_mul_ps(d,    da), acc[c]);
            acc[c] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(offset),   _mm256_mul_ps(dmin, da), acc[c]);
        }
    }
};

struct type_k {
    using act = small_batch_act_k;

    static constexpr int block_k = SMALL_BATCH_BLOCK_K;
};

struct type_q4_K : type_k {
    static constexpr int  words   = 36;
    static constexpr bool d_apart = false;

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t *, int, int64_t, const small_batch_act_k * a, __m256 * acc) {
        const scales_k4 scales(w);

        __m256i total[C];
        for (int c = 0; c < C; ++c) {
            total[c] = _mm256_setzero_si256();
        }

        w += 4*32;
        for (int p = 0; p < 4; ++p, w += 8*32) {
            __m256i lo[C]; // 8*2*15*127 < 2^15
            __m256i hi[C];

#pragma GCC unroll 8
            for (int i = 0; i < 8; ++i) {
                const __m256i x   = load(w + 32*i);
                const __m256i xlo = low_bits(x, 0x0F);
                const __m256i xhi = low_bits(_mm256_srli_epi16(x, 4), 0x0F);

                for (int c = 0; c < C; ++c) {
                    lo[c] = i == 0 ? dot_op::mul(xlo, broadcast_q(a[c], 16*p))     : dot_op::mul_add(lo[c], xlo, broadcast_q(a[c], 16*p + i));
                }
                for (int c = 0; c < C; ++c) {
                    hi[c] = i == 0 ? dot_op::mul(xhi, broadcast_q(a[c], 16*p + 8)) : dot_op::mul_add(hi[c], xhi, broadcast_q(a[c], 16*p + 8 + i));
                }
            }

            for (int c = 0; c < C; ++c) {
                total[c] = dot_op::reduce(total[c], lo[c], scales.scale[2*p]);
                total[c] = dot_op::reduce(total[c], hi[c], scales.scale[2*p + 1]);
            }
        }

        scales.add<C>(total, a, acc);
    }
};

struct type_q5_K : type_k {
    static constexpr int  words   = 44;
    static constexpr bool d_apart = false;

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t *, int, int64_t, const small_batch_act_k * a, __m256 * acc) {
        constexpr int per_sum = dot_op::wide ? 8 : 4; // 4*2*31*127 < 2^15

        const scales_k4 scales(w);

        __m256i total[C];
        for (int c = 0; c < C; ++c) {
            total[c] = _mm256_setzero_si256();
        }

#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p) {
            for (int j = 0; j < 8; j += per_sum) {
                __m256i lo[C];
                __m256i hi[C];

#pragma GCC unroll 8
                for (int i = j; i < j + per_sum; ++i) {
                    const __m256i high = _mm256_srli_epi16(load(w + 32*(4 + i)), 2*p); // bit s of a byte belongs to sub-block s

                    const __m256i x   = load(w + 32*(12 + 8*p + i));
                    const __m256i xlo = _mm256_or_si256(low_bits(x, 0x0F), low_bits(_mm256_slli_epi16(high, 4), 0x10));
                    const __m256i xhi = _mm256_or_si256(low_bits(_mm256_srli_epi16(x, 4), 0x0F), low_bits(_mm256_slli_epi16(high, 3), 0x10));

                    for (int c = 0; c < C; ++c) {
                        lo[c] = i == j ? dot_op::mul(xlo, broadcast_q(a[c], 16*p + i))     : dot_op::mul_add(lo[c], xlo, broadcast_q(a[c], 16*p + i));
                        hi[c] = i == j ? dot_op::mul(xhi, broadcast_q(a[c], 16*p + 8 + i)) : dot_op::mul_add(hi[c], xhi, broadcast_q(a[c], 16*p + 8 + i));
                    }
                }

                for (int c = 0; c < C; ++c) {
                    total[c] = dot_op::reduce(total[c], lo[c], scales.scale[2*p]);
                    total[c] = dot_op::reduce(total[c], hi[c], scales.scale[2*p + 1]);
                }
            }
        }

        scales.add<C>(total, a, acc);
    }
};

// interleaving puts the 6-bit weights of 16 k into 3 words: q0, q1 and q2 with two bits each of q3 above them
struct type_q6_K : type_k {
    static constexpr int  words   = 52;
    static constexpr bool d_apart = true;

    template <int C>
    static inline void dot(const uint8_t * w, const uint8_t * d, int, int64_t, const small_batch_act_k * a, __m256 * acc) {
        __m256i total[C];
        for (int c = 0; c < C; ++c) {
            total[c] = _mm256_setzero_si256();
        }

        for (int s = 0; s < 4; ++s) {
            const __m256i scales = load(w + 32*(48 - 11*s));

#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j, w += 3*32) {
                const __m256i x0 = load(w);
                const __m256i x1 = load(w + 32);
                const __m256i x2 = load(w + 64);

                const __m256i q[4] = {
                    low_bits(x0, 0x3F),
                    low_bits(x1, 0x3F),
                    low_bits(x2, 0x3F),
                    _mm256_or_si256(_mm256_or_si256(
                        low_bits(_mm256_srli_epi16(x0, 2), 0x30),
                        low_bits(_mm256_srli_epi16(x1, 4), 0x0C)),
                        low_bits(_mm256_srli_epi16(x2, 6), 0x03)),
                };
                const __m256i scale = pair_same_signed(scales, j);

                for (int c = 0; c < C; ++c) {
                    // weights are q - 32: started from -32 times its activations, a sum stays below 4*2*32*127 < 2^15
                    __m256i sum = dot_op::start(broadcast4(a[c].offset + 4*s + j));
#pragma GCC unroll 4
                    for (int i = 0; i < 4; ++i) {
                        sum = dot_op::mul_add(sum, q[i], broadcast_q(a[c], 16*s + 4*j + i));
                    }
                    total[c] = dot_op::reduce(total[c], sum, scale);
                }
            }
        }

        const __m256 scale = load_half8(d);
        for (int c = 0; c < C; ++c) {
            acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[c]), _mm256_mul_ps(scale, _mm256_broadcast_ss(&a[c].d)), acc[c]);
        }
    }
};

} // namespace
