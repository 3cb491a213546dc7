// An image's noisy patches, in blocks of kBlock patches laid out [d][kBlock]: what the k-means loops read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <new>
#include <vector>

#include "philox.hpp"

namespace {

constexpr int kBlock = 4 * W;

inline int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Zeroed memory that begins at a cache line.
template <class Value>
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { ::operator delete(data_, std::align_val_t(64)); }

    void resize(int64_t count) {
        ::operator delete(data_, std::align_val_t(64));
        data_ = nullptr;
        data_ = (Value*)::operator new((size_t)count * sizeof(Value), std::align_val_t(64));
        std::memset((void*)data_, 0, (size_t)count * sizeof(Value));
    }
    operator Value*() { return data_; }
    operator const Value*() const { return data_; }

  private:
    Value* data_ = nullptr;
};

// Patches are also held as rows of row_length(d) values, zeros behind the d, if that is at most 2 MiB: what stays
// in a core's cache.
constexpr int64_t kRowsKept = 1 << 19;
inline int64_t row_length(int64_t dimensions) { return up(dimensions, W / 2); }

// A block's patches, [d][kBlock], as rows.
inline void cut_rows(const float* x, int64_t d, float* rows) {
    const int64_t length = row_length(d);
    for (int v = 0; v < 4; ++v)
        for (int64_t c = 0; c < length; c += W) {
            F square[W];
            for (int r = 0; r < W; ++r) square[r] = c + r < d ? load<F>(x + (c + r) * kBlock + v * W) : F{};
            transpose(square);
            for (int r = 0; r < W; ++r) {
                float* to = rows + (v * W + r) * length + c;
                c + W <= length ? store(to, square[r]) : store(to, lower(square[r]));
            }
        }
}

// Set by the caller's other thread to end the work; looked at once a block.
struct Stopped {};
struct StopFlag {
    const int32_t* flag;
    void check() const {
        if (flag && __atomic_load_n(flag, __ATOMIC_RELAXED)) throw Stopped{};
    }
};

// Where the patches of an image lie: side by side (the image already padded), or every window.
struct Grid {
    bool sliding;
    int64_t size, channels, height, width;

    int64_t rows() const { return sliding ? height - size + 1 : height / size; }
    int64_t columns() const { return sliding ? width - size + 1 : width / size; }
    int64_t count() const { return rows() * columns(); }
    int64_t dimensions() const { return channels * size * size; }
    int64_t blocks() const { return up(count(), kBlock) / kBlock; }
    int64_t pixels() const { return height * width; }
};

// The multiples of 2^-bits to which noisy patches and centres are rounded, as vqshield.quantization.fixed_point says: they are
// then float32 numbers, and distances of them are exact in float64. The noise is added in integers, in units of
// 2^-fine, so that nearly every sum is rounded as the reference rounds it: half-way patches up, half-way centres to
// the even number.
struct FixedPoint {
    int bits, fine;
    double unit, rounder;

    FixedPoint(int64_t bits, double bound)
        : bits((int)bits), fine(30 - std::ilogb(bound)), unit(std::ldexp(1.0, -this->bits)), rounder(unit * 0x1.8p52) {}

    int shift() const { return fine - bits; }
    // The nearest multiple of unit, the even one of two: adding the rounder leaves no bits for less.
    D round(D value) const { return (value + rounder) - rounder; }
};

// The image rearranged so that component c of patches i, i+1, … lies side by side. Windows share their rows, so
// one plane for each channel and column offset serves all row offsets. Only a strip of the image is held.
class Planes {
  public:
    Planes(const Grid& grid, const FixedPoint& fixed)
        : grid_(grid), fixed_(fixed), offset_((size_t)grid.dimensions()), constant_((size_t)grid.channels) {
        const int64_t size = grid.size, columns = grid.columns();
        const int64_t planes = grid.channels * size * (grid.sliding ? 1 : size);
        const int64_t spanned = (kBlock - 1) / columns + 2;  // rows that one block can touch
        strip_ = std::min(grid.rows(), std::max(spanned, kValues / (planes * columns)));
        plane_ = (strip_ + (grid.sliding ? size - 1 : 0)) * columns;
        data_.resize(planes * plane_ + kBlock);
        for (int64_t c = 0; c < grid.dimensions(); ++c) {
            const int64_t dx = c % size, dy = c / size % size, channel = c / size / size;
            offset_[(size_t)c] = grid.sliding ? (channel * size + dx) * plane_ + dy * columns : c * plane_;
        }
    }

