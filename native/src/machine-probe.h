#pragma once

#include "llama.h"

#include <cstdint>

#ifdef __cplusplus
extern "C" {
#endif

    // What the roofline of a pass is made of, measured on n_threads threads for a few hundred milliseconds.

    // GB/s at which memory far larger than the caches is read; 0 if there is no room for it
    LLAMA_API double viasd_measure_bandwidth(int32_t n_threads);

    // 1e9 int8 multiply-accumulates per second on registers, with the instructions that the kernels use on this
    // machine; 0 where we have no kernels
    LLAMA_API double viasd_measure_int8_rate(int32_t n_threads);

#ifdef __cplusplus
}
#endif
