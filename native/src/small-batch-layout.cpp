#include "small-batch.h"

#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// How a block of a plain row becomes words of an interleaved group: `n_words` 32-bit words from `offset` on (Q6_K packs
// them anew), and, where the block's size is no multiple of 4, the half-precision scale at `offset_d` apart from them.
struct small_batch_layout {
    size_t block_size;
    size_t offset;
    size_t n_words;
    bool   d_apart;
    size_t offset_d;
};

static bool small_batch_layout_get(ggml_type type, small_batch_layout & layout) {
    switch (type) {
        case GGML_TYPE_Q4_K: layout = { 144, 0, 36, false,   0 }; return true;
        case GGML_TYPE_Q5_K: layout = { 176, 0, 44, false,   0 }; return true;
        case GGML_TYPE_Q6_K: layout = { 210, 0, 52, true,  208 }; return true;
        case GGML_TYPE_Q8_0: layout = {  34, 2,  8, true,    0 }; return true;
        case GGML_TYPE_Q5_0: layout = {  22, 2,  5, true,    0 }; return true;
        case GGML_TYPE_Q4_0: layout = {  18, 2,  4, true,    0 }; return true;
        case GGML_TYPE_Q4_1: layout = {  20, 0,  5, false,   0 }; return true;
        default:             return false;
    }
}

bool small_batch_supports(ggml_type type, int64_t n_k, int64_t n_rows) {
    small_batch_layout layout;
    return small_batch_layout_get(type, layout) && n_k > 0 && n_rows > 0 && n_k % ggml_blck_size(type) == 0;
}

