#include "vocab-diff.h"

#include <algorithm>
#include <cstring>

int32_t llama_vocab_first_difference(const llama_vocab * a, const llama_vocab * b) {
    const int32_t n = std::min(llama_vocab_n_tokens(a), llama_vocab_n_tokens(b));

    for (int32_t i = 0; i < n; ++i) {
        if (strcmp(llama_vocab_get_text(a, i), llama_vocab_get_text(b, i)) != 0) {
            return i;
        }
    }

    return -1;
}
