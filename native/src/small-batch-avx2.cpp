// the instructions every x86 CPU since 2013-2015 has
#define SMALL_BATCH_DOT dot_maddubs
#include "small-batch-x86-mul.h"
#include "small-batch-attn-x86.h"

const small_batch_kernel small_batch_kernel_avx2 = {
    /*.name     =*/ "avx2",
    /*.quantize =*/ quantize,
    /*.mul_mat  =*/ mul_mat_any,
    /*.attend   =*/ attend,
};
