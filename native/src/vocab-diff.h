#pragma once

#include "llama.h"

#include <cstdint>

#ifdef __cplusplus
extern "C" {
#endif

    // The first token, of those that both vocabularies have, whose text differs; -1: none. 300,000 look-ups across
    // the ctypes border would take half a second at every start of a pair.
    LLAMA_API int32_t llama_vocab_first_difference(const struct llama_vocab * a, const struct llama_vocab * b);

#ifdef __cplusplus
}
#endif