    // origin: one value a channel, to be subtracted.
    void use(const float* image, const float* origin) {
        image_ = image;
        first_ = last_ = 0;
        const int32_t half = 1 << (fixed_.shift() - 1);  // rounds when the shift cuts off
        for (size_t channel = 0; channel < constant_.size(); ++channel)
            constant_[channel] = half - (int32_t)std::ldexp(origin[channel], fixed_.fine);
    }

    // Makes patches start … start+kBlock−1 readable; the lanes behind the last patch hold some pixel.
    void reach(int64_t start) {
        const int64_t end = std::min(start + kBlock, grid_.count());
        const int64_t first = start / grid_.columns(), last = (end - 1) / grid_.columns() + 1;
        if (first < first_ || last > last_) fill(first, std::min(first + strip_, grid_.rows()));
        start_ = start - first_ * grid_.columns();
    }

    // Pixels less the origin, plus what makes a shift round: in units of 2^-fine.
    const int32_t* component(int64_t c) const { return data_ + offset_[(size_t)c] + start_; }

  private:
    static constexpr int64_t kValues = 1 << 16;  // 256 KiB, if a few rows of patches are not more

    void fill(int64_t first, int64_t last) {
        first_ = first, last_ = last;
        const int64_t size = grid_.size;
        int32_t* to = data_;
        for (int64_t channel = 0; channel < grid_.channels; ++channel) {
            const float* from = image_ + channel * grid_.pixels();
            if (grid_.sliding) {
                for (int64_t dx = 0; dx < size; ++dx, to += plane_)
                    for (int64_t y = first; y < last + size - 1; ++y)
                        copy(channel, from + y * grid_.width + dx, 1, to + (y - first) * grid_.columns());
            } else {
                for (int64_t dy = 0; dy < size; ++dy)
                    for (int64_t dx = 0; dx < size; ++dx, to += plane_)
                        for (int64_t y = first; y < last; ++y)
                            copy(channel, from + (y * size + dy) * grid_.width + dx, size,
                                 to + (y - first) * grid_.columns());
            }
        }
    }

    void copy(int64_t channel, const float* from, int64_t step, int32_t* to) const {
        const float scale = std::ldexp(1.0f, fixed_.fine);
        const int32_t constant = constant_[(size_t)channel];
        for (int64_t x = 0; x < grid_.columns(); ++x) to[x] = (int32_t)(from[x * step] * scale) + constant;
    }

    Grid grid_;
    FixedPoint fixed_;
    std::vector<int64_t> offset_;
    std::vector<int32_t> constant_;
    Buffer<int32_t> data_;
    const float* image_ = nullptr;
    int64_t strip_ = 0, plane_ = 0, first_ = 0, last_ = 0, start_ = 0;
};

// Patches plus noise less an origin, the image's mean colour: float32 distances are most exact near zero.
class NoisyPatches {
  public:
    NoisyPatches(const Grid& grid, const FixedPoint& fixed, bool keep)
        : grid_(grid), fixed_(fixed), planes_(grid, fixed), kept_(keep), origin_((size_t)grid.channels) {
        block_ = grid.dimensions() * kBlock;
        data_.resize(keep ? grid.blocks() * block_ : block_);
        noise_.resize(4 * grid.dimensions() * W);
        const int64_t values = grid.blocks() * kBlock * row_length(grid.dimensions());
        if (keep && values <= kRowsKept) rows_.resize(values + W);
    }

