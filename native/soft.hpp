// The gradient of soft assignment: of sum_j softmax_j(−‖p − c_j‖²/T)·c_j in place of every patch p, put together as
// the quantizers put theirs. Forward and backward are one pass over the rows of patches: only those rows are at hand
// that share a pixel with the next one, so that nothing grows with the number of patches but their labels.
//
// Workspace of a thread, in bytes, for n patches of d values in rows of w, q channels, k centres, and windows of side s
// (1 where patches lie side by side): 4·n for labels; 4·(s·(3·d + k + s² + 3·q) + 4·d + k)·(w + 4·W) for rows; and
// 16·k·(d + W) for centres and their gradients.
#pragma once

#include "worker.hpp"

// What vq_soft is given.
struct VqSoftJob {
    const float* images;     // (batch, channels, height, width), padded
    const float* assigned;   // the images that the assignment sees, of the same shape; may be `images`
    const int64_t* streams;  // (batch)
    const float* centres;    // (batch, codes, d)
    const float* slopes;     // as images: the gradient of what comes out
    float* output;           // as images: the gradient of what went in
    const int32_t* stop;     // null, or: the work ends soon after this becomes 1
    int64_t threads, batch, channels, height, width;
    uint64_t seed;
    int64_t sliding, size, codes;
    int64_t means;          // centres move as the mean of the patches nearest to them does
    int64_t noisy_weights;  // windows are weighted by how well they are fitted as the assignment sees them
    double tau, beta, temperature;
    int64_t images_count, assigned_count, streams_count, centres_count, slopes_count, output_count;
    char message[kMessage];
};

namespace {

void check_job(const VqSoftJob& job, VqCall) {
    check_whole("threads", job.threads, 1, kMostThreads);
    check_whole("batch", job.batch, 0, kMostInMemory);
    const Grid grid{job.sliding != 0, job.size, job.channels, job.height, job.width};
    const auto [patches, dimensions] = check_grid(grid);
    check_whole("codes", job.codes, 1, kMostCodes);
    check_real("tau", job.tau, 0, kMostNoise);
    check_real("beta", job.beta, 0, kMostBeta);
    check_real("temperature", job.temperature, 1e-6, 1e30);
    const int64_t pixels = checked_product("the number of pixels in all images",
                                           {job.batch, job.channels, job.height, job.width}, kMostInMemory);
    const int64_t centres = checked_product("the number of values in all centres",
                                            {job.batch, job.codes, dimensions}, kMostInMemory);
    checked_product("the workspace", {job.codes + dimensions, job.size, job.width + 4 * W + dimensions}, kMostInMemory);
    checked_product("the number of labels", {patches, 2}, kMostInMemory);
    check_array("images", job.images, job.images_count, pixels);
    check_array("assigned", job.assigned, job.assigned_count, pixels);
    check_array("streams", job.streams, job.streams_count, job.batch);
    check_array("centres", job.centres, job.centres_count, centres);
    check_array("slopes", job.slopes, job.slopes_count, pixels);
    check_array("output", job.output, job.output_count, pixels);
}

// How many results are summed up at once: two vectors of each must fit in the registers.
constexpr int64_t kSummed = 9;
constexpr int kTile = W == 16 ? 9 : W == 8 ? 5 : 4;

template <class With, int... J>
inline void last_tile(int64_t size, int64_t first, const With& with, std::integer_sequence<int, J...>) {
    ((size == J + 1 ? with(std::integral_constant<int, J + 1>{}, first) : void()), ...);
}

// Calls with(size, first) for tiles of `count` numbers: size is a constant for the compiler, kTile but for the last.
template <class With>
inline void tiles(int64_t count, const With& with) {
    int64_t first = 0;
    for (; first + kTile <= count; first += kTile) with(std::integral_constant<int, kTile>{}, first);
    last_tile(count - first, first, with, std::make_integer_sequence<int, kTile - 1>{});
}

// e^x for x ≤ 0, and zero where that is nothing beside one: products with numbers that small take many times as long.
inline F weight_of(F x) { return x > -60.0f ? exponential(x) : F{}; }

// Rows are kept as lines of columns, one for each component, centre or channel; lanes behind the last column, and the
// margin before the first, hold numbers that count for nothing.
class SoftWorker {
  public:
    explicit SoftWorker(const VqSoftJob& job)
        : job_(job),
          grid_{job.sliding != 0, job.size, job.channels, job.height, job.width},
          k_(job.codes),
          d_(grid_.dimensions()),
          padded_(up(d_, W)),
          square_(grid_.size * grid_.size),
          columns_(grid_.columns()),
          lanes_(up(columns_, W)),
          depth_(grid_.sliding ? grid_.size : 1),
          margin_(grid_.sliding ? up(grid_.size - 1, W) : 0),
          line_(margin_ + up(grid_.sliding ? grid_.width : columns_, W) + 2 * W),
          drawn_(job.tau > 0),
          apart_(drawn_ || job.assigned != job.images),
          vectors_(up(k_, W) / W) {
        by_centre_.resize(k_ * d_);
        by_component_.resize(k_ * d_);
        seen_.resize(depth_ * d_ * line_);
        clean_.resize(apart_ ? depth_ * d_ * line_ : 0);
        mixed_.resize(depth_ * d_ * line_);
        weights_.resize(depth_ * k_ * line_);
        slopes_.resize(d_ * line_);
        changes_.resize(d_ * line_);
        pulls_.resize(k_ * line_);
        rest_.resize(line_);
        origin_.resize((size_t)grid_.channels);
        noise_.resize(drawn_ ? columns_ * d_ + 8 * W : 0);
        if (job.means) {
            labels_.resize(grid_.rows() * lanes_);
            members_.resize((size_t)k_);
            sums_.resize(k_ * padded_);
            patch_slopes_.resize(lanes_ * padded_);
            patches_seen_.resize(lanes_ * padded_);
            totals_.resize(k_ * W);
            moves_.resize(d_ * vectors_ * W);
        }
        if (grid_.sliding) {
            similarity_.resize(depth_ * line_);
            std::fill_n((double*)similarity_, depth_ * line_, kFar);
            shares_.resize(depth_ * square_ * line_);
            blended_.resize(depth_ * grid_.channels * line_);
            given_.resize(depth_ * grid_.channels * line_);
            found_.resize(depth_ * grid_.channels * line_);
            steep_.resize(line_);
        }
    }

