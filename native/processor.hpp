// What this processor and its operating system can run. Asked by hand: Clang cannot link __builtin_cpu_supports into a
// shared library.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>

namespace {

// The registers that the operating system saves when it switches threads.
inline uint64_t saved_registers() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// 0: the generic build alone, 1: avx2 with fused multiply-add too, 2: avx512f and avx512dq too.
inline int32_t processor_level() {
    constexpr uint32_t fma = 1u << 12, xsave = 1u << 27, avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17;
    constexpr uint64_t saves_avx = 0x06, saves_avx512 = 0xe6;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (fma | xsave)) != (fma | xsave)) return 0;
    const uint64_t saved = saved_registers();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2) || (saved & saves_avx) != saves_avx) return 0;
    return (b & avx512) == avx512 && (saved & saves_avx512) == saves_avx512 ? 2 : 1;
}

// Whether it multiplies pairs of 16-bit numbers in vectors of 512 bits (avx512vnni).
inline bool multiplies_pairs_512() {
    uint32_t a, b, c, d;
    return processor_level() == 2 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 1u << 11);
}

}  // namespace
#endif
