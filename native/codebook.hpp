// Centres, and the search for the nearest.
#pragma once

#include "patches.hpp"

namespace {

// The squared lengths of W patches of a block [d][kBlock].
inline F squared_lengths(const float* x, int64_t d) {
    F sum = {};
    for (int64_t c = 0; c < d; ++c) {
        const F value = load<F>(x + c * kBlock);
        sum += value * value;
    }
    return sum;
}

// Scores are computed in float32, two vectors of patches times a group of centres in registers. Where the two
// best are too close for that, the patch is scored again in float64, which is exact for values on the grid.
class Codebook {
  public:
    Codebook(int64_t codes, int64_t dimensions)
        : k(codes), d(dimensions), row(row_length(dimensions)), groups_(up(codes, kGroup) / kGroup) {
        centres_.resize(k * row);
        squares_.resize(k);
        packed_.resize(k * d);
        halves_.resize(k);
        point_.resize(row);
        place_.resize((size_t)k);
        for (int64_t g = 0, first = 0; g < groups_; first += group(g++))
            for (int64_t j = 0; j < group(g); ++j) place_[(size_t)(first + j)] = {first * d + j, group(g)};
    }

    const int64_t k, d, row;

    // Centre j: d values, and behind them zeros up to a multiple of W/2.
    const float* centre(int64_t j) const { return centres_ + j * row; }
    float* edit(int64_t j) { return centres_ + j * row; }

    // To be called when centre j has been edited.
    void edited(int64_t j) {
        const float* from = centre(j);
        float* to = packed_ + place_[(size_t)j].start;
        D square = {};
        for (int64_t c = 0; c < row; c += W / 2) {
            const D value = to_double(load<H>(from + c));
            square += value * value;
        }
        for (int64_t c = 0; c < d; ++c, to += place_[(size_t)j].step) *to = from[c];
        squares_[j] = sum_of(square);
        halves_[j] = (float)(squares_[j] / 2);
    }

    // To be called when all edits are done.
    void ready() {
        largest_ = 0;
        for (int64_t j = 0; j < k; ++j) largest_ = std::max(largest_, halves_[j]);
        doubt_ = 0x1p-22f * std::sqrt((float)d) * largest_;
    }

    // A block of patches, [d][kBlock], of which the first `valid` are there; the lanes behind get some label.
    // With their squared norms given, slack becomes a lower bound on how much farther than the nearest centre the
    // others are: as long as centres move less than that, the label stays.
    struct Block {
        const float* x;
        int64_t valid;
        int32_t* labels;
        const float* norms = nullptr;
        float* slack = nullptr;
    };

    // The nearest centre of every patch, the lowest number among equals.
    void label(const Block& block) {
        int v = 0;
        for (; v < 3 && (v + 1) * W < block.valid; v += 2) search<2>(block, v);
        if (v * W < block.valid) search<1>(block, v);
    }

    float largest_norm() const { return std::sqrt(2 * largest_); }

  private:
    // Scores of the nearest and the second nearest, and the nearest's number, for a vector of patches.
    struct Found {
        F best, second;
        I label;
    };

    struct Place {
        int64_t start, step;
    };

    int64_t group(int64_t g) const { return k / groups_ + (g < k % groups_); }

    template <int V>
    void search(const Block& block, int v) {
        Found found[V];
        for (Found& f : found) f = {splat(__builtin_inff()), splat(__builtin_inff()), I{}};
        for (int64_t g = 0, first = 0; g < groups_; first += group(g++))
            compare_any(block.x + v * W, group(g), first, found, std::make_integer_sequence<int, kGroup>{});
        for (const Found& f : found) {
            store(block.labels + v * W, f.label);
            const F doubt = 0x1p-18f * larger(f.best, -f.best) + doubt_;
            for (uint32_t bits = lanes(f.second - f.best <= doubt); bits; bits &= bits - 1) {
                const int lane = v * W + __builtin_ctz(bits);
                block.labels[lane] = exactly_nearest(block.x + lane);
            }
            if (block.slack) {
                const F norm = load<F>(block.norms + v * W), error = 2.0f * doubt + 0x1p-20f * norm;
                const F near = larger(2.0f * f.best + norm + error, F{});
                const F far = larger(2.0f * f.second + norm - error, F{});
                store(block.slack + v * W, square_root(far) - square_root(near));
            }
            ++v;
        }
    }

    template <int V, int... J>
    void compare_any(const float* x, int64_t size, int64_t first, Found (&found)[V],
                     std::integer_sequence<int, J...>) const {
        ((size == J + 1 ? compare<V, J + 1>(x, first, found) : void()), ...);
    }

    // Scores ½‖c‖² − x·c, which are ½‖x−c‖² but for a term that all centres share. The number within the group
    // replaces the last four bits of a score, so that minima carry it along.
    template <int V, int C>
    void compare(const float* x, int64_t first, Found (&found)[V]) const {
        static_assert(kGroup <= 16);
        const float* centre = packed_ + first * d;
        F score[C][V];
#pragma GCC unroll 16
        for (int j = 0; j < C; ++j)
            for (int v = 0; v < V; ++v) score[j][v] = splat(halves_[first + j]);
        for (int64_t c = 0; c < d; ++c, centre += C, x += kBlock) {
            F value[V];
            for (int v = 0; v < V; ++v) value[v] = load<F>(x + v * W);
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j)
                for (int v = 0; v < V; ++v) score[j][v] -= value[v] * centre[j];
        }
        for (int v = 0; v < V; ++v) {
            F best = numbered(score[0][v], 0), second = splat(__builtin_inff());
#pragma GCC unroll 16
            for (int j = 1; j < C; ++j) {
                const F other = numbered(score[j][v], j);
                second = smaller(second, larger(best, other));
                best = smaller(best, other);
            }
            const I closer = best < found[v].best;
            found[v].second = smaller(smaller(found[v].second, second), larger(found[v].best, best));
            found[v].label = closer ? ((I)best & 15) + (int32_t)first : found[v].label;
            found[v].best = smaller(found[v].best, best);
        }
    }

    int32_t exactly_nearest(const float* x) {
        for (int64_t c = 0; c < d; ++c) point_[c] = x[c * kBlock];
        double best = __builtin_inf();
        int32_t label = 0;
        for (int64_t j = 0; j < k; ++j) {
            D product = {};
            for (int64_t c = 0; c < row; c += W / 2)
                product += load<D>(point_ + c) * to_double(load<H>(centre(j) + c));
            const double score = squares_[j] - 2 * sum_of(product);
            if (score < best) best = score, label = (int32_t)j;
        }
        return label;
    }

    int64_t groups_;
    float largest_ = 0;  // half the squared norm of the centre farthest from the origin
    float doubt_ = 0;    // what rounding can do to a difference of scores, besides what grows with them
    Buffer<float> centres_, packed_, halves_;
    Buffer<double> squares_, point_;
    std::vector<Place> place_;  // where a centre's values lie in packed_: groups are [d][C]
};

}  // namespace
