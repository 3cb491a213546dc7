// Pixels as callers have them, float32, bytes or halves; and as float32 in [0, 1], which is what is worked with.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

enum Pixels : int64_t { kFloat32 = 0, kUint8 = 1, kFloat16 = 2, kBfloat16 = 3 };

inline int64_t bytes_of(int64_t kind) { return kind == kFloat32 ? 4 : kind == kUint8 ? 1 : 2; }

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float with_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The type by which values are stored, and both ways: as torch converts them, bit for bit. What becomes of values
// outside of [0, 1] matters only in so far as it stays outside. To narrow is to round, half-way to the even number.
struct Uint8 {
    typedef uint8_t Stored;
    static float wide(uint8_t value) { return (float)value / 255.0f; }
    static uint8_t narrow(float value) { return (uint8_t)std::nearbyint(value * 255.0f); }
};

struct Bfloat16 {
    typedef uint16_t Stored;
    static float wide(uint16_t half) { return with_bits((uint32_t)half << 16); }
    static uint16_t narrow(float value) {
        const uint32_t bits = bits_of(value);
        return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
};

// Exponents are 112 less than a float's. Below 2^-14 values are multiples of 2^-24, which is also the step of floats
// from 0.5 on. No arithmetic on floats that small: a process may have that flushed to zero.
struct Float16 {
    typedef uint16_t Stored;
    static float wide(uint16_t half) {
        const uint32_t size = half & 0x7FFF, sign = (uint32_t)(half & 0x8000) << 16;
        const float small = (float)(int32_t)size * 0x1p-24f, usual = with_bits((size << 13) + (112u << 23));
        return with_bits(bits_of(size < 0x400 ? small : usual) | sign);
    }
    static uint16_t narrow(float value) {
        const uint32_t bits = bits_of(value), small = bits_of(value + 0.5f) - bits_of(0.5f);
        const uint32_t usual = (bits - (112u << 23) + 0xFFF + (bits >> 13 & 1)) >> 13;
        return (uint16_t)(value < 0x1p-14f ? small : usual);
    }
};

template <class Kind>
inline void widen(const void* from, int64_t first, int64_t count, float* to) {
    const auto* values = (const typename Kind::Stored*)from + first;
    for (int64_t i = 0; i < count; ++i) to[i] = Kind::wide(values[i]);
}

template <class Kind>
inline void narrow(const float* from, int64_t first, int64_t count, void* to) {
    auto* values = (typename Kind::Stored*)to + first;
    for (int64_t i = 0; i < count; ++i) values[i] = Kind::narrow(from[i]);
}

// Values first … first+count−1 of an array of a kind that is not float32.
inline void widen(int64_t kind, const void* from, int64_t first, int64_t count, float* to) {
    if (kind == kUint8) widen<Uint8>(from, first, count, to);
    if (kind == kFloat16) widen<Float16>(from, first, count, to);
    if (kind == kBfloat16) widen<Bfloat16>(from, first, count, to);
}

inline void narrow(int64_t kind, const float* from, int64_t first, int64_t count, void* to) {
    if (kind == kUint8) narrow<Uint8>(from, first, count, to);
    if (kind == kFloat16) narrow<Float16>(from, first, count, to);
    if (kind == kBfloat16) narrow<Bfloat16>(from, first, count, to);
}

}  // namespace
