// The small-batch kernels against dequantise-then-multiply in float64, through ggml's own graph and threads.
//
//   cmake -S native -B build/test -DVIASD_TESTS=ON && cmake --build build/test --target test-small-batch
//   build/test/bin/test-small-batch

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "small-batch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

static int n_failed = 0;

#define CHECK(condition, ...) do { if (!(condition)) { n_failed++; printf("FAILED: " __VA_ARGS__); printf("\n"); } } while (0)

static const ggml_type TYPES[] = {
    GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
};

static const int N_COLS_MAX = 33;

static ggml_backend_dev_t cpu_device() {
    return ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
}

static ggml_backend_buffer_type_t find_buffer_type() {
    auto get = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");

    for (ggml_backend_buffer_type_t * buft = get(cpu_device()); buft && *buft; ++buft) {
        if (strcmp(ggml_backend_buft_name(*buft), "CPU_SMALL_BATCH") == 0) {
            return *buft;
        }
    }

    return nullptr;
}

// weights in our buffer, products of any width with any number of threads
struct matrix {
    ggml_type type;
    int64_t   n_k;
    int64_t   n_rows;

    std::vector<uint8_t> plain;
    std::vector<float>   values; // what the quantised weights stand for

    ggml_context        * ctx;
    ggml_tensor         * weights;
    ggml_backend_buffer_t buffer;

    matrix(ggml_type type, int64_t n_k, int64_t n_rows, std::mt19937 & rng) : type(type), n_k(n_k), n_rows(n_rows) {
        std::normal_distribution<float> normal;

        values.resize(n_k*n_rows);
        for (float & x : values) {
            x = 0.05f*normal(rng) + 0.01f;
        }

        plain.resize(n_rows*ggml_row_size(type, n_k));
        ggml_quantize_chunk(type, values.data(), plain.data(), 0, n_rows, n_k, nullptr);
        ggml_get_type_traits(type)->to_float(plain.data(), values.data(), n_k*n_rows);

        ggml_init_params params = { ggml_tensor_overhead(), nullptr, true };
        ctx     = ggml_init(params);
        weights = ggml_new_tensor_2d(ctx, type, n_k, n_rows);
        buffer  = ggml_backend_alloc_ctx_tensors_from_buft(ctx, find_buffer_type());
        ggml_backend_tensor_set(weights, plain.data(), 0, plain.size());
    }

    ~matrix() {
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }

    // x: [n_k, n_1, n_2]
    std::vector<float> multiply(const float * x, int64_t n_1, int64_t n_2, int n_threads) const {
        const int64_t n_cols = n_1*n_2;

        // activations, result, and the work buffer
        ggml_init_params params = { (size_t) (2*n_k + n_rows)*n_cols*sizeof(float) + (1 << 20), nullptr, false };
        ggml_context * graph_ctx = ggml_init(params);

        ggml_tensor * activations = ggml_new_tensor_3d(graph_ctx, GGML_TYPE_F32, n_k, n_1, n_2);
        memcpy(activations->data, x, ggml_nbytes(activations));

        ggml_tensor * product = ggml_mul_mat(graph_ctx, weights, activations);
        CHECK(ggml_backend_dev_supports_op(cpu_device(), product), "%s: not supported", ggml_type_name(type));

        ggml_cgraph * graph = ggml_new_graph(graph_ctx);
        ggml_build_forward_expand(graph, product);
        ggml_graph_compute_with_ctx(graph_ctx, graph, n_threads);

        const float * data = (const float *) product->data;
        std::vector<float> result(data, data + n_rows*n_cols);
        ggml_free(graph_ctx);
        return result;
    }
};

#if defined(SMALL_BATCH_X86)
// tests/small-batch-emulated-vnni.cpp
extern const small_batch_kernel small_batch_kernel_emulated_vnni;

