// Patches and centres rounded to 16 bits, of which one instruction multiplies and adds twice as many as of float32.
// Rounding moves a patch by at most e and a centre by at most f, so a distance changes by at most e + f. Where the
// nearest centre is nearer than the next by more than twice that, it is the nearest without rounding too; where not,
// the label is doubtful, and the codebook decides. Labels are therefore the same as without this file.
#pragma once

#include "codebook.hpp"
#include "processor.hpp"

namespace {

// How many units the longest patch or centre has. Products of two are then below 2^30, and with half the square of a
// centre sums stay below 2^31.
constexpr float kLongest = 32000;

// Whether add_pairs is there, and faster than multiplying float32.
inline bool multiplies_pairs() {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    static const bool there = multiplies_pairs_512();
    return there;
#elif defined(__x86_64__)
    return true;
#else
    return false;
#endif
}

class Coarse {
  public:
    // With rows, patches from here and there can be packed into a block.
    Coarse(const Codebook& book, int64_t patches, bool rows)
        : book_(book),
          pairs_((book.d + 1) / 2),
          row_(up(pairs_, W)),
          groups_(up(book.k, kGroup) / kGroup),
          usable_(patches > 0 && multiplies_pairs() && book.k > 1) {
        if (!usable_) return;
        const int64_t blocks = up(patches, kBlock) / kBlock;
        patches_.resize(blocks * pairs_ * kBlock);
        if (rows) rows_.resize(blocks * kBlock * row_), packed_.resize(pairs_ * kBlock);
        squares_.resize(blocks * kBlock);
        centres_.resize(book.k * pairs_);
        halves_.resize(book.k);
        lost_.resize(book.k);
        place_.resize((size_t)book.k);
        for (int64_t g = 0, first = 0; g < groups_; first += group(g++))
            for (int64_t j = 0; j < group(g); ++j) place_[(size_t)(first + j)] = {first * pairs_ + j, group(g)};
    }

    // Bytes that it keeps of a patch of so many values.
    static int64_t bytes(int64_t dimensions) { return multiplies_pairs() ? (dimensions + 1) / 2 * 4 + 4 : 0; }

    // Whether anything is gained by the calls below.
    bool usable() const { return usable_; }

    // For every image: each block of patches, [d][kBlock], is measured, then begin() called, and if that says that 16
    // bits will do, each block taken, and taken() called.
    void measure(const float* x) {
        F most = {};
        for (int v = 0; v < 4; ++v) most = larger(most, squared_lengths(x + v * W, book_.d));
        longest_ = std::max(longest_, largest_of(most));
    }

    bool begin() {
        const float longest = std::max(std::sqrt(longest_), book_.largest_norm());
        active_ = longest > 1e-6f;
        scale_ = active_ ? kLongest / longest : 0;
        longest_ = error_ = 0;
        return active_;
    }

    void take(int64_t b, const float* x) {
        int32_t* to = patches_ + b * pairs_ * kBlock;
        F most = {};
        for (int v = 0; v < 4; ++v) {
            Rounding rounding{scale_};
            for (int64_t p = 0; p < pairs_; ++p) {
                const float* from = x + 2 * p * kBlock + v * W;
                const I low = rounding.round(load<F>(from));
                const I high = 2 * p + 1 < book_.d ? rounding.round(load<F>(from + kBlock)) : I{};
                store(to + p * kBlock + v * W, (low & 0xFFFF) | (high << 16));
            }
            store(squares_ + b * kBlock + v * W, rounding.square);
            most = larger(most, rounding.lost);
        }
        error_ = std::max(error_, largest_of(most));
        if (rows_) keep_rows(to, rows_ + b * kBlock * row_);
    }

    void taken() {
        error_ = with_margin(error_);
        for (int64_t j = 0; j < book_.k; ++j) edited(j);
    }

    // Whether the image's patches have been taken.
    bool active() const { return active_; }