    void run(int64_t image) {
        image_ = image;
        const int64_t pixels = grid_.channels * grid_.pixels();
        check_values("images", pixels_of(job_.images), pixels, -kMostValue, kMostValue);
        check_values("assigned", pixels_of(job_.assigned), pixels, -kMostValue, kMostValue);
        check_values("centres", job_.centres + image * k_ * d_, k_ * d_, -kMostValue, kMostValue);
        std::fill_n(output(), pixels, 0.0f);
        use_centres();
        const int64_t rows = grid_.rows(), behind = depth_ - 1;
        for (int64_t row = 0; row < rows + behind; ++row) {
            StopFlag{job_.stop}.check();
            if (row < rows) assign(row);
            if (grid_.sliding) blend(row);
            if (row >= behind) pull(row - behind);
        }
        if (job_.means) move_centres();
    }

  private:
    const float* pixels_of(const float* images) const { return images + image_ * grid_.channels * grid_.pixels(); }
    float* output() const { return job_.output + image_ * grid_.channels * grid_.pixels(); }

    // Where a row of something that has `lines` lines is at hand.
    int64_t place(int64_t row, int64_t lines) const { return row % depth_ * lines * line_ + margin_; }
    int64_t channel(int64_t c) const { return c / square_; }
    int64_t down(int64_t c) const { return c / grid_.size % grid_.size; }
    int64_t across(int64_t c) const { return c % grid_.size; }
    I there(int64_t x) const { return counting() < (int32_t)std::min<int64_t>(columns_ - x, W); }

    // Calls with(vectors, x) for the columns of a row, two vectors of them at once where there are two.
    template <class With>
    void each_vectors(const With& with) const {
        int64_t x = 0;
        for (; x + 2 * W <= lanes_; x += 2 * W) with(std::integral_constant<int, 2>{}, x);
        if (x < lanes_) with(std::integral_constant<int, 1>{}, x);
    }