// the same product by the kernels of the VNNI sets, called directly
static std::vector<float> multiply_vnni(const matrix & m, const float * x, int64_t n_cols) {
    const small_batch_kernel & kernel = small_batch_kernel_emulated_vnni;

    const int64_t n_groups   = (m.n_rows + SMALL_BATCH_ROWS - 1)/SMALL_BATCH_ROWS;
    const int64_t n_blocks   = small_batch_act_blocks(m.type, m.n_k);
    const size_t  block_size = small_batch_act_block_size(m.type);

    std::vector<uint8_t> weights(small_batch_weights_size(m.type, m.n_k, m.n_rows));
    std::vector<uint8_t> act(small_batch_act_size(m.type, m.n_k, n_cols));
    std::vector<float>   result(m.n_rows*n_cols);

    small_batch_interleave(m.type, m.n_k, m.n_rows, m.plain.data(), weights.data(), 0, n_groups);
    for (int64_t c = 0; c < n_cols; ++c) {
        kernel.quantize(m.type, x + c*m.n_k, act.data() + c*block_size, n_cols, 0, n_blocks);
    }

    small_batch_task task;
    task.type       = m.type;
    task.n_rows     = m.n_rows;
    task.n_k        = m.n_k;
    task.n_cols     = n_cols;
    task.weights    = weights.data();
    task.act        = act.data();
    task.dst        = result.data();
    task.dst_stride = m.n_rows;
    kernel.mul_mat(task, 0, n_groups);

    return result;
}
#endif

// An activation is rounded to a multiple of its block's largest magnitude / 127, so it is off by at most half of that,
// and the product by at most the sum of those times the weights. What is left is rounding of floats.
static void test_error(const matrix & m, const float * x, int64_t n_cols, const std::vector<float> & result) {
    const int64_t n_block = ggml_blck_size(m.type);

    double worst = 0.0;

    for (int64_t c = 0; c < n_cols; ++c) {
        for (int64_t r = 0; r < m.n_rows; ++r) {
            const float * w = &m.values[r*m.n_k];

            double w_max = 0.0;
            for (int64_t i = 0; i < m.n_k; ++i) {
                w_max = std::max(w_max, (double) fabsf(w[i]));
            }

            double exact = 0.0;
            double bound = 0.0;
            for (int64_t ib = 0; ib < m.n_k; ib += n_block) {
                double x_max = 0.0;
                double w_sum = 0.0;
                for (int64_t i = ib; i < ib + n_block; ++i) {
                    exact += (double) w[i]*x[c*m.n_k + i];
                    x_max  = std::max(x_max, (double) fabsf(x[c*m.n_k + i]));
                    w_sum += fabsf(w[i]);
                }
                bound += x_max*(w_sum/254.0 + w_max*n_block*1e-5);
            }

            worst = std::max(worst, fabs(result[c*m.n_rows + r] - exact)/bound);
        }
    }

    CHECK(worst <= 1.0, "%s k=%d rows=%d: error is %.2f times the bound", ggml_type_name(m.type), (int) m.n_k, (int) m.n_rows, worst);
}

