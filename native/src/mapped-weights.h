#pragma once

#include <cstddef>

// Called from (patches/0002-small-batch-hooks.patch):
//   llama_model_loader::load_all_data   after a mapped tensor was copied into a buffer
//
// Forget the pages of a file mapping that lie inside [data, data + size): interleaved weights are a copy, and the
// original would stay resident until the model is freed. Reading it again brings it back from the file.
void mapped_weights_release(const void * data, size_t size);
