#pragma once

// The kernels of one x86 instruction set. Included by one source file per set, which is compiled with that set's
// flags and defines SMALL_BATCH_DOT to the name of the type that multiplies bytes; everything here has internal
// linkage, so that no code compiled for a newer CPU can be picked by the linker for an older one.
//
// Interleaved weights are a transposition of the rows' 32-bit words: the words w of 8 rows lie side by side in one
// register. A block whose size is no multiple of 4 (Q6_K, Q5_0, Q8_0, Q4_0) keeps its scale apart, behind all words,
// so that registers stay aligned.

#include "small-batch.h"

#include <immintrin.h>

namespace {

constexpr int MAX_COLS = 16; // columns that share one unpacking of weights
constexpr int MAX_TILE = 4;  // columns whose sums are kept in registers
constexpr int PREFETCH = 4;  // blocks (of 256 k) that weights are asked for ahead: unpacking would wait for memory otherwise

// Keep a sum in its register, added up in the order written: gcc turns a chain of integer additions into a tree, whose
// many products it then spills. Measured: 2.5 times slower without.
inline __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

struct dot_maddubs {
    static constexpr bool wide = false; // sums are int16 until they overflow, then reduced

    static inline __m256i mul(__m256i w, __m256i a) { return _mm256_maddubs_epi16(w, a); }
    static inline __m256i mul_add(__m256i sum, __m256i w, __m256i a) { return in_order(_mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a))); }

    // int32 sums += sums of pairs, times (scale, scale)
    static inline __m256i reduce(__m256i total, __m256i sum, __m256i scale) {
        return in_order(_mm256_add_epi32(total, _mm256_madd_epi16(sum, scale)));
    }
    static inline __m256i reduce_plane(__m256i total, __m256i sum, int plane) {
        return reduce(total, sum, _mm256_set1_epi16((short) (1 << 4*plane)));
    }
};

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
struct dot_vnni {
    static constexpr bool wide = true; // sums are int32

    static inline __m256i mul_add(__m256i sum, __m256i w, __m256i a) {
#if defined(SMALL_BATCH_AVX_VNNI)
        return _mm256_dpbusd_avx_epi32(sum, w, a);
#else
        return _mm256_dpbusd_epi32(sum, w, a);
#endif
    }
    static inline __m256i mul(__m256i w, __m256i a) { return mul_add(_mm256_setzero_si256(), w, a); }

    // the upper half of (scale, scale) is the scale, sign and all
    static inline __m256i reduce(__m256i total, __m256i sum, __m256i scale) {
        return _mm256_add_epi32(total, _mm256_mullo_epi32(sum, _mm256_srai_epi32(scale, 16)));
    }
    static inline __m256i reduce_plane(__m256i total, __m256i sum, int /* there is one */) {
        return _mm256_add_epi32(total, sum);
    }
};
#endif

using dot = SMALL_BATCH_DOT;

inline __m256i load(const void * p) {
    return _mm256_loadu_si256((const __m256i *) p);
}

inline __m256i broadcast4(const void * p) {
    int32_t x;
    __builtin_memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}

inline __m256i low_bits(__m256i x, int mask) {
    return _mm256_and_si256(x, _mm256_set1_epi8((char) mask));
}

// 8 rows of words (half, half) -> two vectors
inline void unpack_half2(__m256i x, __m256 & first, __m256 & second) {
    const __m256 a = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    const __m256 b = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));

    const __m256d f = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    const __m256d s = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xDD));

    first  = _mm256_castpd_ps(_mm256_permute4x64_pd(f, 0xD8));
    second = _mm256_castpd_ps(_mm256_permute4x64_pd(s, 0xD8));
}

inline __m256 load_half8(const void * p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
}

// ---------------------------------------------------------------------------------------------------------------
// activations

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

inline int32_t horizontal_add(__m256i x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 1));
    return _mm_cvtsi128_si32(s);
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

// 32 floats -> 32 bytes, returned as well
inline __m256i act_quantize32(const float * x, __m256 inverse, int8_t * qs) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x),      inverse));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8),  inverse));
    const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), inverse));
    const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), inverse));

    // packing works in 128-bit lanes: the words end up as a0 b0 c0 d0 a1 b1 c1 d1
    const __m256i q = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));

    // what was not finite became -128; a dot product must not overflow on it
    const __m256i bounded = _mm256_max_epi8(q, _mm256_set1_epi8(-127));
    _mm256_storeu_si256((__m256i *) qs, bounded);

    return bounded;
}

