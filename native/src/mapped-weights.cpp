#include "mapped-weights.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#endif

void mapped_weights_release(const void * data, size_t size) {
#if defined(__linux__)
    const uintptr_t page  = (uintptr_t) sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t) data + page - 1) & ~(page - 1);
    const uintptr_t last  = ((uintptr_t) data + size)     & ~(page - 1);

    if (first < last) {
        madvise((void *) first, last - first, MADV_DONTNEED);
    }
#else
    (void) data;
    (void) size;
#endif
}
