// the same kernels on vpdpbusd, which sums four products exactly in int32
// tests/small-batch-emulated-vnni.cpp tests all but the instruction itself: the machine it was written on has no VNNI.
#define SMALL_BATCH_DOT dot_vnni
#define SMALL_BATCH_AVX_VNNI
#include "small-batch-x86-mul.h"
#include "small-batch-attn-x86.h"

const small_batch_kernel small_batch_kernel_avx_vnni = {
    /*.name     =*/ "avx-vnni",
    /*.quantize =*/ quantize,
    /*.mul_mat  =*/ mul_mat_any,
    /*.attend   =*/ attend,
};