void quantize_k(const float * x, small_batch_act_k * act, int64_t n_cols, int64_t ib_first, int64_t ib_last) {
    for (int64_t ib = ib_first; ib < ib_last; ++ib) {
        small_batch_act_k & y = act[ib*n_cols];

        float inverse;
        y.d = act_scale(x + ib*SMALL_BATCH_BLOCK_K, SMALL_BATCH_BLOCK_K, inverse);

        for (int i = 0; i < SMALL_BATCH_BLOCK_K/32; ++i) {
            const __m256i q = act_quantize32(x + ib*SMALL_BATCH_BLOCK_K + 32*i, _mm256_set1_ps(inverse), y.qs + 32*i);

            // sums of 4, then of 16
            const __m256i s4 = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
            __m256i s = _mm256_hadd_epi32(s4, s4);
            s = _mm256_hadd_epi32(s, s);

            y.sum16[2*i]     = (int16_t) _mm256_extract_epi32(s, 0);
            y.sum16[2*i + 1] = (int16_t) _mm256_extract_epi32(s, 4);
            y.sum32[i]       = (int16_t) (y.sum16[2*i] + y.sum16[2*i + 1]);
        }
    }
}

// weights are stored as q = w + zero_point
void quantize_0(const float * x, small_batch_act_0 * act, int64_t n_cols, int64_t ib_first, int64_t ib_last, int32_t zero_point) {
    for (int64_t ib = ib_first; ib < ib_last; ++ib) {
        small_batch_act_0 & y = act[ib*n_cols];

        float inverse;
        y.d = act_scale(x + ib*SMALL_BATCH_BLOCK_0, SMALL_BATCH_BLOCK_0, inverse);

        const __m256i q = act_quantize32(x + ib*SMALL_BATCH_BLOCK_0, _mm256_set1_ps(inverse), y.qs);

        const int32_t sum = horizontal_add(_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1)));

        y.offset = -zero_point*sum;
        y.d_sum  = y.d*(float) sum;
    }
}

void quantize(ggml_type type, const float * x, void * act, int64_t n_cols, int64_t ib_first, int64_t ib_last) {
    int32_t zero_point = 0;
    switch (type) {
        case GGML_TYPE_Q8_0: zero_point = 128; break;
        case GGML_TYPE_Q5_0: zero_point =  16; break;
        case GGML_TYPE_Q4_0: zero_point =   8; break;
        case GGML_TYPE_Q4_1: break;
        default: quantize_k(x, (small_batch_act_k *) act, n_cols, ib_first, ib_last); return;
    }

    quantize_0(x, (small_batch_act_0 *) act, n_cols, ib_first, ib_last, zero_point);
}

// ---------------------------------------------------------------------------------------------------------------
// K-quants: blocks of 256 with integer scales inside

// one block of 8 rows, unpacked
struct tile_k {
    __m256i q[64];     // unsigned weights; q[i] holds k = 4*i .. 4*i + 3
    __m256i scale[16]; // int16 pairs (s, s)
    __m256i min[8];    // int16 pairs of neighbouring sub-blocks
    __m256  d;
    __m256  dmin;
};

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

// the same two, sign-extended
inline __m256i pair_same_signed(__m256i x, int b) {
    return _mm256_srai_epi16(_mm256_slli_epi16(pair_same(x, b), 8), 8);
}

inline __m256i pair_next_signed(__m256i x, int b) {
    return _mm256_srai_epi16(_mm256_slli_epi16(pair_next(x, b), 8), 8);
}