    // The centres less their mean colour: differences of small numbers lose fewer bits.
    void use_centres() {
        const float* centres = job_.centres + image_ * k_ * d_;
        for (int64_t q = 0; q < grid_.channels; ++q) {
            double sum = 0;
            for (int64_t j = 0; j < k_; ++j)
                for (int64_t c = q * square_; c < (q + 1) * square_; ++c) sum += centres[j * d_ + c];
            const double mean = sum / (double)(k_ * square_);
            origin_[(size_t)q] = (float)(std::floor(mean * 256) / 256);  // few bits, so that subtractions lose none
        }
        for (int64_t j = 0; j < k_; ++j)
            for (int64_t c = 0; c < d_; ++c)
                by_centre_[j * d_ + c] = by_component_[c * k_ + j] = centres[j * d_ + c] - origin_[(size_t)channel(c)];
        if (!job_.means) return;
        std::fill_n((float*)sums_, k_ * padded_, 0.0f);
        std::fill_n((float*)totals_, k_ * W, 0.0f);
        std::fill(members_.begin(), members_.end(), 0);
    }

    // Forward: the weights of the centres, what they mix to, and how like the window that is.
    void assign(int64_t row) {
        float* seen = seen_ + place(row, d_);
        cut(pixels_of(job_.assigned), row, seen);
        if (apart_) cut(pixels_of(job_.images), row, clean_ + place(row, d_));
        if (drawn_) add_noise(row, seen);
        float *weights = weights_ + place(row, k_), *mixed = mixed_ + place(row, d_);
        int32_t* labels = job_.means ? labels_ + row * lanes_ : nullptr;
        each_vectors([&](auto vectors, int64_t x) {
            constexpr int V = decltype(vectors)::value;
            if (apart_ && labels) keep(measure<V>(clean_ + place(row, d_) + x, weights + x), labels + x);
            const Nearest<V> nearest = measure<V>(seen + x, weights + x);
            if (!apart_ && labels) keep(nearest, labels + x);
            soften(nearest, weights + x);
            combine<V>(by_centre_, d_, k_, weights + x, mixed + x);
        });
        for (int64_t x = 0; labels && x < columns_; ++x) ++members_[(size_t)labels[x]];
        if (!grid_.sliding) return;
        const float* windows = windows_of(row);
        for (int64_t x = 0; x < lanes_; x += W) {
            D low = {}, high = {};
            for (int64_t c = 0; c < d_; ++c) {
                const F difference = load<F>(mixed + c * line_ + x) - load<F>(windows + c * line_ + x);
                const D a = to_double(lower(difference)), b = to_double(upper(difference));
                low += a * a;
                high += b * b;
            }
            store(similarity_ + place(row, 1) + x, -job_.beta * low);
            store(similarity_ + place(row, 1) + x + W / 2, -job_.beta * high);
        }
        for (int64_t x = columns_; x < lanes_; ++x) similarity_[place(row, 1) + x] = kFar;
    }

    // What mixed windows are compared with.
    const float* windows_of(int64_t row) const {
        return (apart_ && !job_.noisy_weights ? clean_ : seen_) + place(row, d_);
    }

    void cut(const float* image, int64_t row, float* to) const {
        const int64_t step = grid_.sliding ? 1 : grid_.size;
        for (int64_t c = 0; c < d_; ++c, to += line_) {
            const float* from = image + channel(c) * grid_.pixels() + (row * step + down(c)) * grid_.width + across(c);
            const float origin = origin_[(size_t)channel(c)];
            if (step == 1)
                for (int64_t x = 0; x < columns_; ++x) to[x] = from[x] - origin;
            else
                for (int64_t x = 0; x < columns_; ++x) to[x] = from[x * step] - origin;
        }
    }

    // Value i·d + c of the noise belongs to component c of patch i.
    void add_noise(int64_t row, float* to) {
        const int64_t first = row * columns_ * d_, skipped = first % 4, values = columns_ * d_;
        const Stream stream(job_.seed, job_.streams[image_], kAssignment);
        for (int64_t at = 0; at < skipped + values; at += 4 * W) {
            F four[4];
            normals(stream, (U)counting() + (uint32_t)((first + at) / 4), four);
            for (int lane = 0; lane < W; ++lane)
                for (int v = 0; v < 4; ++v) noise_[at + 4 * lane + v] = four[v][lane];
        }
        for (int64_t c = 0; c < d_; ++c)
            for (int64_t x = 0; x < columns_; ++x)
                to[c * line_ + x] += (float)job_.tau * noise_[skipped + x * d_ + c];
    }

