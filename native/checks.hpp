// What the entry points refuse before they touch any memory: each refusal is a sentence that names the value. The
// Python side checks the same and more; these checks hold for any other caller, and for a mistake over there.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <initializer_list>

#include "simd.hpp"

namespace {

constexpr int kMessage = 160;

constexpr int64_t kMostThreads = 1 << 12;
constexpr int64_t kMostCodes = 1 << 20, kMostIterations = 1'000'000;  // as vqshield.core.checks
constexpr double kMostNoise = 1.0, kMostBeta = 1e6;
constexpr double kMostValue = 1e6;                // of vectors and centres: squares stay far below float32's end
constexpr int64_t kMostPatches = (1LL << 31) - 1; // labels and places are 32 bits wide
constexpr int64_t kMostNoiseValues = 1LL << 34;   // a stream's counter has 32 bits, four values a number
constexpr int64_t kMostInMemory = 1LL << 46;      // values; more than any machine holds, far from overflow
constexpr double kLargestNormal = 6.66;           // vqshield.quantization.noise.LARGEST_NORMAL, rounded down

struct Invalid {
    char message[kMessage];

    __attribute__((format(printf, 2, 3))) explicit Invalid(const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
    }
};

inline void check_whole(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
        throw Invalid("%s=%lld should be from %lld to %lld", name, (long long)value, (long long)least, (long long)most);
}

// Written so that nan is refused.
inline void check_real(const char* name, double value, double least, double most) {
    if (!(value >= least && value <= most))
        throw Invalid("%s=%g should be from %g to %g", name, value, least, most);
}

// The product of numbers that are not negative.
inline int64_t checked_product(const char* name, std::initializer_list<int64_t> factors, int64_t most) {
    int64_t product = 1;
    for (const int64_t factor : factors)
        if (__builtin_mul_overflow(product, factor, &product) || product > most)
            throw Invalid("%s should be at most %lld", name, (long long)most);
    return product;
}

// An array that has as many values as it must have.
inline void check_array(const char* name, const void* values, int64_t count, int64_t expected,
                        const char* unit = "values") {
    if (count != expected)
        throw Invalid("%s of %lld %s should have %lld", name, (long long)count, unit, (long long)expected);
    if (expected > 0 && values == nullptr) throw Invalid("%s should be given", name);
}

// least is 0 or −most. Of numbers without a sign the bits are in the numbers' order, and behind them infinity and nan:
// where no sign counts and the largest bits are most's at most, all is well.
inline void check_values(const char* name, const float* values, int64_t count, float least, float most) {
    const I clear = splat(least < 0 ? INT32_MAX : -1);
    I largest[2] = {}, signs = {};
    int64_t i = 0;
    for (; i + 2 * W <= count; i += 2 * W)
        for (int v = 0; v < 2; ++v) {
            const I bits = load<I>(values + i + v * W) & clear;
            largest[v] = larger(largest[v], bits);
            signs |= bits;
        }
    bool all = lanes((larger(largest[0], largest[1]) <= (I)splat(most)) & (signs >= 0)) == lanes(splat(-1));
    if (!all) i = 0, all = true;  // perhaps a zero that has a sign
    for (; i < count; ++i) all &= values[i] >= least && values[i] <= most;
    if (!all) throw Invalid("%s should be finite and from %g to %g", name, (double)least, (double)most);
}

}  // namespace