// the 12 bytes of 6-bit scales and mins that Q4_K and Q5_K share
inline void unpack_scales_k4(const uint8_t * w, tile_k & t) {
    const __m256i x0 = load(w);
    const __m256i x1 = load(w + 32);
    const __m256i x2 = load(w + 64);

    const __m256i scale_lo = low_bits(x0, 0x3F);
    const __m256i min_lo   = low_bits(x1, 0x3F);
    const __m256i scale_hi = _mm256_or_si256(low_bits(x2, 0x0F), low_bits(_mm256_srli_epi16(x0, 2), 0x30));
    const __m256i min_hi   = _mm256_or_si256(low_bits(_mm256_srli_epi16(x2, 4), 0x0F), low_bits(_mm256_srli_epi16(x1, 2), 0x30));

    for (int i = 0; i < 4; ++i) {
        t.scale[i]     = pair_same(scale_lo, i);
        t.scale[i + 4] = pair_same(scale_hi, i);
    }
    for (int i = 0; i < 2; ++i) {
        t.min[i]     = pair_next(min_lo, 2*i);
        t.min[i + 2] = pair_next(min_hi, 2*i);
    }
}

struct type_q4_K {
    using tile = tile_k;
    using act  = small_batch_act_k;

    static constexpr int  words     = 36;
    static constexpr int  per_scale = 8; // registers of one sub-block
    static constexpr int  per_sum   = 8; // products that an int16 holds: 8*2*15*127 < 2^15
    static constexpr bool has_min   = true;

    static inline void unpack(const uint8_t * w, const uint8_t *, int, tile_k & t) {
        unpack_half2(load(w), t.d, t.dmin);
        unpack_scales_k4(w + 32, t);

        w += 4*32;
        for (int p = 0; p < 4; ++p) {
            for (int i = 0; i < 8; ++i) {
                const __m256i x = load(w + 32*(8*p + i));

                t.q[16*p + i]     = low_bits(x, 0x0F);
                t.q[16*p + i + 8] = low_bits(_mm256_srli_epi16(x, 4), 0x0F);
            }
        }
    }
};

struct type_q5_K {
    using tile = tile_k;
    using act  = small_batch_act_k;

    static constexpr int  words     = 44;
    static constexpr int  per_scale = 8;
    static constexpr int  per_sum   = 4; // 4*2*31*127 < 2^15
    static constexpr bool has_min   = true;

    static inline void unpack(const uint8_t * w, const uint8_t *, int, tile_k & t) {
        unpack_half2(load(w), t.d, t.dmin);
        unpack_scales_k4(w + 32, t);

        for (int i = 0; i < 8; ++i) {
            __m256i high = load(w + 32*(4 + i)); // bit s of a byte belongs to sub-block s

            for (int p = 0; p < 4; ++p) {
                const __m256i x = load(w + 32*(12 + 8*p + i));

                t.q[16*p + i]     = _mm256_or_si256(low_bits(x, 0x0F), low_bits(_mm256_slli_epi16(high, 4), 0x10));
                t.q[16*p + i + 8] = _mm256_or_si256(low_bits(_mm256_srli_epi16(x, 4), 0x0F), low_bits(_mm256_slli_epi16(high, 3), 0x10));

                high = _mm256_srli_epi16(high, 2);
            }
        }
    }
};

struct type_q6_K {
    using tile = tile_k;
    using act  = small_batch_act_k;

    static constexpr int  words     = 52;
    static constexpr int  per_scale = 4;
    static constexpr int  per_sum   = 2; // 2*2*63*127 < 2^15
    static constexpr bool has_min   = false;

    static inline void unpack(const uint8_t * w, const uint8_t * d, int, tile_k & t) {
        t.d = load_half8(d);

        for (int i = 0; i < 4; ++i) {
            const __m256i x = load(w + 32*(48 + i));

            for (int b = 0; b < 4; ++b) {
                t.scale[4*i + b] = pair_same_signed(x, b);
            }
            t.min[2*i]     = pair_next_signed(x, 0);
            t.min[2*i + 1] = pair_next_signed(x, 2);
        }

        for (int h = 0; h < 2; ++h) {
            for (int i = 0; i < 8; ++i) {
                const __m256i a    = load(w + 32*(16*h + i));
                const __m256i b    = load(w + 32*(16*h + 8 + i));
                const __m256i high = load(w + 32*(32 + 8*h + i));

                t.q[32*h + i]      = _mm256_or_si256(low_bits(a, 0x0F), low_bits(_mm256_slli_epi16(high, 4), 0x30));
                t.q[32*h + 8  + i] = _mm256_or_si256(low_bits(b, 0x0F), low_bits(_mm256_slli_epi16(high, 2), 0x30));
                t.q[32*h + 16 + i] = _mm256_or_si256(low_bits(_mm256_srli_epi16(a, 4), 0x0F), low_bits(high, 0x30));
                t.q[32*h + 24 + i] = _mm256_or_si256(low_bits(_mm256_srli_epi16(b, 4), 0x0F), low_bits(_mm256_srli_epi16(high, 2), 0x30));
            }
        }
    }
};

