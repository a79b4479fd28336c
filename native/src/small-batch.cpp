#include "small-batch.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "traits.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

static bool small_batch_takes(const ggml_tensor * weights) {
    return small_batch_kernel_get() && ggml_n_dims(weights) == 2 && weights->view_src == nullptr &&
        small_batch_supports(weights->type, weights->ne[0], weights->ne[1]);
}

namespace ggml::cpu::small_batch {

// bytes of weights that a thread takes at a time: enough to stream, few enough for the second-level cache to hold them
// while all columns of a prompt pass
static constexpr size_t CHUNK_SIZE = 192*1024;

class tensor_traits : public ggml::cpu::tensor_traits {
    bool work_size(int /* n_threads */, const ggml_tensor * op, size_t & size) override {
        if (op->op != GGML_OP_MUL_MAT) {
            return false;
        }
        size = small_batch_act_size(op->src[0]->type, op->src[0]->ne[0], ggml_nrows(op->src[1]));
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT) {
            return false;
        }
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * x       = op->src[1];

        GGML_ASSERT(x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float));
        GGML_ASSERT(op->type == GGML_TYPE_F32 && ggml_is_contiguous(op));

        const small_batch_kernel * kernel = small_batch_kernel_get();

        small_batch_task task;
        task.type       = weights->type;
        task.n_rows     = weights->ne[1];
        task.n_k        = weights->ne[0];
        task.n_cols     = ggml_nrows(x);
        task.weights    = weights->data;
        task.act        = params->wdata;
        task.dst        = (float *) op->data;
        task.dst_stride = weights->ne[1];

        GGML_ASSERT(params->wsize >= small_batch_act_size(task.type, task.n_k, task.n_cols));

        quantize(params, *kernel, task, x);

        const int64_t n_groups = (task.n_rows + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;
        const int64_t n_chunk  = chunk_groups(task, n_groups, params->nth);
        const int64_t n_chunks = (n_groups + n_chunk - 1)/n_chunk;

        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        ggml_barrier(params->threadpool);

        int64_t chunk = params->ith;
        while (chunk < n_chunks) {
            kernel->mul_mat(task, chunk*n_chunk, std::min(n_groups, (chunk + 1)*n_chunk));
            chunk = ggml_threadpool_chunk_add(params->threadpool, 1);
        }

        return true;
    }

    // every thread takes its share of the blocks of all columns
    static void quantize(const ggml_compute_params * params, const small_batch_kernel & kernel, const small_batch_task & task, const ggml_tensor * x) {
        const size_t  block_size = small_batch_act_block_size(task.type);
        const int64_t n_blocks   = small_batch_act_blocks(task.type, task.n_k);
        const int64_t n_all      = n_blocks*task.n_cols;
        const int64_t i_last     = n_all*(params->ith + 1)/params->nth;

        for (int64_t i = n_all*params->ith/params->nth; i < i_last; ) {
            const int64_t col  = i/n_blocks;
            const int64_t ib   = i%n_blocks;
            const int64_t last = std::min(n_blocks, ib + i_last - i);

            const int64_t i1 = col%x->ne[1];
            const int64_t i2 = col/x->ne[1]%x->ne[2];
            const int64_t i3 = col/x->ne[1]/x->ne[2];

            const char * from = (const char *) x->data + i1*x->nb[1] + i2*x->nb[2] + i3*x->nb[3];

            kernel.quantize(task.type, (const float *) from, (char *) params->wdata + col*block_size, task.n_cols, ib, last);

            i += last - ib;
        }
    }

    static int64_t chunk_groups(const small_batch_task & task, int64_t n_groups, int n_threads) {
        const size_t  group_size = SMALL_BATCH_ROWS*ggml_row_size(task.type, task.n_k);
        const int64_t n_cache    = CHUNK_SIZE/group_size;
        const int64_t n_share    = n_groups/(4*n_threads);

        // whole panels, which lie together, or halves, lest a thread waits long for another's last one
        const int64_t n = std::min(n_cache, n_share);
        const int64_t n_whole = n >= SMALL_BATCH_PANEL ? n - n%SMALL_BATCH_PANEL : SMALL_BATCH_PANEL/2;

        return std::max<int64_t>(1, std::min(n_whole, n_groups/n_threads));
    }
};

class extra_buffer_type : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t /* dev */, const ggml_tensor * op) override {
        return op->op == GGML_OP_MUL_MAT &&
            op->src[0]->buffer && op->src[0]->buffer->buft == small_batch_buffer_type() &&
            small_batch_takes(op->src[0]) &&
            op->src[1]->type == GGML_TYPE_F32 && op->src[1]->nb[0] == sizeof(float) &&
            (op->src[1]->buffer == nullptr || ggml_backend_buft_is_host(op->src[1]->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == GGML_OP_MUL_MAT && op->src[0]->buffer && op->src[0]->buffer->buft == small_batch_buffer_type()) {
            return (ggml::cpu::tensor_traits *) op->src[0]->extra;
        }
        return nullptr;
    }
};

} // namespace ggml::cpu::small_batch