size_t small_batch_weights_size(ggml_type type, int64_t n_k, int64_t n_rows) {
    const int64_t n_groups = (n_rows + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;
    return n_groups*SMALL_BATCH_ROWS*ggml_row_size(type, n_k);
}

size_t small_batch_act_block_size(ggml_type type) {
    return type == GGML_TYPE_Q8_0                       ? sizeof(small_batch_act_8) :
           ggml_blck_size(type) == SMALL_BATCH_BLOCK_K ? sizeof(small_batch_act_k) : sizeof(small_batch_act_0);
}

int64_t small_batch_act_blocks(ggml_type type, int64_t n_k) {
    return n_k/ggml_blck_size(type);
}

size_t small_batch_act_size(ggml_type type, int64_t n_k, int64_t n_cols) {
    return small_batch_act_blocks(type, n_k)*small_batch_act_block_size(type)*n_cols;
}

// Bit i of each output byte b is bit 4*i + b of x: the high bits of 4 neighbouring weights then lie at the same place
// of 4 neighbouring bytes.
static uint32_t small_batch_spread_bits(uint32_t x) {
    uint32_t result = 0;
    for (int b = 0; b < 4; ++b) {
        uint32_t y = (x >> b) & 0x11111111;
        y = (y | (y >>  3)) & 0x03030303;
        y = (y | (y >>  6)) & 0x000F000F;
        y = (y | (y >> 12)) & 0x000000FF;
        result |= y << 8*b;
    }
    return result;
}

// 4 words of 8 rows
static void small_batch_interleave4(const uint8_t * const * rows, size_t offset, uint32_t * words) {
#if defined(__SSE2__)
    for (int h = 0; h < SMALL_BATCH_ROWS; h += 4) {
        const __m128i a = _mm_loadu_si128((const __m128i *) (rows[h]     + offset));
        const __m128i b = _mm_loadu_si128((const __m128i *) (rows[h + 1] + offset));
        const __m128i c = _mm_loadu_si128((const __m128i *) (rows[h + 2] + offset));
        const __m128i d = _mm_loadu_si128((const __m128i *) (rows[h + 3] + offset));

        const __m128i ab_lo = _mm_unpacklo_epi32(a, b);
        const __m128i ab_hi = _mm_unpackhi_epi32(a, b);
        const __m128i cd_lo = _mm_unpacklo_epi32(c, d);
        const __m128i cd_hi = _mm_unpackhi_epi32(c, d);

        _mm_storeu_si128((__m128i *) (words + h),                        _mm_unpacklo_epi64(ab_lo, cd_lo));
        _mm_storeu_si128((__m128i *) (words + h + SMALL_BATCH_ROWS),     _mm_unpackhi_epi64(ab_lo, cd_lo));
        _mm_storeu_si128((__m128i *) (words + h + 2*SMALL_BATCH_ROWS),   _mm_unpacklo_epi64(ab_hi, cd_hi));
        _mm_storeu_si128((__m128i *) (words + h + 3*SMALL_BATCH_ROWS),   _mm_unpackhi_epi64(ab_hi, cd_hi));
    }
#else
    for (int i = 0; i < 4; ++i) {
        for (int r = 0; r < SMALL_BATCH_ROWS; ++r) {
            memcpy(&words[i*SMALL_BATCH_ROWS + r], rows[r] + offset + 4*i, 4);
        }
    }
#endif
}

// The 6-bit weights of 16 k, 4 words, take 3: the fourth's bits go above the others' two by two. What follows them stays.
static void small_batch_pack_q6_K(const uint8_t * block, uint32_t * words) {
    for (int h = 0; h < 2; ++h) {
        uint32_t q[4][8]; // 32 k each
        for (int i = 0; i < 8; ++i) {
            uint32_t a;
            uint32_t b;
            uint32_t high;
            memcpy(&a,    block +       64*h + 4*i,      4);
            memcpy(&b,    block +       64*h + 4*i + 32, 4);
            memcpy(&high, block + 128 + 32*h + 4*i,      4);

            q[0][i] = ( a       & 0x0F0F0F0F) | ((high << 4) & 0x30303030);
            q[1][i] = ( b       & 0x0F0F0F0F) | ((high << 2) & 0x30303030);
            q[2][i] = ((a >> 4) & 0x0F0F0F0F) | ( high       & 0x30303030);
            q[3][i] = ((b >> 4) & 0x0F0F0F0F) | ((high >> 2) & 0x30303030);
        }
        for (int i = 0; i < 8; ++i) {
            const uint32_t * x = &q[i/2][i%2*4];

            words[24*h + 3*i]     = x[0] | (x[3] & 0x30303030) << 2;
            words[24*h + 3*i + 1] = x[1] | (x[3] & 0x0C0C0C0C) << 4;
            words[24*h + 3*i + 2] = x[2] | (x[3] & 0x03030303) << 6;
        }
    }
    memcpy(words + 48, block + 192, 16); // scales
}

void small_batch_interleave(ggml_type type, int64_t n_k, int64_t n_rows, const void * data, void * weights, int64_t ig_first, int64_t ig_last) {
    small_batch_layout layout;
    if (!small_batch_layout_get(type, layout)) {
        return;
    }

    const int64_t n_groups = (n_rows + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;
    const int64_t n_blocks = n_k/ggml_blck_size(type);
    const int64_t per_step = SMALL_BATCH_STEP/ggml_blck_size(type);
    const size_t  row_size = ggml_row_size(type, n_k);

    static const uint8_t no_row[256] = { 0 };

    for (int64_t ig = ig_first; ig < ig_last; ++ig) {
        const int64_t in_panel = ig%SMALL_BATCH_PANEL;
        const int64_t n_panel  = n_groups - (ig - in_panel) < SMALL_BATCH_PANEL ? n_groups - (ig - in_panel) : SMALL_BATCH_PANEL;

        uint8_t * panel = (uint8_t *) weights + (ig - in_panel)*SMALL_BATCH_ROWS*row_size;

        const uint8_t * rows[SMALL_BATCH_ROWS];
        size_t          next[SMALL_BATCH_ROWS];
        for (int64_t r = 0; r < SMALL_BATCH_ROWS; ++r) {
            const bool is_row = ig*SMALL_BATCH_ROWS + r < n_rows;

            rows[r] = is_row ? (const uint8_t *) data + (ig*SMALL_BATCH_ROWS + r)*row_size : no_row;
            next[r] = is_row ? layout.block_size : 0;
        }

        for (int64_t ib_step = 0; ib_step < n_blocks; ib_step += per_step) {
            const int64_t n = n_blocks - ib_step < per_step ? n_blocks - ib_step : per_step;

            // the words of all groups, then, where they are apart, the scales of all groups
            uint8_t  * step  = panel + ib_step*n_panel*SMALL_BATCH_ROWS*layout.block_size;
            uint32_t * words = (uint32_t *) step + in_panel*n*layout.n_words*SMALL_BATCH_ROWS;
            uint16_t * d     = (uint16_t *) ((uint32_t *) step + n_panel*n*layout.n_words*SMALL_BATCH_ROWS) + in_panel*n*SMALL_BATCH_ROWS;

            for (int64_t ib = 0; ib < n; ++ib) {
                uint32_t        packed[SMALL_BATCH_ROWS][52];
                const uint8_t * from[SMALL_BATCH_ROWS];
                for (int64_t r = 0; r < SMALL_BATCH_ROWS; ++r) {
                    from[r] = rows[r] + layout.offset;
                    if (type == GGML_TYPE_Q6_K) {
                        small_batch_pack_q6_K(rows[r], packed[r]);
                        from[r] = (const uint8_t *) packed[r];
                    }
                }

                size_t i = 0;
                for (; i + 4 <= layout.n_words; i += 4) {
                    small_batch_interleave4(from, 4*i, words + i*SMALL_BATCH_ROWS);
                }
                for (; i < layout.n_words; ++i) {
                    for (int64_t r = 0; r < SMALL_BATCH_ROWS; ++r) {
                        memcpy(&words[i*SMALL_BATCH_ROWS + r], from[r] + 4*i, 4);
                    }
                }
                if (type == GGML_TYPE_Q5_0) {
                    for (int64_t r = 0; r < SMALL_BATCH_ROWS; ++r) {
                        words[r] = small_batch_spread_bits(words[r]);
                    }
                }
                words += layout.n_words*SMALL_BATCH_ROWS;

                for (int64_t r = 0; r < SMALL_BATCH_ROWS; ++r) {
                    if (layout.d_apart) {
                        memcpy(d++, rows[r] + layout.offset_d, 2);
                    }
                    rows[r] += next[r];
                }
            }
        }
    }
}

const small_batch_kernel * small_batch_kernel_get() {
    static const small_batch_kernel * kernel = []() -> const small_batch_kernel * {
        const char * choice = getenv("VIASD_KERNELS");
        if (choice && strcmp(choice, "off") == 0) {
            return nullptr;
        }
#if defined(SMALL_BATCH_X86)
        __builtin_cpu_init();
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(SMALL_BATCH_X86_VNNI)
        if (avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")) {
            return &small_batch_kernel_avx512_vnni;
        }
        if (avx2 && __builtin_cpu_supports("avxvnni")) {
            return &small_batch_kernel_avx_vnni;
        }
#endif
        if (avx2) {
            return &small_batch_kernel_avx2;
        }
#endif
        return nullptr;
    }();

    return kernel;
}

const char * viasd_kernel_name(void) {
    return small_batch_kernel_get() ? small_batch_kernel_get()->name : "none";
}