static void test_shape(ggml_type type, int64_t n_k, int64_t n_rows, std::mt19937 & rng) {
    std::normal_distribution<float> normal;

    const matrix m(type, n_k, n_rows, rng);

    std::vector<float> x(n_k*N_COLS_MAX);
    for (float & v : x) {
        v = normal(rng);
    }
    std::fill(x.begin(), x.begin() + ggml_blck_size(type), 0.0f); // a block without a scale
    for (int64_t i = 0; i < n_k; ++i) {
        x[n_k + i] *= 1e6f*(i % 7 == 0); // large and sparse
        x[2*n_k + i] *= 1e-38f;          // too small to have a scale
    }

    const std::vector<float> wide = m.multiply(x.data(), N_COLS_MAX, 1, 1);
    test_error(m, x.data(), 2, wide);
    test_error(m, x.data() + 3*n_k, N_COLS_MAX - 3, std::vector<float>(wide.begin() + 3*n_rows, wide.end()));

    for (int n_threads = 1; n_threads <= 4; ++n_threads) {
        for (int n = 1; n <= N_COLS_MAX; ++n) {
            const std::vector<float> narrow = m.multiply(x.data(), n, 1, n_threads);
            CHECK(memcmp(narrow.data(), wide.data(), n*n_rows*sizeof(float)) == 0,
                "%s k=%d rows=%d: %d columns and %d threads give other bytes", ggml_type_name(type), (int) n_k, (int) n_rows, n, n_threads);
        }
    }

#if defined(SMALL_BATCH_X86)
    for (const int n : { 1, 2, 3, 4, 7, 17, N_COLS_MAX }) {
        const std::vector<float> vnni = multiply_vnni(m, x.data(), n);
        CHECK(memcmp(vnni.data(), wide.data(), n*n_rows*sizeof(float)) == 0,
            "%s k=%d rows=%d: %d columns give other bytes with VNNI", ggml_type_name(type), (int) n_k, (int) n_rows, n);
    }
#endif

    const std::vector<float> planes = m.multiply(x.data(), N_COLS_MAX/3, 3, 2);
    CHECK(memcmp(planes.data(), wide.data(), wide.size()*sizeof(float)) == 0, "%s: columns in three planes give other bytes", ggml_type_name(type));

    // what is not finite spoils its own column and says so
    const float bad[] = { INFINITY, -INFINITY, NAN, std::numeric_limits<float>::max() };
    for (const float value : bad) {
        std::vector<float> spoilt = x;
        spoilt[4*n_k + n_k/2] = value;

        const std::vector<float> result = m.multiply(spoilt.data(), 8, 1, 2);
        for (int c = 0; c < 8; ++c) {
            if (c != 4) {
                CHECK(memcmp(&result[c*n_rows], &wide[c*n_rows], n_rows*sizeof(float)) == 0, "%s: column %d is spoilt by column 4", ggml_type_name(type), c);
            }
        }
        for (int64_t r = 0; r < n_rows && !std::isfinite(value); ++r) {
            CHECK(!std::isfinite(result[4*n_rows + r]), "%s: %f in, %f out", ggml_type_name(type), value, result[4*n_rows + r]);
        }
    }
}

// attention of the first n of the tokens that follow n_past positions, over a cache of n_kv cells
static std::vector<float> attend(const std::vector<float> & q, const std::vector<ggml_fp16_t> & k, const std::vector<ggml_fp16_t> & v,
        int64_t dim, int64_t n_head, int64_t n_head_kv, int64_t n_past, int64_t n_kv, int64_t n, int n_threads) {
    ggml_init_params params = { (size_t) (n_kv*n_head_kv*dim*4 + n_kv*n*2 + n*n_head*dim*8) + (16 << 20), nullptr, false };
    ggml_context * ctx = ggml_init(params);

    ggml_tensor * tq = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, dim, n_head, n); // the heads of a token side by side
    ggml_tensor * tk = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, dim, n_head_kv, n_kv);
    ggml_tensor * tv = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, dim, n_head_kv, n_kv);
    ggml_tensor * tm = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_kv, n);
    memcpy(tq->data, q.data(), ggml_nbytes(tq));
    memcpy(tk->data, k.data(), ggml_nbytes(tk));
    memcpy(tv->data, v.data(), ggml_nbytes(tv));
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n_kv; ++j) {
            ((ggml_fp16_t *) tm->data)[i*n_kv + j] = ggml_fp32_to_fp16(j <= n_past + i ? 0.0f : -INFINITY);
        }
    }

    ggml_tensor * out = ggml_flash_attn_ext(ctx, ggml_permute(ctx, tq, 0, 2, 1, 3), ggml_permute(ctx, tk, 0, 2, 1, 3),
        ggml_permute(ctx, tv, 0, 2, 1, 3), tm, 1.0f/sqrtf(dim), 0.0f, 0.0f);

    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_graph_compute_with_ctx(ctx, graph, n_threads);

    const float * data = (const float *) out->data;
    std::vector<float> result(data, data + dim*n_head*n);
    ggml_free(ctx);
    return result;
}

