// Vectors of W floats, W chosen by the compiler's target: the vector types of GCC and Clang, whose operators
// work lane by lane on every processor, and the few operations that those types lack.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

// kGroup: how many centres are compared at once. Two vectors of scores each must fit in the registers.
#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define VQ_ISA "avx512"
constexpr int W = 16, kGroup = 13;
#elif defined(__AVX2__) && defined(__FMA__)
#define VQ_ISA "avx2"
constexpr int W = 8, kGroup = 6;
#elif defined(__aarch64__)
#define VQ_ISA "neon"
constexpr int W = 4, kGroup = 12;
#else
#define VQ_ISA "generic"
constexpr int W = 4, kGroup = 6;
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef uint64_t L __attribute__((vector_size(4 * W)));  // W/2 lanes
typedef double D __attribute__((vector_size(4 * W)));    // W/2 lanes
typedef float H __attribute__((vector_size(2 * W)));     // W/2 lanes, half a vector

template <class Vector, class Value>
inline Vector load(const Value* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class Vector, class Value>
inline void store(Value* to, Vector v) {
    std::memcpy(to, &v, sizeof v);
}

inline F splat(float a) { return a - F{}; }
inline I splat(int32_t a) { return a - I{}; }
inline D splat(double a) { return a - D{}; }
inline F to_float(I v) { return __builtin_convertvector(v, F); }
inline I to_int(F v) { return __builtin_convertvector(v, I); }

// GCC converts vectors of different sizes piece by piece where it is not told the instruction.
inline D to_double(H v) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (D)_mm512_maskz_cvtps_pd(0xFF, (__m256)v);
#elif defined(__AVX2__) && defined(__FMA__)
    return (D)_mm256_cvtps_pd((__m128)v);
#else
    return __builtin_convertvector(v, D);
#endif
}

inline H to_half(D v) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (H)_mm512_maskz_cvtpd_ps(0xFF, (__m512d)v);
#elif defined(__AVX2__) && defined(__FMA__)
    return (H)_mm256_cvtpd_ps((__m256d)v);
#else
    return __builtin_convertvector(v, H);
#endif
}

inline double sum_of(D v) {
    double sum = 0;
    for (int h = 0; h < W / 2; ++h) sum += v[h];
    return sum;
}

// Of lanes that are not negative.
inline int64_t sum_of(I v) {
    const L pairs = ((L)v & 0xFFFFFFFF) + ((L)v >> 32);
    uint64_t sum = 0;
    for (int h = 0; h < W / 2; ++h) sum += pairs[h];
    return (int64_t)sum;
}

inline float largest_of(F v) {
    float most = v[0];
    for (int j = 1; j < W; ++j) most = most < v[j] ? v[j] : most;
    return most;
}

inline F square_root(F v) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (F)_mm512_maskz_sqrt_ps(0xFFFF, (__m512)v);
#elif defined(__AVX2__) && defined(__FMA__)
    return (F)_mm256_sqrt_ps((__m256)v);
#elif defined(__x86_64__)
    return (F)_mm_sqrt_ps((__m128)v);
#elif defined(__aarch64__)
    return (F)vsqrtq_f32((float32x4_t)v);
#else
    for (int j = 0; j < W; ++j) v[j] = __builtin_sqrtf(v[j]);
    return v;
#endif
}

inline F smaller(F a, F b) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (F)_mm512_maskz_min_ps(0xFFFF, (__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return (F)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__aarch64__)
    return (F)vminq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return a < b ? a : b;
#endif
}

inline F larger(F a, F b) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (F)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return (F)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__aarch64__)
    return (F)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return a > b ? a : b;
#endif
}

// The value with its last four bits replaced by a number below 16.
inline F numbered(F value, int32_t number) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    const __m512i clear = (__m512i)splat(~15), set = (__m512i)splat(number);
    return (F)_mm512_ternarylogic_epi32((__m512i)value, clear, set, 0xEA);  // (value & clear) | set
#else
    return (F)(((I)value & ~15) | number);
#endif
}

inline I smaller(I a, I b) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (I)_mm512_maskz_min_epi32(0xFFFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return (I)_mm256_min_epi32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (I)vminq_s32((int32x4_t)a, (int32x4_t)b);
#else
    return a < b ? a : b;
#endif
}

inline I larger(I a, I b) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (I)_mm512_maskz_max_epi32(0xFFFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return (I)_mm256_max_epi32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (I)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
#else
    return a > b ? a : b;
#endif
}

inline I numbered(I value, int32_t number) { return (I)numbered((F)value, number); }