    template <int V>
    struct Nearest {
        F distance[V];
        I label[V];
    };

    template <int V>
    static void keep(const Nearest<V>& nearest, int32_t* labels) {
        for (int v = 0; v < V; ++v) store(labels + v * W, nearest.label[v]);
    }

    // Squared distances from all centres, and the nearest of those, the lowest number among equals.
    template <int V>
    Nearest<V> measure(const float* patches, float* distances) const {
        Nearest<V> nearest;
        for (int v = 0; v < V; ++v) nearest.distance[v] = splat(__builtin_inff()), nearest.label[v] = I{};
        tiles(k_, [&](auto size, int64_t first) {
            constexpr int C = decltype(size)::value;
            const float* centre = by_component_ + first;
            F sum[C][V] = {};
            for (int64_t start = 0; start < d_; start += kSummed) {  // in parts: fewer roundings one after the other
                F part[C][V] = {};
                for (int64_t c = start; c < std::min(start + kSummed, d_); ++c, centre += k_) {
                    F value[V];
                    for (int v = 0; v < V; ++v) value[v] = load<F>(patches + c * line_ + v * W);
#pragma GCC unroll 16
                    for (int j = 0; j < C; ++j)
                        for (int v = 0; v < V; ++v) {
                            const F difference = value[v] - centre[j];
                            part[j][v] += difference * difference;
                        }
                }
#pragma GCC unroll 16
                for (int j = 0; j < C; ++j)
                    for (int v = 0; v < V; ++v) sum[j][v] += part[j][v];
            }
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j)
                for (int v = 0; v < V; ++v) {
                    const I closer = sum[j][v] < nearest.distance[v];
                    nearest.label[v] = closer ? splat((int32_t)first + j) : nearest.label[v];
                    nearest.distance[v] = smaller(nearest.distance[v], sum[j][v]);
                    store(distances + (first + j) * line_ + v * W, sum[j][v]);
                }
        });
        return nearest;
    }

    // Distances become the weights of a softmax.
    template <int V>
    void soften(const Nearest<V>& nearest, float* weights) const {
        const float colder = (float)(1 / job_.temperature);
        for (int v = 0; v < V; ++v, weights += W) {
            F total = {};
            for (int64_t j = 0; j < k_; ++j) {
                const F weight = weight_of((nearest.distance[v] - load<F>(weights + j * line_)) * colder);
                total += weight;
                store(weights + j * line_, weight);
            }
            const F share = 1.0f / total;
            for (int64_t j = 0; j < k_; ++j) store(weights + j * line_, load<F>(weights + j * line_) * share);
        }
    }

    // Line i of the results is the sum over t of table[t][i] times line t of what is given.
    template <int V>
    void combine(const float* table, int64_t results, int64_t terms, const float* given, float* to) const {
        tiles(results, [&](auto size, int64_t first) {
            constexpr int C = decltype(size)::value;
            const float* factor = table + first;
            F sum[C][V] = {};
            for (int64_t t = 0; t < terms; ++t, factor += results) {
                F value[V];
                for (int v = 0; v < V; ++v) value[v] = load<F>(given + t * line_ + v * W);
#pragma GCC unroll 16
                for (int i = 0; i < C; ++i)
                    for (int v = 0; v < V; ++v) sum[i][v] += value[v] * factor[i];
            }
#pragma GCC unroll 16
            for (int i = 0; i < C; ++i)
                for (int v = 0; v < V; ++v) store(to + (first + i) * line_ + v * W, sum[i][v]);
        });
    }

    D similar(int64_t row, int64_t window, int half) const {
        return load<D>(similarity_ + place(row, 1) + window + half * W / 2);
    }

