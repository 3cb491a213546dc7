// The patches that k-means starts from. Word j of the init stage decides centre j.
#pragma once

#include "codebook.hpp"

namespace {

// Source: count(), dimensions(), block(b) → [d][kBlock].
template <class Source>
class Start {
  public:
    Start(Source& source, Codebook& codebook, StopFlag stop)
        : source_(source), book_(codebook), stop_(stop), n_(source.count()), d_(source.dimensions()) {
        blocks_ = up(n_, kBlock) / kBlock;
        distances_.resize(blocks_ * kBlock);
        block_sums_.resize(blocks_);
    }

    // Each next centre is a patch drawn with probability proportional to its squared distance from the nearest
    // centre so far; any patch where all distances are zero.
    void plus_plus(const Stream& stream) {
        take(0, below(word(stream, 0), n_));
        for (int64_t j = 1; j < book_.k; ++j) {
            const double total = approach(j - 1, j == 1);
            const uint32_t random = word(stream, (uint64_t)j);
            take(j, total > 0 ? drawn(random * 0x1p-32 * total) : below(random, n_));
        }
    }

    // Patches at k distinct places (Floyd's sampling).
    void random(const Stream& stream) {
        std::fill_n((float*)distances_, n_, 1.0f);  // 0: taken
        for (int64_t j = 0; j < book_.k; ++j) {
            const int64_t last = n_ - book_.k + j;
            const int64_t candidate = below(word(stream, (uint64_t)j), last + 1);
            const int64_t chosen = distances_[candidate] == 0 ? last : candidate;
            distances_[chosen] = 0;
            take(j, chosen);
        }
    }

  private:
    static int64_t below(uint32_t random, int64_t limit) { return (int64_t)((uint64_t)random * (uint64_t)limit >> 32); }

    // Centre j becomes patch i.
    void take(int64_t j, int64_t i) {
        const float* x = source_.block(i / kBlock) + i % kBlock;
        for (int64_t c = 0; c < d_; ++c) book_.edit(j)[c] = x[c * kBlock];
        book_.edited(j);
    }

    // Lowers every patch's distance to that from centre j, where it is nearer; returns the sum.
    double approach(int64_t j, bool first) {
        const float* centre = book_.centre(j);
        double total = 0;
        for (int64_t b = 0; b < blocks_; ++b) {
            stop_.check();
            const float* x = source_.block(b);
            F distance[4] = {};
            for (int64_t c = 0; c < d_; ++c, x += kBlock)
                for (int v = 0; v < 4; ++v) {
                    const F difference = load<F>(x + v * W) - centre[c];
                    distance[v] += difference * difference;
                }
            float* nearest = distances_ + b * kBlock;
            for (int v = 0; v < 4; ++v) {
                const F before = load<F>(nearest + v * W);
                store(nearest + v * W, !first && before < distance[v] ? before : distance[v]);
            }
            for (int64_t i = n_ - b * kBlock; i < kBlock; ++i) nearest[i] = 0;
            D sum = {};
            for (int h = 0; h < 8; ++h) sum += to_double(load<H>(nearest + h * W / 2));
            total += block_sums_[b] = sum_of(sum);
        }
        return total;
    }

    // The first patch at which the running sum of distances exceeds target.
    int64_t drawn(double target) const {
        double running = 0;
        int64_t found = 0;
        for (int64_t b = 0; b < blocks_; ++b) {
            if (running + block_sums_[b] <= target) {
                running += block_sums_[b];
                continue;
            }
            for (int64_t i = b * kBlock; i < (b + 1) * kBlock; ++i) {
                if (distances_[i] > 0) found = i;  // what remains if rounding lets the sum miss the target
                running += distances_[i];
                if (running > target) return found;
            }
        }
        return found;
    }

    Source& source_;
    Codebook& book_;
    StopFlag stop_;
    int64_t n_, d_, blocks_;
    Buffer<float> distances_;  // squared, from the nearest centre so far
    Buffer<double> block_sums_;
};

}  // namespace
