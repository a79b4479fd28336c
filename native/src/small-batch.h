#pragma once

// Matrix products of quantised weights whose cost hardly grows with the number of columns (tokens).
//
// Called from (patches/0002-small-batch-hooks.patch):
//   ggml_backend_cpu_get_extra_buffer_types   small_batch_buffer_type(), ahead of upstream's repack
//   ggml_compute_forward_flash_attn_ext       small_batch_attn_compute(), instead of upstream's three paths
//
// The buffer type takes 2-D weights of the types below that are used by GGML_OP_MUL_MAT alone. It stores them with
// 8 rows (a group) interleaved by 32-bit words, so that one 256-bit register holds the same 4 k of 8 rows. 8 groups are a
// panel, stored step by step of 256 k: the words of the first group's step, of the second's and so on, then, where a
// block's size is no multiple of 4 (Q6_K, Q5_0, Q8_0, Q4_0), their scales. So a panel is one stream, and the activations
// of a step are in the first-level cache while it passes. What it declines (other types, odd shapes, MoE, another CPU) goes where upstream would have put it.
//
// Every (row, column) of a result is computed by the same operations in the same order whatever the number of
// columns and threads: sums over k are exact integer sums inside a block, and the float sum over blocks is sequential.

#include "ggml.h"
#include "ggml-backend.h"

#include <cstddef>
#include <cstdint>

struct ggml_compute_params;

#define SMALL_BATCH_ROWS    8   // rows of an interleaved group
#define SMALL_BATCH_PANEL   8   // groups whose weights lie together step by step
#define SMALL_BATCH_STEP    256 // k of a step
#define SMALL_BATCH_BLOCK_K 256 // k of an activation block of the K-quants
#define SMALL_BATCH_BLOCK_0 32  // k of an activation block of the other types

// activations of one column, quantised once per product
struct small_batch_act_k {
    int8_t  qs[SMALL_BATCH_BLOCK_K];
    int16_t sum32[SMALL_BATCH_BLOCK_K/32];  // sums of 32 qs: mins of Q4_K and Q5_K
    int32_t offset[SMALL_BATCH_BLOCK_K/16]; // of 16 qs, as below: Q6_K
    float   d;
};

struct small_batch_act_0 {
    int8_t  qs[SMALL_BATCH_BLOCK_0];
    float   d;
    float   d_sum;  // d times the sum of qs: min of Q4_1
    int32_t offset; // what a product starts from, as two int16: weights are stored unsigned, sums of qs pay for it
};

struct small_batch_act_8 {
    int16_t even[SMALL_BATCH_BLOCK_0/2]; // k = 0 2 4 ..
    int16_t odd[SMALL_BATCH_BLOCK_0/2];
    float   d;
};

// one product; activations lie block by block, the blocks of all columns side by side
struct small_batch_task {
    ggml_type    type;
    int64_t      n_rows;
    int64_t      n_k;
    int64_t      n_cols;
    const void * weights; // interleaved
    const void * act;
    float      * dst;     // [n_rows, n_cols]
    size_t       dst_stride; // floats from column to column
};

#define SMALL_BATCH_ATTN_ROWS 16  // rows that share one conversion of keys and values
#define SMALL_BATCH_ATTN_DIM  256 // largest head

// attention of up to SMALL_BATCH_ATTN_ROWS rows over one head's cache of halves
struct small_batch_attn {
    int     n_rows;
    int64_t n_kv;
    int64_t dim_k;
    int64_t dim_v;
    float   scale;

    const char * k;
    const char * v;
    size_t       stride_k; // bytes from position to position
    size_t       stride_v;

    const float    * q[SMALL_BATCH_ATTN_ROWS];
    const uint16_t * mask[SMALL_BATCH_ATTN_ROWS]; // halves added to the scores; nullptr: none
    float          * dst[SMALL_BATCH_ATTN_ROWS];
};

// what one instruction set offers; nullptr members are not allowed
struct small_batch_kernel {
    const char * name;

    // quantise blocks [ib_first, ib_last) of one column: x is the column, act its first block, and the blocks of a
    // column are n_cols blocks apart
    void (*quantize)(ggml_type type, const float * x, void * act, int64_t n_cols, int64_t ib_first, int64_t ib_last);

    // compute the row groups [ig_first, ig_last) of all columns
    void (*mul_mat)(const small_batch_task & task, int64_t ig_first, int64_t ig_last);

    void (*attend)(const small_batch_attn & task);
};

// small-batch-avx2.cpp, small-batch-avx-vnni.cpp, small-batch-avx512-vnni.cpp: compiled with their own flags, so the
// caller checks the CPU first
extern const small_batch_kernel small_batch_kernel_avx2;
extern const small_batch_kernel small_batch_kernel_avx_vnni;
extern const small_batch_kernel small_batch_kernel_avx512_vnni;

// the kernel of this CPU, nullptr: none, or VIASD_KERNELS=off
const small_batch_kernel * small_batch_kernel_get();

// true: weights of this type and shape can be interleaved
bool small_batch_supports(ggml_type type, int64_t n_k, int64_t n_rows);

// bytes of interleaved weights; more than the plain ones only where n_rows is no multiple of SMALL_BATCH_ROWS
size_t small_batch_weights_size(ggml_type type, int64_t n_k, int64_t n_rows);

// bytes of the quantised activations
size_t small_batch_act_size(ggml_type type, int64_t n_k, int64_t n_cols);

// activation blocks of one column
int64_t small_batch_act_blocks(ggml_type type, int64_t n_k);

// bytes of one activation block
size_t small_batch_act_block_size(ggml_type type);

// interleave the row groups [ig_first, ig_last) of n_rows rows of data; missing rows of the last group become zeros
void small_batch_interleave(ggml_type type, int64_t n_k, int64_t n_rows, const void * data, void * weights, int64_t ig_first, int64_t ig_last);

//
// hooks for ggml-cpu.cpp and ops.cpp
//

// nullptr: upstream's buffer types only
ggml_backend_buffer_type_t small_batch_buffer_type();

// true: the flash attention op is computed; false: it is upstream's
bool small_batch_attn_compute(const ggml_compute_params * params, ggml_tensor * op);

//
// C API, bound by viasd_edge/_native.py
//

#ifdef __cplusplus
extern "C" {
#endif

    // "avx2", "avx-vnni", "avx512-vnni", or "none" where upstream's kernels are in use.
    GGML_BACKEND_API const char * viasd_kernel_name(void);

#ifdef __cplusplus
}
#endif