    // The pixels of row y from all windows that cover them, the share of each, and the slopes of these pixels.
    void blend(int64_t y) {
        const int64_t size = grid_.size, channels = grid_.channels;
        for (int64_t q = 0; q < channels; ++q)
            std::copy_n(pixels_of(job_.slopes) + q * grid_.pixels() + y * grid_.width, grid_.width,
                        given_ + place(y, channels) + q * line_);
        const int64_t from = std::max<int64_t>(0, y - grid_.rows() + 1), to = std::min(size, y + 1);
        float* shares = shares_ + place(y, square_);
        for (int64_t x = 0; x < grid_.width; x += W) {
            D largest[2] = {splat(kFar), splat(kFar)};
            for (int64_t dy = from; dy < to; ++dy)
                for (int64_t dx = 0; dx < size; ++dx)
                    for (int h = 0; h < 2; ++h) {
                        const D similarity = similar(y - dy, x - dx, h);
                        largest[h] = similarity > largest[h] ? similarity : largest[h];
                    }
            F total = {};
            for (int64_t dy = from; dy < to; ++dy)
                for (int64_t dx = 0; dx < size; ++dx) {
                    const U window = (U)(counting() + (int32_t)(x - dx));
                    const H low = to_half(similar(y - dy, x - dx, 0) - largest[0]);
                    const H high = to_half(similar(y - dy, x - dx, 1) - largest[1]);
                    const F weight = window < (uint32_t)columns_ ? weight_of(joined(low, high)) : F{};
                    store(shares + (dy * size + dx) * line_ + x, weight);
                    total += weight;
                }
            const F shrink = total > 0.0f ? 1.0f / total : F{};
            for (int64_t dy = from; dy < to; ++dy)
                for (int64_t dx = 0; dx < size; ++dx) {
                    float* share = shares + (dy * size + dx) * line_ + x;
                    store(share, load<F>(share) * shrink);
                }
            for (int64_t q = 0; q < channels; ++q) {
                F sum = {};
                for (int64_t dy = from; dy < to; ++dy) {
                    const float* mixed = mixed_ + place(y - dy, d_) + (q * square_ + dy * size) * line_ + x;
                    for (int64_t dx = 0; dx < size; ++dx)
                        sum += load<F>(shares + (dy * size + dx) * line_ + x) * load<F>(mixed + dx * line_ - dx);
                }
                store(blended_ + place(y, channels) + q * line_ + x, sum);
            }
        }
    }

    // Backward, for a row of patches whose pixels are all there.
    void pull(int64_t row) {
        grid_.sliding ? take_from_windows(row) : take_from_tiles(row);
        const float *mixed = mixed_ + place(row, d_), *weights = weights_ + place(row, k_);
        const float twice_colder = (float)(2 / job_.temperature);
        each_vectors([&](auto vectors, int64_t x) {
            constexpr int V = decltype(vectors)::value;
            combine<V>(by_component_, k_, d_, slopes_ + x, pulls_ + x);
            for (int64_t at = x; at < x + V * W; at += W) {
                F whole = {};
                for (int64_t c = 0; c < d_; ++c)
                    whole += load<F>(slopes_ + c * line_ + at) * load<F>(mixed + c * line_ + at);
                F rest = {};
                for (int64_t j = 0; j < k_; ++j) {
                    const F pull = load<F>(pulls_ + j * line_ + at) - whole;
                    const F weighted = pull * load<F>(weights + j * line_ + at) * twice_colder;
                    store(pulls_ + j * line_ + at, weighted);
                    rest += weighted;
                }
                store(rest_ + at, rest);
            }
            combine<V>(by_centre_, d_, k_, pulls_ + x, changes_ + x);
            for (int64_t c = 0; c < d_; ++c)  // pulls add up to zero but for rounding, which centres would magnify
                for (int64_t at = c * line_ + x, v = 0; v < V; ++v, at += W)
                    store(changes_ + at, load<F>(changes_ + at) - load<F>(rest_ + x + v * W) * load<F>(mixed + at));
        });
        if (job_.means) pull_centres(row);
        grid_.sliding ? put_windows(row) : put_tiles(row);
    }

