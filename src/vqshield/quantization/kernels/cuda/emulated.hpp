// CUDA's words on a CPU, to try the kernels without a GPU: a fiber for each thread of a block, blocks one after
// the other. What the threads of a warp do together (shuffles, votes, matrix products) waits for all of them.
// New shared memory is full of NaN, and what is written behind it is noticed.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using std::max;
using std::min;

namespace emulated {

constexpr int LANES = 32;
constexpr size_t STACK = 1 << 16;

struct Index {
    int x = 0, y = 0;
};

struct Warp {
    int arrived = 0, generation = 0, turn = 0;
    unsigned char exchanged[2][LANES][32];
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK);
    bool done = false;
};

struct Block {
    ucontext_t scheduler;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned char> memory;
    int arrived = 0, generation = 0, thread = 0;
    Index index;
    void (*work)(const void*) = nullptr;
    const void* argument = nullptr;
};

inline Block* block = nullptr;

inline void yield() { swapcontext(&block->fibers[block->thread].context, &block->scheduler); }

// Waits until `all` have come here; counts belong to a warp or to the block.
inline void wait(int& arrived, int& generation, int all) {
    const int mine = generation;
    if (++arrived == all) {
        arrived = 0;
        ++generation;
    } else {
        while (generation == mine) yield();
    }
}

inline Warp& warp() { return block->warps[block->thread / LANES]; }

// What every lane of the warp gives, for all to see. Two places take turns: whoever is quick cannot write over
// what another has not read.
template <typename T>
void exchange(const T& given, T (&found)[LANES]) {
    static_assert(sizeof(T) <= 32);
    const int mine = block->thread, lane = mine % LANES;
    Warp& own = warp();
    unsigned char(&place)[LANES][32] = own.exchanged[own.generation % 2];
    std::memcpy(place[lane], &given, sizeof(T));
    wait(own.arrived, own.generation, LANES);
    for (int other = 0; other < LANES; ++other) std::memcpy(&found[other], place[other], sizeof(T));
}

inline void begin() {
    block->work(block->argument);
    block->fibers[block->thread].done = true;
}

inline void run_block() {
    block->arrived = 0;
    std::fill(block->memory.begin(), block->memory.end(), 0xff);
    for (size_t number = 0; number < block->fibers.size(); ++number) {
        Fiber& fiber = block->fibers[number];
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &block->scheduler;
        makecontext(&fiber.context, begin, 0);
    }
    for (bool going = true; going;) {
        going = false;
        for (size_t number = 0; number < block->fibers.size(); ++number) {
            if (block->fibers[number].done) continue;
            going = true;
            block->thread = (int)number;
            swapcontext(&block->scheduler, &block->fibers[number].context);
        }
    }
    for (size_t place = block->memory.size() - 64; place < block->memory.size(); ++place) {
        if (block->memory[place] != 0xff) {
            std::fputs("a kernel has written behind its shared memory\n", stderr);
            std::abort();
        }
    }
}

inline void run(void (*work)(const void*), const void* argument, int width, int height, int threads, int shared) {
    Block made;
    block = &made;
    made.fibers.resize(threads);
    made.warps.resize(threads / LANES);
    made.memory.resize(shared + 64);
    made.work = work;
    made.argument = argument;
    for (made.index.y = 0; made.index.y < height; ++made.index.y)
        for (made.index.x = 0; made.index.x < width; ++made.index.x) run_block();
    block = nullptr;
}

}  // namespace emulated