// add one block of C columns to acc
template <typename T, int C>
inline void dot_tile(const tile_k & t, int, const small_batch_act_k * a, int64_t, __m256 * acc) {
    constexpr int per_sum = dot::wide ? T::per_scale : T::per_sum;

    __m256i total[C];
    for (int c = 0; c < C; ++c) {
        total[c] = _mm256_setzero_si256();
    }

    for (int i = 0; i < 64; i += per_sum) {
        __m256i sum[C];

#pragma GCC unroll 8
        for (int j = 0; j < per_sum; ++j) {
            for (int c = 0; c < C; ++c) {
                const __m256i x = broadcast4(a[c].qs + 4*(i + j));

                sum[c] = j == 0 ? dot::mul(t.q[i], x) : dot::mul_add(sum[c], t.q[i + j], x);
            }
        }

        const __m256i scale = t.scale[i/T::per_scale];

        for (int c = 0; c < C; ++c) {
            total[c] = dot::reduce(total[c], sum[c], scale);
        }
    }

    for (int c = 0; c < C; ++c) {
        constexpr int n_min = T::has_min ? 4 : 8;

        const int16_t * sums = T::has_min ? a[c].sum32 : a[c].sum16;

        __m256i offset = _mm256_madd_epi16(t.min[0], broadcast4(sums));
        for (int j = 1; j < n_min; ++j) {
            offset = in_order(_mm256_add_epi32(offset, _mm256_madd_epi16(t.min[j], broadcast4(sums + 2*j))));
        }

        const __m256 d = _mm256_broadcast_ss(&a[c].d);

        if (T::has_min) {
            acc[c] = _mm256_fmadd_ps (_mm256_cvtepi32_ps(total[c]), _mm256_mul_ps(t.d,    d), acc[c]);
            acc[c] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(offset),   _mm256_mul_ps(t.dmin, d), acc[c]);
        } else {
            // weights are q - 32
            const __m256i x = _mm256_sub_epi32(total[c], _mm256_slli_epi32(offset, 5));

            acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_mul_ps(t.d, d), acc[c]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// blocks of 32 with one scale

constexpr int STEP_0 = 8; // blocks that are unpacked at a time

// a few blocks of 8 rows, unpacked; weights of more bits than an int16 sum bears are split into two planes of 4 bits
template <int n_planes>
struct tile_0 {
    __m256i q[STEP_0][n_planes][8]; // unsigned weights; q[..][..][i] holds k = 4*i .. 4*i + 3
    __m256  d[STEP_0];
    __m256  m[STEP_0];
};

// 4-bit weights: low halves are k 0..15, high halves k 16..31
inline void unpack_nibbles(const uint8_t * w, __m256i * q) {
    for (int i = 0; i < 4; ++i) {
        const __m256i x = load(w + 32*i);

        q[i]     = low_bits(x, 0x0F);
        q[i + 4] = low_bits(_mm256_srli_epi16(x, 4), 0x0F);
    }
}

struct type_q4_0 {
    using tile = tile_0<1>;
    using act  = small_batch_act_0;

    static constexpr int  words    = 4;
    static constexpr int  n_planes = 1;
    static constexpr int  per_sum  = 8;
    static constexpr bool has_min  = false;

    static inline void unpack(const uint8_t * w, const uint8_t * d, int n, tile & t) {
        for (int b = 0; b < n; ++b, w += words*32, d += 16) {
            t.d[b] = load_half8(d);
            unpack_nibbles(w, t.q[b][0]);
        }
    }
};

struct type_q4_1 {
    using tile = tile_0<1>;
    using act  = small_batch_act_0;

    static constexpr int  words    = 5;
    static constexpr int  n_planes = 1;
    static constexpr int  per_sum  = 8;
    static constexpr bool has_min  = true;

    static inline void unpack(const uint8_t * w, const uint8_t *, int n, tile & t) {
        for (int b = 0; b < n; ++b, w += words*32) {
            unpack_half2(load(w), t.d[b], t.m[b]);
            unpack_nibbles(w + 32, t.q[b][0]);
        }
    }
};

struct type_q5_0 {
    using tile = tile_0<1>;
    using act  = small_batch_act_0;

    static constexpr int  words    = 5;
    static constexpr int  n_planes = 1;
    static constexpr int  per_sum  = 4;
    static constexpr bool has_min  = false;

    static inline void unpack(const uint8_t * w, const uint8_t * d, int n, tile & t) {
        for (int b = 0; b < n; ++b, w += words*32, d += 16) {
            __m256i * q = t.q[b][0];

            t.d[b] = load_half8(d);
            unpack_nibbles(w + 32, q);

            const __m256i high = load(w); // bit i of a byte belongs to q[i]
            for (int i = 0; i < 4; ++i) {
                q[i]     = _mm256_or_si256(q[i],     low_bits(_mm256_slli_epi16(high, 4 - i), 0x10));
                q[i + 4] = _mm256_or_si256(q[i + 4], low_bits(_mm256_srli_epi16(high, i),     0x10));
            }
        }
    }
};

struct type_q8_0 {
    static constexpr int  words    = 8;
    static constexpr int  n_planes = dot::wide ? 1 : 2;
    static constexpr int  per_sum  = 8;
    static constexpr bool has_min  = false;

    using tile = tile_0<n_planes>;
    using act  = small_batch_act_0;

    static inline void unpack(const uint8_t * w, const uint8_t * d, int n, tile & t) {
        for (int b = 0; b < n; ++b, w += words*32, d += 16) {
            t.d[b] = load_half8(d);
            for (int i = 0; i < 8; ++i) {
                const __m256i x = _mm256_xor_si256(load(w + 32*i), _mm256_set1_epi8(-128)); // + 128

                t.q[b][0][i]            = n_planes == 1 ? x : low_bits(x, 0x0F);
                t.q[b][n_planes - 1][i] = n_planes == 1 ? x : low_bits(_mm256_srli_epi16(x, 4), 0x0F);
            }
        }
    }
};

// add a few blocks of C columns to acc
template <typename T, int C>
inline void dot_tile(const tile_0<T::n_planes> & t, int n_blocks, const small_batch_act_0 * a, int64_t stride, __m256 * acc) {
    constexpr int per_sum = dot::wide ? 8 : T::per_sum;

    for (int b = 0; b < n_blocks; ++b, a += stride) {
        __m256i total[C];
        for (int c = 0; c < C; ++c) {
            total[c] = _mm256_set1_epi32(a[c].offset);
        }

        for (int p = 0; p < T::n_planes; ++p) {
            for (int i = 0; i < 8; i += per_sum) {
                __m256i sum[C];

#pragma GCC unroll 8
                for (int j = 0; j < per_sum; ++j) {
                    for (int c = 0; c < C; ++c) {
                        const __m256i x = broadcast4(a[c].qs + 4*(i + j));

                        sum[c] = j == 0 ? dot::mul(t.q[b][p][i], x) : dot::mul_add(sum[c], t.q[b][p][i + j], x);
                    }
                }

                for (int c = 0; c < C; ++c) {
                    total[c] = dot::reduce_plane(total[c], sum[c], p);
                }
            }
        }

        for (int c = 0; c < C; ++c) {
            const __m256 d = _mm256_broadcast_ss(&a[c].d);

            acc[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[c]), _mm256_mul_ps(t.d[b], d), acc[c]);
            if (T::has_min) {
                acc[c] = _mm256_fmadd_ps(t.m[b], _mm256_broadcast_ss(&a[c].d_sum), acc[c]);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// driver

inline void store_rows(__m256 x, float * dst, int64_t n) {
    if (n >= SMALL_BATCH_ROWS) {
        _mm256_storeu_ps(dst, x);
        return;
    }

    float rows[SMALL_BATCH_ROWS];
    _mm256_storeu_ps(rows, x);
    for (int64_t i = 0; i < n; ++i) {
        dst[i] = rows[i];
    }
}

template <typename T>
inline void dot_cols(const typename T::tile & t, int n_blocks, const typename T::act * a, int64_t stride, int n_cols, __m256 * acc) {
    int c = 0;
    for (; c + MAX_TILE <= n_cols; c += MAX_TILE) {
        dot_tile<T, MAX_TILE>(t, n_blocks, a + c, stride, acc + c);
    }
    switch (n_cols - c) {
        case 1: dot_tile<T, 1>(t, n_blocks, a + c, stride, acc + c); break;
        case 2: dot_tile<T, 2>(t, n_blocks, a + c, stride, acc + c); break;
        case 3: dot_tile<T, 3>(t, n_blocks, a + c, stride, acc + c); break;
    }
}

// One row group at a time, so that a thread reads its weights as one long stream: two at a time save loads of
// activations, but were 20 to 30 % slower at every width, for want of memory and not of arithmetic.
template <typename T>
inline void mul_mat_group(const small_batch_task & task, int64_t ig, int64_t c_first, int n_cols) {
    constexpr bool is_k    = sizeof(typename T::act) == sizeof(small_batch_act_k);
    constexpr int  block_k = is_k ? SMALL_BATCH_BLOCK_K : SMALL_BATCH_BLOCK_0;
    constexpr int  step    = is_k ? 1 : STEP_0;

    const int64_t n_blocks = task.n_k/block_k;
    const int64_t n_groups = (task.n_rows + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;

    const uint8_t * w = (const uint8_t *) task.weights + ig*n_blocks*T::words*32;
    const uint8_t * d = (const uint8_t *) task.weights + n_groups*n_blocks*T::words*32 + ig*n_blocks*16;

    const auto * a = (const typename T::act *) task.act + c_first;

    __m256 acc[MAX_COLS];
    for (int c = 0; c < n_cols; ++c) {
        acc[c] = _mm256_setzero_ps();
    }

    typename T::tile t;
    for (int64_t ib = 0; ib < n_blocks; ib += step) {
        const int n = n_blocks - ib < step ? (int) (n_blocks - ib) : step;

        // a little further on, maybe in the next row group
        for (int i = 0; i < step*T::words*32; i += 64) {
            _mm_prefetch((const char *) w + (ib + PREFETCH*step)*T::words*32 + i, _MM_HINT_T0);
        }

        T::unpack(w + ib*T::words*32, d + ib*16, n, t);
        dot_cols<T>(t, n, a + ib*task.n_cols, task.n_cols, n_cols, acc);
    }

    const int64_t row = ig*SMALL_BATCH_ROWS;

    for (int c = 0; c < n_cols; ++c) {
        store_rows(acc[c], task.dst + (c_first + c)*task.dst_stride + row, task.n_rows - row);
    }
}

template <typename T>
void mul_mat(const small_batch_task & task, int64_t ig_first, int64_t ig_last) {
    for (int64_t c = 0; c < task.n_cols; c += MAX_COLS) {
        const int n_cols = task.n_cols - c < MAX_COLS ? (int) (task.n_cols - c) : MAX_COLS;

        for (int64_t ig = ig_first; ig < ig_last; ++ig) {
            mul_mat_group<T>(task, ig, c, n_cols);
        }
    }
}

void mul_mat_any(const small_batch_task & task, int64_t ig_first, int64_t ig_last) {
    switch (task.type) {
        case GGML_TYPE_Q4_K: mul_mat<type_q4_K>(task, ig_first, ig_last); break;
        case GGML_TYPE_Q5_K: mul_mat<type_q5_K>(task, ig_first, ig_last); break;
        case GGML_TYPE_Q6_K: mul_mat<type_q6_K>(task, ig_first, ig_last); break;
        case GGML_TYPE_Q8_0: mul_mat<type_q8_0>(task, ig_first, ig_last); break;
        case GGML_TYPE_Q5_0: mul_mat<type_q5_0>(task, ig_first, ig_last); break;
        case GGML_TYPE_Q4_0: mul_mat<type_q4_0>(task, ig_first, ig_last); break;
        case GGML_TYPE_Q4_1: mul_mat<type_q4_1>(task, ig_first, ig_last); break;
        default: break; // small_batch_supports lets nothing else in
    }
}

} // namespace