    // The slopes of mixed windows: through the pixels that they are a share of, and through their similarity, which
    // decides the share. steep_ is 2·beta times the slope of the similarity.
    void take_from_windows(int64_t row) {
        const int64_t size = grid_.size, channels = grid_.channels;
        const float *mixed = mixed_ + place(row, d_), *windows = windows_of(row);
        for (int64_t x = 0; x < lanes_; x += W) {
            F slope = {};
            for (int64_t dy = 0; dy < size; ++dy)
                for (int64_t dx = 0; dx < size; ++dx) {
                    const int64_t offset = dy * size + dx;
                    const F share = load<F>(shares_ + place(row + dy, square_) + offset * line_ + x + dx);
                    for (int64_t q = 0; q < channels; ++q) {
                        const int64_t c = q * square_ + offset, pixel = place(row + dy, channels) + q * line_ + x + dx;
                        const F given = there(x) ? load<F>(given_ + pixel) * share : F{};
                        slope += given * (load<F>(mixed + c * line_ + x) - load<F>(blended_ + pixel));
                        store(slopes_ + c * line_ + x, given);
                    }
                }
            const F steep = slope * (float)(2 * job_.beta);
            store(steep_ + x, steep);
            for (int64_t c = 0; c < d_; ++c) {
                const F difference = load<F>(mixed + c * line_ + x) - load<F>(windows + c * line_ + x);
                store(slopes_ + c * line_ + x, load<F>(slopes_ + c * line_ + x) - steep * difference);
            }
        }
    }

    void take_from_tiles(int64_t row) {
        const float* slopes = pixels_of(job_.slopes);
        for (int64_t c = 0; c < d_; ++c)
            for (int64_t x = 0; x < columns_; ++x) slopes_[c * line_ + x] = slopes[tile_pixel(row, x, c)];
    }

    int64_t tile_pixel(int64_t row, int64_t x, int64_t c) const {
        return channel(c) * grid_.pixels() + (row * grid_.size + down(c)) * grid_.width + x * grid_.size + across(c);
    }

    // Adds the row's share to the gradients of centres: as what is mixed, and as what is near.
    void pull_centres(int64_t row) {
        const float* weights = weights_ + place(row, k_);
        by_patch(slopes_, patch_slopes_);
        by_patch(seen_ + place(row, d_), patches_seen_);
        tiles(k_, [&](auto some, int64_t first) {
            constexpr int C = decltype(some)::value;
            int64_t c = 0;
            for (; c + 2 * W <= padded_; c += 2 * W) pull_some<C, 2>(weights, first, c);
            if (c < padded_) pull_some<C, 1>(weights, first, c);
        });
        for (int64_t j = 0; j < k_; ++j) {
            F total = load<F>(totals_ + j * W);
            for (int64_t x = 0; x < lanes_; x += W) total += load<F>(pulls_ + j * line_ + x);
            store(totals_ + j * W, total);
        }
    }

    // Lines of columns become rows of components, one for each patch.
    void by_patch(const float* lines, float* rows) const {
        for (int64_t x = 0; x < lanes_; x += W)
            for (int64_t c = 0; c < padded_; c += W) {
                F part[W];
                for (int r = 0; r < W; ++r) part[r] = c + r < d_ ? load<F>(lines + (c + r) * line_ + x) : F{};
                transpose(part);
                for (int r = 0; r < W; ++r) store(rows + (x + r) * padded_ + c, part[r]);
            }
    }