#define FUNCTION inline
#define KERNEL(name, Argument, threads, blocks)                                                             \
    static void name##_body(const Argument given);                                                          \
    static void name##_of(const void* argument) { name##_body(*static_cast<const Argument*>(argument)); }    \
    extern "C" void name(const void* argument, int width, int height, int shared) {                          \
        emulated::run(name##_of, argument, width, height, threads, shared);                                 \
    }                                                                                                       \
    static void name##_body(const Argument given)
#define SHARED(name) u8* const name = emulated::block->memory.data()
#define threadIdx (emulated::Index{emulated::block->thread, 0})
#define blockIdx (emulated::block->index)

struct float4 {
    float x, y, z, w;
};
struct uint4 {
    u32 x, y, z, w;
};

struct int4 {
    int x, y, z, w;
};

inline void __syncthreads() {
    emulated::wait(emulated::block->arrived, emulated::block->generation, (int)emulated::block->fibers.size());
}

inline void __syncwarp(u32) {
    emulated::Warp& own = emulated::warp();
    emulated::wait(own.arrived, own.generation, emulated::LANES);
}

template <typename T>
T __shfl_sync(u32, T value, int from) {
    T found[emulated::LANES];
    emulated::exchange(value, found);
    return found[from % emulated::LANES];
}

template <typename T>
T __shfl_xor_sync(u32 all, T value, int mask) {
    return __shfl_sync(all, value, (emulated::block->thread % emulated::LANES) ^ mask);
}

template <typename T>
T __shfl_up_sync(u32 all, T value, int step) {
    const int lane = emulated::block->thread % emulated::LANES;
    return __shfl_sync(all, value, lane >= step ? lane - step : lane);
}

inline u32 __ballot_sync(u32, bool vote) {
    bool found[emulated::LANES];
    emulated::exchange(vote, found);
    u32 votes = 0;
    for (int lane = 0; lane < emulated::LANES; ++lane) votes |= (u32)found[lane] << lane;
    return votes;
}

inline int __popc(u32 bits) { return __builtin_popcount(bits); }
inline int __ffs(u32 bits) { return __builtin_ffs((int)bits); }
inline u32 __umulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
inline float __logf(float value) { return std::log(value); }
inline float __sinf(float value) { return std::sin(value); }
inline float __cosf(float value) { return std::cos(value); }
inline u32 __float_as_uint(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(u32 bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline u64 __umul64hi(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
inline int __float2int_rn(float value) { return (int)std::nearbyint(value); }
inline u32 __float2uint_rn(float value) { return (u32)std::nearbyint(value); }

template <typename T>
T atomicAdd(T* place, T value) {
    const T before = *place;
    *place += value;
    return before;
}

inline void copy_ahead(u32* shared, const u32* global) { std::memcpy(shared, global, 16); }
inline void close_group() {}
inline void wait_for_all_but_last_group() {}

inline float half_value(u32 bits) {
    const u32 exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float value;
    if (exponent == 0) {
        value = std::ldexp((float)fraction, -24);
    } else if (exponent == 31) {
        value = fraction ? NAN : INFINITY;
    } else {
        value = std::ldexp((float)(fraction | 1024), (int)exponent - 25);
    }
    return bits & 0x8000 ? -value : value;
}

inline u32 half_bits(float value) {
    const u32 sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (!(size < 65520.0f)) return sign | (std::isnan(value) ? 0x7e00 : 0x7c00);
    int exponent = -13;  // of zero too
    if (size > 0) std::frexp(size, &exponent);
    const int place = std::max(exponent, -13);  // of the leading bit; below 2^-14 all have the same last one
    const u32 whole = (u32)std::nearbyint(std::ldexp(size, 11 - place));
    if (place == -13 && whole < 1024) return sign | whole;
    return sign | (((u32)(place + 14) << 10) + whole - 1024);
}

inline void multiply(float4& sum, const uint4& a, u32 b0, u32 b1, const float4& c) {
    struct Held {
        u32 a[4], b[2];
    };
    Held all[emulated::LANES];
    emulated::exchange(Held{{a.x, a.y, a.z, a.w}, {b0, b1}}, all);
    const int lane = emulated::block->thread % emulated::LANES, g = lane / 4, t = lane % 4;
    float found[4] = {c.x, c.y, c.z, c.w};
    for (int i = 0; i < 4; ++i) {
        const int upper = i / 2, column = 2 * t + i % 2;
        for (int k = 0; k < 16; ++k) {
            const int holder = (k % 8) / 2, shift = 16 * (k % 2);
            const u32 left = all[4 * g + holder].a[upper + 2 * (k / 8)] >> shift;
            const u32 right = all[4 * column + holder].b[k / 8] >> shift;
            found[i] += half_value(left & 0xffff) * half_value(right & 0xffff);
        }
    }
    sum = {found[0], found[1], found[2], found[3]};
}