// Of functions that call add_pairs.
#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define VQ_PAIRS __attribute__((target("avx512vnni")))
#else
#define VQ_PAIRS
#endif

// sum + a·b, lane by lane, where a and b hold two numbers of 16 bits each.
VQ_PAIRS inline I add_pairs(I sum, I a, I b) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (I)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && defined(__FMA__)
    return sum + (I)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return sum + (I)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// The 64-bit products of the lower halves of 64-bit lanes; what is in the upper halves does not matter.
inline L multiply_low(L a, uint32_t b) {
    const L factor = (uint64_t)b - L{};
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return (L)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)factor);
#elif defined(__AVX2__) && defined(__FMA__)
    return (L)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__x86_64__)
    return (L)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#elif defined(__aarch64__)
    return (L)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)factor));
#else
    return (a & 0xFFFFFFFFu) * factor;
#endif
}

// One bit for each lane of a comparison's result.
inline uint32_t lanes(I mask) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__) && defined(__FMA__)
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__x86_64__)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
    uint32_t bits = 0;
    for (int j = 0; j < W; ++j) bits |= (uint32_t)(mask[j] & 1) << j;
    return bits;
#endif
}

#if defined(__clang__) || __GNUC__ >= 12
#define VQ_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

template <int From, int... J>
inline H part(F v, std::integer_sequence<int, J...>) {
    return VQ_SHUFFLE(v, v, (From + J)...);
}

template <int... J>
inline F joined(H low, H high, std::integer_sequence<int, J...>) {
    return VQ_SHUFFLE(low, high, J...);
}
#else
#define VQ_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})

template <int From, class Lanes>
inline H part(F v, Lanes) {
    return load<H>((const float*)&v + From);
}

template <class Lanes>
inline F joined(H low, H high, Lanes) {
    float both[W];
    store(both, low), store(both + W / 2, high);
    return load<F>(both);
}
#endif

inline H lower(F v) { return part<0>(v, std::make_integer_sequence<int, W / 2>{}); }
inline H upper(F v) { return part<W / 2>(v, std::make_integer_sequence<int, W / 2>{}); }
inline float sum_of(F v) {
    const H half = lower(v) + upper(v);
    float sum = 0;
    for (int h = 0; h < W / 2; ++h) sum += half[h];
    return sum;
}

inline F joined(H low, H high) { return joined(low, high, std::make_integer_sequence<int, W>{}); }

// a0 b0 a1 b1 …: the first half of the zipped vectors, or with Upper the second.
template <bool Upper, int... J>
inline F zipped(F a, F b, std::integer_sequence<int, J...>) {
    constexpr int from = Upper ? W / 2 : 0;
    return VQ_SHUFFLE(a, b, (from + J / 2 + (J % 2) * W)...);
}

template <bool Upper>
inline F zip(F a, F b) {
    return zipped<Upper>(a, b, std::make_integer_sequence<int, W>{});
}

// Rows become columns: zipping the upper with the lower half of the rows, log2(W) times.
inline void transpose(F (&rows)[W]) {
#pragma GCC unroll 4
    for (int step = 1; step < W; step *= 2) {
        F zipped[W];
#pragma GCC unroll 8
        for (int i = 0; i < W / 2; ++i) {
            zipped[2 * i] = zip<false>(rows[i], rows[i + W / 2]);
            zipped[2 * i + 1] = zip<true>(rows[i], rows[i + W / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) rows[i] = zipped[i];
    }
}

template <int... J>
inline I counted(std::integer_sequence<int, J...>) {
    return I{J...};
}

// The numbers 0 … W−1.
inline I counting() { return counted(std::make_integer_sequence<int, W>{}); }

// table[index], lane by lane; the table has `vectors` times W values.
inline F lookup(const float* table, int64_t vectors, I index) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    if (vectors == 1) return (F)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)index, (__m512)load<F>(table));
    if (vectors == 2)
        return (F)_mm512_permutex2var_ps((__m512)load<F>(table), (__m512i)index, (__m512)load<F>(table + W));
#elif defined(__AVX2__) && defined(__FMA__)
    if (vectors <= 4) {
        F found = (F)_mm256_permutevar8x32_ps((__m256)load<F>(table), (__m256i)index);
        for (int t = 1; t < vectors; ++t) {
            const F here = (F)_mm256_permutevar8x32_ps((__m256)load<F>(table + t * W), (__m256i)index);
            found = index >= t * W ? here : found;
        }
        return found;
    }
#else
    (void)vectors;
#endif
    F found;
    for (int j = 0; j < W; ++j) found[j] = table[index[j]];
    return found;
}

}  // namespace
