#pragma once

// The product of a panel of weights with up to MAX_COLS columns, and the kernel's entry points.

#include "small-batch-x86-0.h"
#include "small-batch-x86-k.h"

namespace {

constexpr int MAX_COLS = 16; // columns that share one reading of weights
constexpr int MAX_TILE = 4;  // columns whose sums are kept in registers

template <typename T>
constexpr int block_size = T::words*4 + (T::d_apart ? 2 : 0); // bytes of a row's block

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

// one step of k: the weights of some groups of a panel, next to each other
struct panel_step {
    const uint8_t * w;
    const uint8_t * d;
    int             n_groups;
    int             n_blocks;
    size_t          size; // bytes to the next step of the same groups
};

template <typename T, int C>
inline void dot_panel(const panel_step & s, const typename T::act * a, int64_t stride, bool prefetch, __m256 * acc) {
    for (int g = 0; g < s.n_groups; ++g) {
        const uint8_t * w = s.w + g*s.n_blocks*T::words*32;

        if (prefetch) {
            // a step ahead: these products would wait for memory otherwise
            for (int i = 0; i < s.n_blocks*block_size<T>*SMALL_BATCH_ROWS; i += 64) {
                _mm_prefetch((const char *) w + s.size + i, _MM_HINT_T0);
            }
        }

        T::template dot<C>(w, s.d + g*s.n_blocks*16, s.n_blocks, stride, a, acc + g*MAX_COLS);
    }
}

template <typename T>
inline void mul_mat_panel(const small_batch_task & task, int64_t ig, int n_groups, int64_t c_first, int n_cols) {
    const int64_t n_blocks = task.n_k/T::block_k;
    const int64_t n_all    = (task.n_rows + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;
    const int64_t in_panel = ig%SMALL_BATCH_PANEL;
    const int64_t n_panel  = n_all - (ig - in_panel) < SMALL_BATCH_PANEL ? n_all - (ig - in_panel) : SMALL_BATCH_PANEL;

    const uint8_t * weights = (const uint8_t *) task.weights + (ig - in_panel)*SMALL_BATCH_ROWS*n_blocks*block_size<T>;
    const auto    * act     = (const typename T::act *) task.act + c_first;

    __m256 acc[SMALL_BATCH_PANEL*MAX_COLS];
    for (int g = 0; g < n_groups; ++g) {
        for (int c = 0; c < n_cols; ++c) {
            acc[g*MAX_COLS + c] = _mm256_setzero_ps();
        }
    }

    constexpr int per_step = SMALL_BATCH_STEP/T::block_k;

    for (int64_t ib = 0; ib < n_blocks; ib += per_step) {
        panel_step s;
        s.n_blocks = n_blocks - ib < per_step ? (int) (n_blocks - ib) : per_step;
        s.n_groups = n_groups;
        s.size     = n_panel*s.n_blocks*block_size<T>*SMALL_BATCH_ROWS;

        const uint8_t * w = weights + ib*n_panel*SMALL_BATCH_ROWS*block_size<T>;
        s.w = w + in_panel*s.n_blocks*T::words*32;
        s.d = w + n_panel*s.n_blocks*T::words*32 + in_panel*s.n_blocks*16;

        for (int c = 0; c < n_cols; c += MAX_TILE) {
            const auto * a = act + ib*task.n_cols + c;
            switch (n_cols - c) {
                case 1:  dot_panel<T, 1>(s, a, task.n_cols, c == 0, acc + c); break;
                case 2:  dot_panel<T, 2>(s, a, task.n_cols, c == 0, acc + c); break;
                case 3:  dot_panel<T, 3>(s, a, task.n_cols, c == 0, acc + c); break;
                default: dot_panel<T, 4>(s, a, task.n_cols, c == 0, acc + c); break;
            }
        }
    }

    for (int g = 0; g < n_groups; ++g) {
        const int64_t row = (ig + g)*SMALL_BATCH_ROWS;
        for (int c = 0; c < n_cols; ++c) {
            store_rows(acc[g*MAX_COLS + c], task.dst + (c_first + c)*task.dst_stride + row, task.n_rows - row);
        }
    }
}

template <typename T>
void mul_mat(const small_batch_task & task, int64_t ig_first, int64_t ig_last) {
    for (int64_t ig = ig_first; ig < ig_last; ) {
        const int64_t left = SMALL_BATCH_PANEL - ig%SMALL_BATCH_PANEL;
        const int     n    = (int) (ig_last - ig < left ? ig_last - ig : left);

        for (int64_t c = 0; c < task.n_cols; c += MAX_COLS) {
            mul_mat_panel<T>(task, ig, n, c, task.n_cols - c < MAX_COLS ? (int) (task.n_cols - c) : MAX_COLS);
        }
        ig += n;
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
