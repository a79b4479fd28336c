#pragma once

// What the kernels of every x86 instruction set share. Each set has a source file of its own, which is compiled with
// the set's flags and defines SMALL_BATCH_DOT to the name of the type that multiplies bytes; everything here has
// internal linkage, so that no code compiled for a newer CPU can be picked by the linker for an older one.

#include "small-batch.h"

#include <immintrin.h>

namespace {

// bytes of 16-bit words as int16
inline __m256i even_bytes(__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
inline __m256i odd_bytes (__m256i x) { return _mm256_srai_epi16(x, 8); }

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

    // what a sum starts from, of a pair of int16
    static inline __m256i start(__m256i pair) { return pair; }

    // int32 sums += sums of pairs, times (scale, scale)
    static inline __m256i reduce(__m256i total, __m256i sum, __m256i scale) {
        return in_order(_mm256_add_epi32(total, _mm256_madd_epi16(sum, scale)));
    }
    static inline __m256i reduce(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

#if defined(SMALL_BATCH_EMULATE_VNNI) || defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
struct dot_vnni {
    static constexpr bool wide = true; // sums are int32

    static inline __m256i mul_add(__m256i sum, __m256i w, __m256i a) {
#if defined(SMALL_BATCH_EMULATE_VNNI)
        // for the tests: the same sums without the instruction
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xFF)), even_bytes(a));
        const __m256i odd  = _mm256_madd_epi16(_mm256_srli_epi16(w, 8),                      odd_bytes(a));
        return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
#elif defined(SMALL_BATCH_AVX_VNNI)
        return _mm256_dpbusd_avx_epi32(sum, w, a);
#else
        return _mm256_dpbusd_epi32(sum, w, a);
#endif
    }
    static inline __m256i mul(__m256i w, __m256i a) { return mul_add(_mm256_setzero_si256(), w, a); }

    static inline __m256i start(__m256i pair) { return _mm256_madd_epi16(pair, _mm256_set1_epi16(1)); }

    // the upper half of (scale, scale) is the scale, sign and all
    static inline __m256i reduce(__m256i total, __m256i sum, __m256i scale) {
        return _mm256_add_epi32(total, _mm256_mullo_epi32(sum, _mm256_srai_epi32(scale, 16)));
    }
    static inline __m256i reduce(__m256i sum) { return sum; }
};
#endif

using dot_op = SMALL_BATCH_DOT;

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

} // namespace
