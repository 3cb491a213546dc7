// Quantized patches put together to an image again.
#pragma once

#include "codebook.hpp"

namespace {

// e^x for x ≤ 0, to about 1e-7 (Cephes expf); what is below e^-87 counts as that.
inline F exponential(F x) {
    x = larger(x, splat(-87.0f));
    const I n = to_int(x * 1.44269504088896341f - 0.5f);
    const F whole = to_float(n);
    const F r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    F p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * (F)((n + 127) << 23);
}

inline F clamped(F value) { return smaller(larger(value, F{}), splat(1.0f)); }

// The centres in place of patches first … first+count−1.
inline void put_disjoint(const Grid& grid, const float* centres, const int32_t* labels, int64_t first, int64_t count,
                         float* image) {
    const int64_t size = grid.size, columns = grid.columns();
    for (int64_t i = 0; i < count; ++i) {
        const float* from = centres + labels[i] * grid.dimensions();
        float* corner = image + (first + i) / columns * size * grid.width + (first + i) % columns * size;
        for (int64_t channel = 0; channel < grid.channels; ++channel)
            for (int64_t dy = 0; dy < size; ++dy)
                for (int64_t dx = 0; dx < size; ++dx) {
                    const float value = *from++;
                    corner[channel * grid.pixels() + dy * grid.width + dx] = value < 0 ? 0 : value > 1 ? 1 : value;
                }
    }
}

// Each pixel as the mean of itself in all quantized windows that cover it, weighted by e^(−beta·distance); the
// least distance of a pixel's own windows is subtracted first. Distances are float64: beta may be in the hundred
// thousands. The last s rows of windows are at hand, with margins so that pixels are worked on in whole vectors.
class SlidingRebuild {
  public:
    SlidingRebuild(const Grid& grid, int64_t codes, double beta, bool noisy)
        : grid_(grid), codes_(codes), beta_(beta), noisy_(noisy), vectors_(up(codes, W) / W) {
        if (!grid.sliding) return;
        tables_.resize(grid.dimensions() * vectors_ * W);
        labels_.resize(grid.count() + kBlock);
        distances_.resize(noisy ? grid.count() + kBlock : 0);
        line_ = grid.size - 1 + grid.width + 2 * W;
        near_labels_.resize(grid.size * line_);
        near_distances_.resize(grid.size * line_);
        std::fill_n((double*)near_distances_, grid.size * line_, kFar);
        near_row_.resize((size_t)grid.size);
        weights_.resize(grid.size * grid.size * W);
        for (int64_t c = 0; c < grid.dimensions(); ++c) {
            const int64_t dx = c % grid.size, dy = c / grid.size % grid.size, channel = c / grid.size / grid.size;
            offset_.push_back(channel * grid.pixels() + dy * grid.width + dx);
        }
    }

    void use(const float* centres) {
        for (int64_t c = 0; c < grid_.dimensions(); ++c)
            for (int64_t j = 0; j < codes_; ++j) tables_[c * vectors_ * W + j] = centres[j * grid_.dimensions() + c];
    }

    // To be filled with the labels of all windows; there is room for a block behind the last.
    int32_t* labels() { return labels_; }

    // Distances of a block of windows plus noise: x [d][kBlock], less the origin.
    template <class Patches>
    void measure_noisy(const Patches& patches, const float* x, int64_t first) {
        for (int v = 0; v < 4; ++v)
            measure(load<I>(labels_ + first + v * W), distances_ + first + v * W,
                    [&](int64_t c) { return load<F>(x + c * kBlock + v * W) + patches.origin(c); });
    }

    void rebuild(const float* image, float* output, StopFlag stop) {
        for (int64_t y = 0; y < grid_.height; ++y) {
            stop.check();
            if (y < grid_.rows()) bring(image, y);
            for (int64_t dy = 0; dy < grid_.size; ++dy)
                near_row_[(size_t)dy] = (y - dy + grid_.size) % grid_.size * line_ + grid_.size - 1;
            for (int64_t x = 0; x < grid_.width; x += W) weigh(y, x), add(y, x, output);
        }
    }