    // Centre j as the codebook has it now.
    void edited(int64_t j) {
        const float* from = book_.centre(j);
        int32_t* to = centres_ + place_[(size_t)j].start;
        static_assert(W % 2 == 0);
        Rounding rounding{scale_};
        I squares = {};
        for (int64_t c = 0; c < book_.d; c += W) {
            const I moved = rounding.round(c + W <= book_.row ? load<F>(from + c) : joined(load<H>(from + c), H{}));
            const I value = (moved << 16) >> 16;
            squares += value * value;
            int32_t pairs[W];  // every second
            store(pairs, (I)((((L)-value) & 0xFFFF) | (((L)-value) >> 16 & 0xFFFF0000)));
            for (int64_t i = 0; i < W && c + i < book_.d; i += 2, to += place_[(size_t)j].step) *to = pairs[i];
        }
        lost_[j] = sum_of(rounding.lost);
        halves_[j] = (int32_t)(sum_of(squares) / 2);
    }

    // To be called when all edits are done.
    void ready() {
        const float error = with_margin(*std::max_element((float*)lost_, lost_ + book_.k));
        doubt_ = 2 * (error_ + error);
    }

    // The nearest centre of patches 0 … valid−1 of block b; slack as in Codebook::Block, or null. Returns one bit for
    // each patch whose label is in doubt.
    uint64_t label(int64_t b, int64_t valid, int32_t* labels, float* slack) const {
        return label({patches_ + b * pairs_ * kBlock, squares_ + b * kBlock, valid, labels, slack});
    }

    // The same for the patches with these numbers, of which there are as many as a block has.
    uint64_t label_these(const int64_t* numbers, int64_t valid, int32_t* labels, float* slack) {
        alignas(64) float squares[kBlock];
        for (int m = 0; m < kBlock; ++m) squares[m] = squares_[numbers[m]];
        for (int v = 0; v * W < valid; ++v)
            for (int64_t p = 0; p < pairs_; p += W) {
                F square[W];
                for (int r = 0; r < W; ++r) square[r] = load<F>(rows_ + numbers[v * W + r] * row_ + p);
                transpose(square);
                for (int r = 0; r < W && p + r < pairs_; ++r) store(packed_ + (p + r) * kBlock + v * W, square[r]);
            }
        return label({packed_, squares, valid, labels, slack});
    }

  private:
    struct Block {
        const int32_t* x;
        const float* squares;
        int64_t valid;
        int32_t* labels;
        float* slack;
    };

    struct Found {
        I best, second, label;
    };

    struct Place {
        int64_t start, step;
    };

    int64_t group(int64_t g) const { return book_.k / groups_ + (g < book_.k % groups_); }

    // Whole numbers of units nearest to values, of which only the last 16 bits count.
    struct Rounding {
        float scale;
        F square = {}, lost = {};  // the sum of squares of the results, and of what they lack

        I round(F value) {
            constexpr float rounder = 0x1.8p23f;
            const F moved = value * scale + rounder, whole = moved - rounder, lack = whole - value * scale;
            square += whole * whole;
            lost += lack * lack;
            return (I)moved;
        }
    };

    // A length from its square, where float32 may have lost some of it.
    static float with_margin(float square) { return std::sqrt(square) * 1.01f + 0.01f; }

    void keep_rows(const int32_t* block, int32_t* rows) const {
        for (int v = 0; v < 4; ++v)
            for (int64_t p = 0; p < pairs_; p += W) {
                F square[W];
                for (int r = 0; r < W; ++r) square[r] = p + r < pairs_ ? load<F>(block + (p + r) * kBlock + v * W) : F{};
                transpose(square);
                for (int r = 0; r < W; ++r) store(rows + (v * W + r) * row_ + p, square[r]);
            }
    }

    VQ_PAIRS uint64_t label(const Block& block) const {
        uint64_t doubtful = 0;
        int v = 0;
        for (; v < 3 && (v + 1) * W < block.valid; v += 2) doubtful |= search<2>(block, v);
        if (v * W < block.valid) doubtful |= search<1>(block, v);
        return doubtful;
    }

