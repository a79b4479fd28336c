#include "machine-probe.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <thread>
#include <vector>

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define MACHINE_PROBE_X86
#include <immintrin.h>
#endif

static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// run work(i) on n_threads threads at once, return the seconds until all are done
template <typename work_t>
static double run_threads(int32_t n_threads, const work_t & work) {
    const auto start = std::chrono::steady_clock::now();

    std::vector<std::thread> threads;
    for (int32_t i = 1; i < n_threads; ++i) {
        threads.emplace_back([&work, i] { work(i); });
    }
    work(0);
    for (auto & thread : threads) {
        thread.join();
    }

    return seconds_since(start);
}

// each lane is summed on its own, so that compilers vectorise it
static uint64_t sum_words(const uint64_t * data, size_t n) {
    uint64_t lanes[32] = {};
    for (size_t i = 0; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 32; ++j) {
            lanes[j] += data[i + j];
        }
    }
    uint64_t sum = 0;
    for (const uint64_t lane : lanes) {
        sum += lane;
    }
    return sum;
}

double viasd_measure_bandwidth(int32_t n_threads) {
    const size_t n_words = (size_t) 256*1024*1024 / sizeof(uint64_t);

    n_threads = std::max(n_threads, 1);

    std::vector<uint64_t> data;
    try {
        data.assign(n_words, 1);
    } catch (const std::bad_alloc &) {
        return 0.0;
    }

    std::vector<uint64_t> sums(n_threads);
    double best = 0.0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        const size_t share = n_words/n_threads;
        const double seconds = run_threads(n_threads, [&](int32_t i) { sums[i] = sum_words(data.data() + i*share, share); });
        const double rate = seconds > 0 && sums[0] > 0 ? (double) share*n_threads*sizeof(uint64_t)/seconds/1e9 : 0.0;
        best = std::max(best, rate);
    }

    return best;
}

#ifdef MACHINE_PROBE_X86

#define MACHINE_PROBE_CHAINS 8 // independent accumulators, to hide the latency of a multiply

__attribute__((target("avx2")))
static int32_t multiply_avx2(int64_t n) {
    __m256i sums[MACHINE_PROBE_CHAINS];
    for (auto & sum : sums) {
        sum = _mm256_setzero_si256();
    }
    __m256i left = _mm256_set1_epi8(1);
    const __m256i right = _mm256_set1_epi8(1);
    for (int64_t i = 0; i < n; ++i) {
        __asm__ volatile("" : "+x"(left)); // not a constant for the compiler
        for (auto & sum : sums) {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(left, right));
        }
    }
    __m256i total = _mm256_setzero_si256();
    for (const auto & sum : sums) {
        total = _mm256_add_epi16(total, sum);
    }
    return _mm256_extract_epi16(total, 0);
}

__attribute__((target("avx512f,avx512vnni")))
static int32_t multiply_avx512_vnni(int64_t n) {
    __m512i sums[MACHINE_PROBE_CHAINS];
    for (auto & sum : sums) {
        sum = _mm512_setzero_si512();
    }
    __m512i left = _mm512_set1_epi8(1);
    const __m512i right = _mm512_set1_epi8(1);
    for (int64_t i = 0; i < n; ++i) {
        __asm__ volatile("" : "+v"(left));
        for (auto & sum : sums) {
            sum = _mm512_dpbusd_epi32(sum, left, right);
        }
    }
    __m512i total = _mm512_setzero_si512();
    for (const auto & sum : sums) {
        total = _mm512_add_epi32(total, sum);
    }
    int32_t lanes[16];
    _mm512_storeu_si512(lanes, total);
    return lanes[0];
}

#endif

double viasd_measure_int8_rate(int32_t n_threads) {
#ifdef MACHINE_PROBE_X86
    const bool vnni = __builtin_cpu_supports("avx512vnni");
    if (!vnni && !__builtin_cpu_supports("avx2")) {
        return 0.0;
    }

    n_threads = std::max(n_threads, 1);

    const int64_t n = 20*1000*1000;
    std::vector<int32_t> sums(n_threads);
    double best = 0.0;
    for (int repeat = 0; repeat < 3; ++repeat) {
        const double seconds = run_threads(n_threads, [&](int32_t i) { sums[i] = vnni ? multiply_avx512_vnni(n) : multiply_avx2(n); });
        best = std::max(best, (double) n*n_threads*MACHINE_PROBE_CHAINS*(vnni ? 64 : 32)/seconds/1e9);
    }

    return best;
#else
    (void) n_threads;
    return 0.0;
#endif
}