    template <int C, int V>
    void pull_some(const float* weights, int64_t first, int64_t component) {
        F sum[C][V] = {};
        for (int64_t x = 0; x < columns_; ++x) {
            F slope[V], patch[V];
            for (int v = 0; v < V; ++v) {
                slope[v] = load<F>(patch_slopes_ + x * padded_ + component + v * W);
                patch[v] = load<F>(patches_seen_ + x * padded_ + component + v * W);
            }
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j) {
                const float weight = weights[(first + j) * line_ + x], pull = pulls_[(first + j) * line_ + x];
                for (int v = 0; v < V; ++v) sum[j][v] += weight * slope[v] + pull * patch[v];
            }
        }
        for (int j = 0; j < C; ++j)
            for (int v = 0; v < V; ++v) {
                float* to = sums_ + (first + j) * padded_ + component + v * W;
                store(to, load<F>(to) + sum[j][v]);
            }
    }

    void put_windows(int64_t row) {
        const float *mixed = mixed_ + place(row, d_), *windows = windows_of(row);
        for (int64_t c = 0; c < d_; ++c)
            for (int64_t x = 0; x < lanes_; x += W) {
                const F difference = load<F>(mixed + c * line_ + x) - load<F>(windows + c * line_ + x);
                add(row, c, x, load<F>(changes_ + c * line_ + x) + load<F>(steep_ + x) * difference);
            }
        finish(row);
    }

    // Adds to the gradients of the pixels that component c of windows x … of a row is.
    void add(int64_t row, int64_t c, int64_t x, F change) {
        float* pixel = found_ + place(row + down(c), grid_.channels) + channel(c) * line_ + x + across(c);
        store(pixel, load<F>(pixel) + change);
    }

    // Writes the pixels that no further row of windows covers.
    void finish(int64_t row) {
        const int64_t last = row + 1 < grid_.rows() ? row : grid_.height - 1;
        for (int64_t y = row; y <= last; ++y)
            for (int64_t q = 0; q < grid_.channels; ++q) {
                float* from = found_ + place(y, grid_.channels) + q * line_;
                float* to = output() + q * grid_.pixels() + y * grid_.width;
                for (int64_t x = 0; x < grid_.width; ++x) to[x] += from[x];
                std::fill_n(from, line_ - margin_, 0.0f);
            }
    }

    void put_tiles(int64_t row) {
        for (int64_t c = 0; c < d_; ++c)
            for (int64_t x = 0; x < columns_; ++x) output()[tile_pixel(row, x, c)] = changes_[c * line_ + x];
    }

    // Every patch has its share of the gradient of the centre that it is nearest to.
    void move_centres() {
        for (int64_t j = 0; j < k_; ++j) {
            const float total = sum_of(load<F>(totals_ + j * W));
            for (int64_t c = 0; c < d_; ++c) {
                const float sum = sums_[j * padded_ + c] - total * by_centre_[j * d_ + c];
                moves_[c * vectors_ * W + j] = sum / (float)std::max<int64_t>(1, members_[(size_t)j]);
            }
        }
        for (int64_t row = 0; row < grid_.rows(); ++row) {
            const int32_t* labels = labels_ + row * lanes_;
            for (int64_t c = 0; c < d_; ++c) {
                const float* moves = moves_ + c * vectors_ * W;
                if (grid_.sliding)
                    for (int64_t x = 0; x < lanes_; x += W)
                        add(row, c, x, there(x) ? lookup(moves, vectors_, load<I>(labels + x)) : F{});
                else
                    for (int64_t x = 0; x < columns_; ++x) output()[tile_pixel(row, x, c)] += moves[labels[x]];
            }
            if (grid_.sliding) finish(row);
        }
    }

    static float sum_of(F v) {
        double sum = 0;
        for (int lane = 0; lane < W; ++lane) sum += v[lane];
        return (float)sum;
    }

    static constexpr double kFar = -1e300;  // the similarity of windows that would stick out

    const VqSoftJob& job_;
    Grid grid_;
    int64_t k_, d_, padded_, square_, columns_, lanes_;
    int64_t depth_, margin_, line_;  // rows at hand; values before the first column; values from a line to the next
    bool drawn_, apart_;             // whether there is noise to draw; whether clean patches are others than those seen
    int64_t vectors_, image_ = 0;
    std::vector<float> origin_;                              // one value a channel
    Buffer<float> by_centre_, by_component_;                 // [k][d] and [d][k], less the origin
    Buffer<float> seen_, clean_, mixed_, weights_;           // of the rows at hand
    Buffer<double> similarity_;                              // likewise, and float64: beta may be in the hundred thousands
    Buffer<float> shares_, blended_, given_, found_;         // likewise
    Buffer<float> slopes_, changes_, pulls_, rest_, steep_, noise_;  // of one row
    Buffer<int32_t> labels_;                                 // of all patches
    std::vector<int64_t> members_;
    Buffer<float> sums_, totals_;                // [k][padded] and [k][W]
    Buffer<float> patch_slopes_, patches_seen_;  // of one row: [lanes][padded]
    Buffer<float> moves_;          // [d][codes]
};

}  // namespace