static ggml_status small_batch_buffer_init_tensor(ggml_backend_buffer_t /* buffer */, ggml_tensor * tensor) {
    static ggml::cpu::small_batch::tensor_traits traits;

    tensor->extra = small_batch_takes(tensor) ? (void *) static_cast<ggml::cpu::tensor_traits *>(&traits) : nullptr;

    return GGML_STATUS_SUCCESS;
}

// Map the pages of data at once: faults one by one, as interleaving comes to them, slow it down.
static void small_batch_populate(const void * data, size_t size) {
#if defined(__linux__) && defined(MADV_POPULATE_READ)
    const uintptr_t page  = 4096;
    const uintptr_t first = (uintptr_t) data & ~(page - 1);

    madvise((void *) first, (uintptr_t) data + size - first, MADV_POPULATE_READ);
#else
    (void) data;
    (void) size;
#endif
}

static void small_batch_buffer_set_tensor(ggml_backend_buffer_t /* buffer */, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(tensor->extra && "a weight that the buffer type did not promise to take");
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));

    // a core for every megabyte: interleaving is bound by the cores, and load time counts
    const int64_t n_groups  = (tensor->ne[1] + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;
    const int64_t n_threads = std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), size >> 20));
    const size_t  row_size  = ggml_row_size(tensor->type, tensor->ne[0]);

    std::vector<std::thread> threads;
    for (int64_t i = 0; i < n_threads; ++i) {
        const auto interleave = [=]() {
            const int64_t first = n_groups*i/n_threads;
            const int64_t last  = n_groups*(i + 1)/n_threads;

            const size_t begin = first*SMALL_BATCH_ROWS*row_size;
            const size_t end   = std::min(size, last*SMALL_BATCH_ROWS*row_size);

            small_batch_populate((const char *) data + begin, end - begin);
            small_batch_interleave(tensor->type, tensor->ne[0], tensor->ne[1], data, tensor->data, first, last);
        };
        if (i + 1 < n_threads) {
            threads.emplace_back(interleave);
        } else {
            interleave();
        }
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
}

static const char * small_batch_buffer_type_get_name(ggml_backend_buffer_type_t /* buft */) {
    return "CPU_SMALL_BATCH";
}

static ggml_backend_buffer_t small_batch_buffer_type_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);

    if (buffer == nullptr) {
        return nullptr;
    }

#if defined(__linux__)
    // all of it is read for every token: fewer page faults at load, fewer page walks after
    const uintptr_t page  = 4096;
    const uintptr_t first = ((uintptr_t) ggml_backend_buffer_get_base(buffer) + page - 1) & ~(page - 1);
    const uintptr_t last  = ((uintptr_t) ggml_backend_buffer_get_base(buffer) + size)     & ~(page - 1);
    if (first < last) {
        madvise((void *) first, last - first, MADV_HUGEPAGE);
    }
#endif

    buffer->buft              = buft;
    buffer->iface.init_tensor = small_batch_buffer_init_tensor;
    buffer->iface.set_tensor  = small_batch_buffer_set_tensor;
    buffer->iface.get_tensor  = nullptr;
    buffer->iface.cpy_tensor  = nullptr;
    return buffer;
}

static size_t small_batch_buffer_type_get_alignment(ggml_backend_buffer_type_t /* buft */) {
    return TENSOR_ALIGNMENT;
}

static size_t small_batch_buffer_type_get_alloc_size(ggml_backend_buffer_type_t /* buft */, const ggml_tensor * tensor) {
    return small_batch_takes(tensor) ? small_batch_weights_size(tensor->type, tensor->ne[0], tensor->ne[1]) : ggml_nbytes(tensor);
}

ggml_backend_buffer_type_t small_batch_buffer_type() {
    static ggml_backend_buffer_type buffer_type = {
        /* .iface   = */ {
            /* .get_name       = */ small_batch_buffer_type_get_name,
            /* .alloc_buffer   = */ small_batch_buffer_type_alloc_buffer,
            /* .get_alignment  = */ small_batch_buffer_type_get_alignment,
            /* .get_max_size   = */ nullptr, // no limit
            /* .get_alloc_size = */ small_batch_buffer_type_get_alloc_size,
            /* .is_host        = */ nullptr, // no: others must not read interleaved weights
        },
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ new ggml::cpu::small_batch::extra_buffer_type(),
    };

    return small_batch_kernel_get() ? &buffer_type : nullptr;
}