static void test_attention(int64_t dim, int64_t n_head, int64_t n_head_kv, std::mt19937 & rng) {
    const int64_t n_past   = 230;
    const int64_t n_kv_max = 512;

    std::normal_distribution<float> normal;

    std::vector<float>       q(dim*n_head*N_COLS_MAX);
    std::vector<ggml_fp16_t> k(dim*n_head_kv*n_kv_max);
    std::vector<ggml_fp16_t> v(dim*n_head_kv*n_kv_max);
    for (float & x : q)       { x = 2.0f*normal(rng); }
    for (ggml_fp16_t & x : k) { x = ggml_fp32_to_fp16(normal(rng)); }
    for (ggml_fp16_t & x : v) { x = ggml_fp32_to_fp16(normal(rng)); }

    const std::vector<float> wide = attend(q, k, v, dim, n_head, n_head_kv, n_past, n_kv_max, N_COLS_MAX, 1);

    // scores are off by a few units in the last place, and so are the weights made of them
    double worst = 0.0;
    for (int64_t i = 0; i < N_COLS_MAX; ++i) {
        for (int64_t h = 0; h < n_head; ++h) {
            const int64_t h_kv = h/(n_head/n_head_kv);

            std::vector<double> weights(n_past + i + 1);
            double sum = 0.0;
            for (size_t j = 0; j < weights.size(); ++j) {
                double score = 0.0;
                for (int64_t d = 0; d < dim; ++d) {
                    score += (double) q[(i*n_head + h)*dim + d]*ggml_fp16_to_fp32(k[(j*n_head_kv + h_kv)*dim + d]);
                }
                weights[j] = exp(score/sqrt((double) dim));
                sum += weights[j];
            }
            for (int64_t d = 0; d < dim; ++d) {
                double exact = 0.0;
                for (size_t j = 0; j < weights.size(); ++j) {
                    exact += weights[j]/sum*ggml_fp16_to_fp32(v[(j*n_head_kv + h_kv)*dim + d]);
                }
                worst = std::max(worst, fabs(exact - wide[(i*n_head + h)*dim + d]));
            }
        }
    }
    CHECK(worst < 2e-5, "attention of %d: error %g", (int) dim, worst);

    for (int n_threads = 1; n_threads <= 4; ++n_threads) {
        for (int n = 1; n <= N_COLS_MAX; ++n) {
            for (const int64_t n_kv : { (int64_t) 264, (int64_t) 288, n_kv_max }) {
                const std::vector<float> narrow = attend(q, k, v, dim, n_head, n_head_kv, n_past, n_kv, n, n_threads);
                CHECK(memcmp(narrow.data(), wide.data(), narrow.size()*sizeof(float)) == 0,
                    "attention of %d: %d rows, %d cells and %d threads give other bytes", (int) dim, n, (int) n_kv, n_threads);
            }
        }
    }
}

static void test_declined() {
    ggml_init_params params = { 16*ggml_tensor_overhead(), nullptr, true };
    ggml_context * ctx = ggml_init(params);

    ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 256, 4);
    ggml_tensor * cases[] = {
        ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F16,  256, 16), x),
        ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_Q2_K, 256, 16), x),
        ggml_get_rows(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_K, 256, 16), ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4)),
    };

    for (ggml_tensor * op : cases) {
        op->src[0]->buffer = ggml_backend_buft_alloc_buffer(find_buffer_type(), 0);
        CHECK(!ggml_backend_dev_supports_op(cpu_device(), op), "%s of %s is not declined", ggml_op_name(op->op), ggml_type_name(op->src[0]->type));
        ggml_backend_buffer_free(op->src[0]->buffer);
    }

    ggml_free(ctx);
}

int main() {
    printf("kernel: %s\n", viasd_kernel_name());
    if (!find_buffer_type()) {
        printf("no kernel for this machine: nothing to test\n");
        return strcmp(viasd_kernel_name(), "none") != 0;
    }

    std::mt19937 rng(1);

    for (const ggml_type type : TYPES) {
        const int n_failed_before = n_failed;

        const int64_t n_block = ggml_blck_size(type);
        for (const int64_t n_rows : { 2, 7, 8, 9, 16, 17, 24, 67, 131 }) {
            test_shape(type, n_block, n_rows, rng);
        }
        for (const int64_t n_blocks : { 2, 3, 7, 8, 9, 18 }) {
            test_shape(type, n_blocks*n_block, 19, rng);
        }
        printf("%s: %s\n", ggml_type_name(type), n_failed == n_failed_before ? "ok" : "FAILED");
    }
    test_declined();

    const int n_failed_before = n_failed;
    test_attention( 64, 14, 2, rng);
    test_attention( 80,  4, 4, rng);
    test_attention(128, 12, 2, rng);
    test_attention(256,  4, 1, rng);
    printf("attention: %s\n", n_failed == n_failed_before ? "ok" : "FAILED");

    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
