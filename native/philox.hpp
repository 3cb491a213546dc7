// Counter-based noise, W counters at a time: the words of vqshield.quantization.noise to the bit, and its normal values to
// about 1e-6 (float32 polynomials for logarithm, sine and cosine).
#pragma once

#include "simd.hpp"

namespace {

// Which values: the key is the seed, the counter (index/4, stage, stream).
struct Stream {
    uint64_t stage, stream[2];
    uint64_t keys[10][2];  // of the ten rounds

    Stream(uint64_t seed, int64_t number, uint32_t stage)
        : stage(stage), stream{(uint32_t)number, (uint64_t)number >> 32} {
        for (uint32_t round = 0; round < 10; ++round) {
            keys[round][0] = (uint32_t)seed + round * 0x9E3779B9u;
            keys[round][1] = (uint32_t)(seed >> 32) + round * 0xBB67AE85u;
        }
    }
};

// Philox 4x32-10. Even and odd counters are computed apart, in 64-bit lanes: one multiplication then gives
// both halves of a product, and the halves that are not wanted are never looked at.
inline void philox(const Stream& s, U index, U (&words)[4]) {
    constexpr uint64_t low_half = 0xFFFFFFFF;
    L c0[2] = {(L)index, (L)index >> 32}, c1[2], c2[2], c3[2];
    for (int odd = 0; odd < 2; ++odd) {
        c1[odd] = s.stage - L{};
        c2[odd] = s.stream[0] - L{};
        c3[odd] = s.stream[1] - L{};
    }
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round)
        for (int odd = 0; odd < 2; ++odd) {
            const L low = multiply_low(c0[odd], 0xD2511F53), high = multiply_low(c2[odd], 0xCD9E8D57);
            c0[odd] = (high >> 32) ^ c1[odd] ^ s.keys[round][0];
            c2[odd] = (low >> 32) ^ c3[odd] ^ s.keys[round][1];
            c1[odd] = high;
            c3[odd] = low;
        }
    words[0] = (U)((c0[0] & low_half) | (c0[1] << 32));
    words[1] = (U)((c1[0] & low_half) | (c1[1] << 32));
    words[2] = (U)((c2[0] & low_half) | (c2[1] << 32));
    words[3] = (U)((c3[0] & low_half) | (c3[1] << 32));
}

inline uint32_t word(const Stream& s, uint64_t number) {
    U words[4];
    philox(s, U{} + (uint32_t)(number / 4), words);
    return words[number % 4][0];
}

// −2 ln u for u = ((a>>1) + ½)·2^-31. Near 1 the distance from 1 is converted instead of u itself, so that the
// relative error stays that of a float32.
inline F minus_two_log(U a) {
    const I m = (I)(a >> 1);
    const F u = (to_float(m) + 0.5f) * 0x1p-31f;
    const F below_one = (to_float(m ^ 0x7FFFFFFF) + 0.5f) * -0x1p-31f;
    const I exponent = ((I)u - 0x3F3504F3) >> 23;  // mantissa in [√½, √2)
    const F mantissa = (F)((I)u - (exponent << 23));
    const F f = exponent == 0 ? below_one : mantissa - 1.0f;
    const F e = to_float(exponent), ff = f * f;
    // Cephes logf: ln(1+f) = f − f²/2 + f³·p(f).
    F p = 7.0376836292e-2f * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    const F tail = p * f * ff + e * -2.12194440e-4f - 0.5f * ff;
    return -2.0f * (f + tail + e * 0.693359375f);
}

// Cosine and sine of b·π·2^-31, b signed: the quadrant is split off exactly, in integers.
inline void turn(U b, F& cosine, F& sine) {
    const U quadrant = (b + 0x20000000u) >> 30;
    const F y = to_float((I)(b - (quadrant << 30))) * (float)(3.14159265358979323846 * 0x1p-31);
    const F z = y * y;
    const F s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * y + y;
    const F c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
                0.5f * z + 1.0f;
    const I odd = (I)(quadrant & 1) == 1;
    cosine = (F)((U)(odd ? s : c) ^ (((quadrant + 1) & 2) << 30));
    sine = (F)((U)(odd ? c : s) ^ ((quadrant & 2) << 30));
}

// Normal values 4·index … 4·index+3, lane by lane.
inline void normals(const Stream& s, U index, F (&values)[4]) {
    U words[4];
    philox(s, index, words);
    for (int pair = 0; pair < 4; pair += 2) {
        F cosine, sine;
        turn(words[pair + 1], cosine, sine);
        const F radius = square_root(minus_two_log(words[pair]));
        values[pair] = radius * cosine;
        values[pair + 1] = radius * sine;
    }
}

}  // namespace