    void use(const float* image, const Stream& stream, double scale) {
        for (int64_t channel = 0; channel < grid_.channels; ++channel) {
            D sums = {};
            const float* from = image + channel * grid_.pixels();
            int64_t i = 0;
            for (; i + W / 2 <= grid_.pixels(); i += W / 2) sums += to_double(load<H>(from + i));
            double sum = sum_of(sums);
            for (; i < grid_.pixels(); ++i) sum += from[i];
            const int coarse = std::min(8, fixed_.bits);  // few bits, so that the subtraction loses none
            origin_[(size_t)channel] =
                (float)std::ldexp(std::floor(std::ldexp(sum / (double)grid_.pixels(), coarse)), -coarse);
        }
        planes_.use(image, origin_.data());
        stream_ = stream;
        scale_ = (float)std::ldexp(scale, fixed_.fine);
        made_ = 0;
    }

    int64_t count() const { return grid_.count(); }
    int64_t dimensions() const { return grid_.dimensions(); }
    D round(D value) const { return fixed_.round(value); }
    float origin(int64_t c) const { return origin_[(size_t)(c / (grid_.size * grid_.size))]; }

    bool kept() const { return kept_; }

    // Block number b, [d][kBlock]. A kept block is made once; otherwise it is made anew and comes out the same.
    const float* block(int64_t b) {
        if (!kept_) return passing_block(b);
        for (; made_ <= b; ++made_) {
            make(made_, data_ + made_ * block_);
            const int64_t d = grid_.dimensions();
            if (rows_) cut_rows(data_ + made_ * block_, d, rows_ + made_ * kBlock * row_length(d));
        }
        return data_ + b * block_;
    }

    // All patches whose blocks have been made as rows, or null if they are not kept so.
    const float* rows() const { return rows_; }

    // The same for a single pass over the patches: nothing is kept.
    const float* passing_block(int64_t b) {
        make(b, data_);
        return data_;
    }

  private:
    // Value i·d + c belongs to component c of patch i, so four patches take d whole counters. Lane j draws for
    // patches 4j … 4j+3 of the block; zipping four vectors puts the patches side by side.
    void make(int64_t b, float* block) {
        const int64_t d = grid_.dimensions();
        planes_.reach(b * kBlock);
        if (scale_ > 0) {
            U index;
            for (int j = 0; j < W; ++j) index[j] = (uint32_t)((b * W + j) * d);
            for (int64_t t = 0; t < d; ++t) {
                F values[4];
                normals(stream_, index + (uint32_t)t, values);
                for (int v = 0; v < 4; ++v) store(noise_ + (4 * t + v) * W, values[v]);
            }
        }
        const int shift = fixed_.shift();
        const float unit = (float)fixed_.unit;
        for (int64_t c = 0; c < d; ++c) {
            F z[4] = {};
            if (scale_ > 0) {
                for (int p = 0; p < 4; ++p) z[p] = load<F>(noise_ + (p * d + c) * W);
                const F even[2] = {zip<false>(z[0], z[2]), zip<true>(z[0], z[2])};
                const F odd[2] = {zip<false>(z[1], z[3]), zip<true>(z[1], z[3])};
                for (int v = 0; v < 4; v += 2)
                    z[v] = zip<false>(even[v / 2], odd[v / 2]), z[v + 1] = zip<true>(even[v / 2], odd[v / 2]);
            }
            for (int v = 0; v < 4; ++v) {
                const I sum = load<I>(planes_.component(c) + v * W) + to_int(scale_ * z[v]);
                store(block + c * kBlock + v * W, to_float(sum >> shift) * unit);
            }
        }
    }

    Grid grid_;
    FixedPoint fixed_;
    Planes planes_;
    bool kept_;
    Stream stream_{0, 0, 0};
    float scale_ = 0;
    int64_t block_ = 0, made_ = 0;
    Buffer<float> data_, noise_, rows_;
    std::vector<float> origin_;  // one value a channel
};

}  // namespace
