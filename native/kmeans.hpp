// k-means of one image: the start, and Lloyd's iterations. Scores are float32, sums float64.
#pragma once

#include "codebook.hpp"

namespace {

// Source: count(), dimensions(), block(b) → [d][kBlock], and round(value), to which centres are rounded.
template <class Source>
class KMeans {
  public:
    KMeans(Source& source, Codebook& codebook, StopFlag stop)
        : source_(source), book_(codebook), stop_(stop), n_(source.count()), d_(source.dimensions()) {
        blocks_ = up(n_, kBlock) / kBlock;
        row_ = book_.row;
        labels_.resize(blocks_ * kBlock);
        distances_.resize(blocks_ * kBlock);
        block_sums_.resize(blocks_);
        sums_.resize(book_.k * row_);
        counts_.resize(book_.k);
        touched_.resize(book_.k);
        rows_.resize(kBlock * row_);
    }

    // Each next centre is a patch drawn with probability proportional to its squared distance from the nearest
    // centre so far; any patch where all distances are zero.
    void start_plus_plus(const Stream& stream) {
        take(0, below(word(stream, 0), n_));
        for (int64_t j = 1; j < book_.k; ++j) {
            const double total = approach(j - 1, j == 1);
            const uint32_t random = word(stream, (uint64_t)j);
            take(j, total > 0 ? drawn(random * 0x1p-32 * total) : below(random, n_));
        }
    }

    // Patches at k distinct places (Floyd's sampling).
    void start_random(const Stream& stream) {
        std::fill_n((int32_t*)labels_, n_, 0);  // 1: taken
        for (int64_t j = 0; j < book_.k; ++j) {
            const int64_t last = n_ - book_.k + j;
            const int64_t candidate = below(word(stream, (uint64_t)j), last + 1);
            const int64_t chosen = labels_[candidate] ? last : candidate;
            labels_[chosen] = 1;
            take(j, chosen);
        }
    }

    // Lloyd's iterations from the centres in the codebook, until at most tolerance·n labels change.
    void iterate(int64_t iterations, double tolerance) {
        std::fill_n((int32_t*)labels_, blocks_ * kBlock, -1);
        std::fill_n((double*)sums_, book_.k * row_, 0.0);
        std::fill_n((int64_t*)counts_, book_.k, 0);
        for (int64_t i = 0; i < iterations; ++i) {
            book_.ready();
            const int64_t changed = assign();
            means();
            if (i > 0 && (double)changed <= tolerance * (double)n_) break;
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

    // New labels; patches whose label changed are moved from one sum to the other.
    int64_t assign() {
        int64_t changed = 0;
        alignas(64) int32_t fresh[kBlock];
        int32_t moved[kBlock];
        for (int64_t b = 0; b < blocks_; ++b) {
            stop_.check();
            const int64_t valid = std::min<int64_t>(kBlock, n_ - b * kBlock);
            const float* x = source_.block(b);
            int32_t* labels = labels_ + b * kBlock;
            book_.label(x, valid, fresh);
            int count = 0;
            for (int v = 0; v * W < valid; ++v) {
                uint32_t bits = lanes(load<I>(fresh + v * W) != load<I>(labels + v * W));
                if (valid - v * W < W) bits &= (1u << (valid - v * W)) - 1;
                for (; bits; bits &= bits - 1) moved[count++] = v * W + __builtin_ctz(bits);
            }
            cut_rows(x, moved, count);
            for (int m = 0; m < count; ++m) {
                const int32_t i = moved[m], to = fresh[i], from = labels[i];
                labels[i] = to;
                add(to, rows_ + i * row_);
                if (from >= 0) subtract(from, rows_ + i * row_);
            }
            changed += count;
        }
        return changed;
    }

    // Some patches of a block as rows: one by one, or if they are many, the whole block turned over.
    void cut_rows(const float* x, const int32_t* moved, int count) {
        if (count <= kBlock / 8) {
            for (int m = 0; m < count; ++m)
                for (int64_t c = 0; c < d_; ++c) rows_[moved[m] * row_ + c] = x[c * kBlock + moved[m]];
            return;
        }
        for (int v = 0; v < 4; ++v)
            for (int64_t c = 0; c < row_; c += W) {
                F square[W];
                for (int r = 0; r < W; ++r) square[r] = c + r < d_ ? load<F>(x + (c + r) * kBlock + v * W) : F{};
                transpose(square);
                for (int r = 0; r < W; ++r) store(rows_ + (v * W + r) * row_ + c, square[r]);
            }
    }

    void add(int32_t j, const float* row) {
        ++counts_[j];
        touched_[j] = 1;
        double* sum = sums_ + j * row_;
        for (int64_t c = 0; c < row_; c += W / 2) store(sum + c, load<D>(sum + c) + to_double(load<H>(row + c)));
    }

    void subtract(int32_t j, const float* row) {
        --counts_[j];
        touched_[j] = 1;
        double* sum = sums_ + j * row_;
        for (int64_t c = 0; c < row_; c += W / 2) store(sum + c, load<D>(sum + c) - to_double(load<H>(row + c)));
    }

    // An empty cluster keeps its centre.
    void means() {
        for (int64_t j = 0; j < book_.k; ++j) {
            if (touched_[j] && counts_[j] > 0) {
                for (int64_t c = 0; c < d_; ++c)
                    book_.edit(j)[c] = (float)source_.round(sums_[j * row_ + c] / (double)counts_[j]);
                book_.edited(j);
            }
            touched_[j] = 0;
        }
    }

    Source& source_;
    Codebook& book_;
    StopFlag stop_;
    int64_t n_, d_, blocks_, row_;
    Buffer<int32_t> labels_;
    Buffer<float> distances_, rows_;
    Buffer<double> block_sums_, sums_;
    Buffer<int64_t> counts_;
    Buffer<uint8_t> touched_;
};

}  // namespace