    template <int V>
    VQ_PAIRS uint64_t search(const Block& block, int v) const {
        Found found[V];
        for (Found& f : found) f = {splat(INT32_MAX), splat(INT32_MAX), I{}};
        for (int64_t g = 0, first = 0; g < groups_; first += group(g++))
            compare_any(block.x + v * W, group(g), first, found, std::make_integer_sequence<int, kGroup>{});
        // What float32 does to the squares of distances, and the numbers in place of a score's last bits.
        const float error = 1024 + 64 * (float)book_.d;
        uint64_t doubtful = 0;
        for (const Found& f : found) {
            store(block.labels + v * W, f.label);
            const F square = load<F>(block.squares + v * W);
            const F near = larger(2.0f * to_float(f.best) + square + error, F{});
            const F far = larger(2.0f * to_float(f.second) + square - error, F{});
            const F slack = square_root(far) - square_root(near) - doubt_;
            doubtful |= (uint64_t)lanes(slack <= 0.0f) << (v * W);
            if (block.slack) store(block.slack + v * W, slack * (1 / scale_));
            ++v;
        }
        return doubtful;
    }

    template <int V, int... J>
    VQ_PAIRS void compare_any(const int32_t* x, int64_t size, int64_t first, Found (&found)[V],
                     std::integer_sequence<int, J...>) const {
        ((size == J + 1 ? compare<V, J + 1>(x, first, found) : void()), ...);
    }

    // Scores as in Codebook::compare, in whole numbers; centres are held with their signs turned.
    template <int V, int C>
    VQ_PAIRS void compare(const int32_t* x, int64_t first, Found (&found)[V]) const {
        static_assert(kGroup <= 16);
        const int32_t* centre = centres_ + first * pairs_;
        I score[C][V];
#pragma GCC unroll 16
        for (int j = 0; j < C; ++j)
            for (int v = 0; v < V; ++v) score[j][v] = splat(halves_[first + j]);
        for (int64_t p = 0; p < pairs_; ++p, centre += C, x += kBlock) {
            I value[V];
            for (int v = 0; v < V; ++v) value[v] = load<I>(x + v * W);
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j)
                for (int v = 0; v < V; ++v) score[j][v] = add_pairs(score[j][v], value[v], splat(centre[j]));
        }
        for (int v = 0; v < V; ++v) {
            I best = numbered(score[0][v], 0), second = splat(INT32_MAX);
#pragma GCC unroll 16
            for (int j = 1; j < C; ++j) {
                const I other = numbered(score[j][v], j);
                second = smaller(second, larger(best, other));
                best = smaller(best, other);
            }
            const I closer = best < found[v].best;
            found[v].second = smaller(smaller(found[v].second, second), larger(found[v].best, best));
            found[v].label = closer ? (best & 15) + (int32_t)first : found[v].label;
            found[v].best = smaller(found[v].best, best);
        }
    }

    const Codebook& book_;
    int64_t pairs_, row_, groups_;
    bool usable_, active_ = false;
    float longest_ = 0;  // the square of the longest patch measured
    float scale_ = 0;    // units in 1
    float error_ = 0;    // how far rounding moves a patch at most, in units
    float doubt_ = 0;    // by how much rounding changes a difference of distances at most, in units
    Buffer<int32_t> patches_;  // blocks of [pairs][kBlock]
    Buffer<int32_t> rows_;     // the same patches as rows
    Buffer<int32_t> packed_;   // a block of patches from here and there
    Buffer<float> squares_;    // of the patches' lengths, in units
    Buffer<int32_t> centres_, halves_;
    Buffer<float> lost_;        // the square of how far rounding moves a centre, in units
    std::vector<Place> place_;  // where a centre's values lie in centres_: groups are [pairs][C]
};

}  // namespace
