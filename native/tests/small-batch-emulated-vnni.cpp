// the kernels of the VNNI sets with their one instruction emulated, so that any AVX2 machine can test the rest of them
#define SMALL_BATCH_EMULATE_VNNI
#define SMALL_BATCH_DOT dot_vnni
#include "small-batch-x86-mul.h"
#include "small-batch-attn-x86.h"

extern const small_batch_kernel small_batch_kernel_emulated_vnni;

const small_batch_kernel small_batch_kernel_emulated_vnni = {
    /*.name     =*/ "emulated-vnni",
    /*.quantize =*/ quantize,
    /*.mul_mat  =*/ mul_mat_any,
    /*.attend   =*/ attend,
};