  private:
    // The labels and distances of a row of windows, measured now if the windows as they came count.
    void bring(const float* image, int64_t row) {
        const float* end = image + grid_.channels * grid_.pixels();
        const int64_t columns = grid_.columns(), margin = row % grid_.size * line_ + grid_.size - 1;
        std::copy_n(labels_ + row * columns, columns, near_labels_ + margin);
        if (noisy_) {
            std::copy_n(distances_ + row * columns, columns, near_distances_ + margin);
            return;
        }
        for (int64_t x = 0; x < columns; x += W)
            measure(load<I>(near_labels_ + margin + x), near_distances_ + margin + x, [&](int64_t c) {
                return load_before(end, image + row * grid_.width + x + offset_[(size_t)c]);
            });
        std::fill_n(near_distances_ + margin + columns, W, kFar);
    }

    // W values, or as many as there are before the end.
    static F load_before(const float* end, const float* from) {
        if (from + W <= end) return load<F>(from);
        F some = {};
        for (int j = 0; from + j < end; ++j) some[j] = from[j];
        return some;
    }

    // Squared distances of W windows from their centres: differences, summed in float64.
    template <class Values>
    void measure(I label, double* distances, const Values& values) {
        D low = {}, high = {};
        for (int64_t c = 0; c < grid_.dimensions(); ++c) {
            const F difference = values(c) - lookup(tables_ + c * vectors_ * W, vectors_, label);
            const D a = to_double(lower(difference)), b = to_double(upper(difference));
            low += a * a;
            high += b * b;
        }
        store(distances, low);
        store(distances + W / 2, high);
    }

    // Calls with(dy, dx, near) for every window that covers pixels x … x+W−1 of row y, or some of them; near is
    // the window's place among those at hand.
    template <class With>
    void covering(int64_t y, int64_t x, const With& with) const {
        const int64_t size = grid_.size;
        for (int64_t dy = std::max<int64_t>(0, y - grid_.rows() + 1); dy < std::min(size, y + 1); ++dy)
            for (int64_t dx = 0; dx < size; ++dx) with(dy, dx, near_row_[(size_t)dy] + x - dx);
    }

    // The weights of the windows that cover pixels x … x+W−1 of row y; zero where a window would stick out.
    void weigh(int64_t y, int64_t x) {
        D least[2] = {splat(kFar), splat(kFar)};
        covering(y, x, [&](int64_t, int64_t, int64_t near) {
            for (int h = 0; h < 2; ++h) {
                const D distance = load<D>(near_distances_ + near + h * W / 2);
                least[h] = distance < least[h] ? distance : least[h];
            }
        });
        covering(y, x, [&](int64_t dy, int64_t dx, int64_t near) {
            H exponent[2];
            for (int h = 0; h < 2; ++h) {
                const D distance = load<D>(near_distances_ + near + h * W / 2);
                exponent[h] = to_half(beta_ * (least[h] - distance));
            }
            const U column = (U)(counting() + (int32_t)(x - dx));
            const F weight = exponential(joined(exponent[0], exponent[1]));
            store(weights_ + (dy * grid_.size + dx) * W, column < (uint32_t)grid_.columns() ? weight : F{});
        });
    }

    void add(int64_t y, int64_t x, float* output) const {
        const int64_t size = grid_.size;
        F sum = {};
        covering(y, x, [&](int64_t dy, int64_t dx, int64_t) { sum += load<F>(weights_ + (dy * size + dx) * W); });
        for (int64_t channel = 0; channel < grid_.channels; ++channel) {
            const float* tables = tables_ + channel * size * size * vectors_ * W;
            F total = {};
            covering(y, x, [&](int64_t dy, int64_t dx, int64_t near) {
                const int64_t c = dy * size + dx;
                const F value = lookup(tables + c * vectors_ * W, vectors_, load<I>(near_labels_ + near));
                total += load<F>(weights_ + c * W) * value;
            });
            const F pixels = clamped(total / sum);
            float* to = output + channel * grid_.pixels() + y * grid_.width + x;
            if (x + W <= grid_.width)
                store(to, pixels);
            else
                std::memcpy(to, &pixels, (size_t)(grid_.width - x) * sizeof(float));
        }
    }

    static constexpr double kFar = 1e300;  // of windows that would stick out

    Grid grid_;
    int64_t codes_;
    double beta_;
    bool noisy_;
    int64_t vectors_, line_ = 0;
    std::vector<int64_t> offset_;             // of a window's component from its corner, in the image
    Buffer<float> tables_;                    // [d][codes]: component c of all centres
    Buffer<int32_t> labels_, near_labels_;    // of all windows; of the last s rows
    Buffer<double> distances_, near_distances_;
    std::vector<int64_t> near_row_;  // where the row of windows dy above the current pixels is, of those at hand
    Buffer<float> weights_;          // [s·s][W]
};

}  // namespace
