// What the kernels need of a GPU beyond C++. Without a CUDA compiler, emulated.hpp does the same on a CPU.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#if defined(__CUDACC__)

#define FUNCTION __device__ __forceinline__
#define KERNEL(name, Argument, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const Argument given)
#define SHARED(name) extern __shared__ __align__(16) u8 name[]

// 16 bytes on their way from global to shared memory, while the thread goes on; groups of them are waited for.
FUNCTION void copy_ahead(u32* shared, const u32* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((u32)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
FUNCTION void close_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }
FUNCTION void wait_for_all_but_last_group() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }

// A float32 value in half precision, as bits, and back.
FUNCTION u32 half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

FUNCTION float half_value(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
    return value;
}

// a · b + c for matrices of 16 × 16 and 16 × 8 half-precision values that the warp's threads hold between
// them: thread 4g + t has rows g and g + 8 of a and of the sums, column g of b, and columns 2t and 2t + 1 of the sums.
FUNCTION void multiply(float4& sum, const uint4& a, u32 b0, u32 b1, const float4& c) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(sum.x), "=f"(sum.y), "=f"(sum.z), "=f"(sum.w)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
}

#else
#include "emulated.hpp"
#endif

constexpr int WARP = 32;
constexpr u32 EVERY = 0xffffffff;  // lane of a warp takes part

FUNCTION void multiply_add(float4& sum, const uint4& a, u32 b0, u32 b1) { multiply(sum, a, b0, b1, sum); }

// Where a thread stands.
FUNCTION int lane_number() { return threadIdx.x % WARP; }
FUNCTION int warp_number() { return threadIdx.x / WARP; }

template <typename T>
FUNCTION T warp_sum(T value) {
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(EVERY, value, step);
    return value;
}

// Sums of the values of lanes 0 … own.
template <typename T>
FUNCTION T running_sum(T value, int lane) {
    for (int step = 1; step < WARP; step *= 2) {
        const T other = __shfl_up_sync(EVERY, value, step);
        if (lane >= step) value += other;
    }
    return value;
}
