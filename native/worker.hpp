// One thread's work: the shield of an image, or plain k-means of given patches, with the memory they need.
//
// Workspace of a thread, in bytes, for n patches of d values and k centres: 12·n for labels and distances (20·n
// with noisy weights), the noisy patches 4·n·d and in 16 bits 2·n·d if they fit into `keep` bytes (else one block, and
// they are made again in every pass), 256 KiB of rearranged image (or a few rows of patches, if longer), some 40·k·d
// for centres and sums, and for images of at most 2 MiB of patches as much again for these as rows and 12·n for bounds.
// Of bytes and halves one image as float32, 4 bytes a value.
#pragma once

#include "checks.hpp"
#include "lloyd.hpp"
#include "pixels.hpp"
#include "rebuild.hpp"
#include "start.hpp"

// What vq_codebook, vq_quantize and vq_shield are given. Every field has eight bytes, the message twenty times as
// many: no padding to get wrong on the other side of the interface.
struct VqJob {
    const void* images;      // (batch, channels, height, width), of the kind that `pixels` says
    const int64_t* streams;  // (batch)
    float* centres;          // (batch, codes, d): written by vq_codebook, read by vq_quantize, unused by vq_shield
    void* output;            // as images: written by vq_quantize and vq_shield
    int32_t* labels;         // null, or (batch, patches): written by vq_quantize and vq_shield
    const int32_t* stop;     // null, or: the work ends soon after this becomes 1
    int64_t threads, keep;
    int64_t pixels;  // one of Pixels
    int64_t batch, channels, height, width;
    uint64_t seed;
    int64_t sliding, size, codes, iterations, plus_plus, noisy_weights;
    int64_t bits;  // noisy patches and centres are multiples of 2^-bits, below bound in size
    double bound, tolerance, sigma, tau, beta;
    int64_t images_bytes, output_bytes;                  // what the arrays hold: bytes where the kind may be another,
    int64_t streams_count, centres_count, labels_count;  // values elsewhere
    char message[kMessage];  // written where the job is refused
};

// What vq_lloyd is given.
struct VqLloydJob {
    const float* patches;  // (batch, count, dimensions)
    const float* start;    // (batch, codes, dimensions)
    float* centres;        // as start
    const int32_t* stop;
    int64_t threads;
    int64_t batch, count, dimensions, codes, iterations;
    double tolerance;
    int64_t patches_count, start_count, centres_count;
    char message[kMessage];
};

namespace {

enum Stage : uint32_t { kCodebook = 0, kAssignment = 1, kInit = 2 };
enum class VqCall { codebook, quantize, shield, lloyd, soft };

struct GridSize {
    int64_t patches, dimensions;
};

// An image that can be cut so.
GridSize check_grid(const Grid& grid) {
    check_whole("channels", grid.channels, 1, kMostPatches);
    check_whole("height", grid.height, 1, kMostPatches);
    check_whole("width", grid.width, 1, kMostPatches);
    check_whole("size", grid.size, 1, std::min(grid.height, grid.width));
    if (!grid.sliding && (grid.height % grid.size != 0 || grid.width % grid.size != 0))
        throw Invalid("height=%lld and width=%lld should be multiples of size=%lld", (long long)grid.height,
                      (long long)grid.width, (long long)grid.size);
    const int64_t patches = checked_product("the number of patches", {grid.rows(), grid.columns()}, kMostPatches);
    const int64_t dimensions =
        checked_product("the number of values in a patch", {grid.channels, grid.size, grid.size}, kMostPatches);
    checked_product("the number of values in all patches", {patches, dimensions}, kMostNoiseValues);
    return {patches, dimensions};
}

// Everything that decides where the work reads and writes, and that every number is one the arithmetic holds. What
// is in the arrays is looked at image by image.
void check_job(const VqJob& job, VqCall call) {
    check_whole("threads", job.threads, 1, kMostThreads);
    check_whole("memory", job.keep, 0, INT64_MAX);
    check_whole("pixels", job.pixels, kFloat32, kBfloat16);
    check_whole("batch", job.batch, 0, kMostInMemory);
    const Grid grid{job.sliding != 0, job.size, job.channels, job.height, job.width};
    const auto [patches, dimensions] = check_grid(grid);
    check_whole("codes", job.codes, 1, call == VqCall::quantize ? kMostCodes : std::min(kMostCodes, patches));
    check_whole("iterations", job.iterations, 1, kMostIterations);
    check_real("tolerance", job.tolerance, 0, 1);
    check_real("sigma", job.sigma, 0, kMostNoise);
    check_real("tau", job.tau, 0, kMostNoise);
    check_real("beta", job.beta, 0, kMostBeta);
    check_real("bound", job.bound, 1 + kLargestNormal * std::max(job.sigma, job.tau), 8);
    check_whole("bits", job.bits, 1, 23);  // a float32's; FixedPoint adds noise in units finer than that
    const int64_t pixels = checked_product("the number of pixels in all images",
                                           {job.batch, job.channels, job.height, job.width}, kMostInMemory);
    const int64_t centres = checked_product("the number of values in all centres",
                                            {job.batch, job.codes, dimensions}, kMostInMemory);
    const int64_t bytes = pixels * bytes_of(job.pixels);
    check_array("images", job.images, job.images_bytes, bytes, "bytes");
    check_array("streams", job.streams, job.streams_count, job.batch);
    if (call != VqCall::shield) check_array("centres", job.centres, job.centres_count, centres);
    if (call != VqCall::codebook) check_array("output", job.output, job.output_bytes, bytes, "bytes");
    if (job.labels) check_array("labels", job.labels, job.labels_count, job.batch * patches);
}

void check_job(const VqLloydJob& job, VqCall) {
    check_whole("threads", job.threads, 1, kMostThreads);
    check_whole("batch", job.batch, 0, kMostInMemory);
    check_whole("count", job.count, 1, kMostPatches);
    check_whole("dimensions", job.dimensions, 1, kMostPatches);
    check_whole("codes", job.codes, 1, kMostCodes);
    check_whole("iterations", job.iterations, 1, kMostIterations);
    check_real("tolerance", job.tolerance, 0, 1);
    const int64_t patches = checked_product("the number of values in all patches",
                                            {job.batch, job.count, job.dimensions}, kMostInMemory);
    const int64_t centres = checked_product("the number of values in all centres",
                                            {job.batch, job.codes, job.dimensions}, kMostInMemory);
    check_array("patches", job.patches, job.patches_count, patches);
    check_array("start", job.start, job.start_count, centres);
    check_array("centres", job.centres, job.centres_count, centres);
}

class ImageWorker {
  public:
    ImageWorker(const VqJob& job, bool keep)
        : job_(job),
          grid_{job.sliding != 0, job.size, job.channels, job.height, job.width},
          stop_{job.stop},
          patches_(grid_, {job.bits, job.bound}, keep && kept_bytes() <= job.keep),
          book_(job.codes, grid_.dimensions()),
          start_(patches_, book_, stop_),
          lloyd_(patches_, book_, stop_),
          rebuild_(grid_, job.codes, job.beta, job.noisy_weights != 0) {
        found_.resize(job.codes * grid_.dimensions());
        if (job.pixels != kFloat32) widened_.resize(values());
    }

    void codebook(int64_t image) {
        take(image);
        codebook(image, centres_of(image));
    }
    void quantize(int64_t image) {
        take(image);
        check_values("centres", centres_of(image), job_.codes * grid_.dimensions(), -kMostValue, kMostValue);
        quantize(image, centres_of(image));
    }
    void shield(int64_t image) {
        take(image);
        codebook(image, found_);
        quantize(image, found_);
    }

  private:
    int64_t kept_bytes() const {
        const int64_t d = grid_.dimensions();
        return grid_.blocks() * kBlock * (4 * d + Coarse::bytes(d));
    }
    float* centres_of(int64_t image) const { return job_.centres + image * job_.codes * grid_.dimensions(); }
    int64_t values() const { return grid_.channels * grid_.pixels(); }

    // The image to work on: where it lies, or a copy as float32.
    void take(int64_t image) {
        if (job_.pixels == kFloat32) {
            pixels_ = (const float*)job_.images + image * values();
        } else {
            widen(job_.pixels, job_.images, image * values(), values(), widened_);
            pixels_ = widened_;
        }
        check_values("images", pixels_, values(), 0.0f, 1.0f);
    }

    void codebook(int64_t image, float* centres) {
        patches_.use(pixels_, Stream(job_.seed, job_.streams[image], kCodebook), job_.sigma);
        const Stream init(job_.seed, job_.streams[image], kInit);
        job_.plus_plus ? start_.plus_plus(init) : start_.random(init);
        lloyd_.iterate(job_.iterations, job_.tolerance);
        const int64_t d = grid_.dimensions();
        for (int64_t i = 0; i < job_.codes * d; ++i)
            centres[i] = book_.centre(i / d)[i % d] + patches_.origin(i % d);
    }

    void quantize(int64_t image, const float* centres) {
        patches_.use(pixels_, Stream(job_.seed, job_.streams[image], kAssignment), job_.tau);
        const int64_t d = grid_.dimensions();
        for (int64_t j = 0; j < job_.codes; ++j) {
            for (int64_t c = 0; c < d; ++c)
                book_.edit(j)[c] = (float)(patches_.round(splat((double)centres[j * d + c]))[0] - patches_.origin(c));
            book_.edited(j);
        }
        book_.ready();
        // The result may take the copy's place: nothing reads tiles, or rows of pixels, that have been replaced.
        float* output = job_.pixels == kFloat32 ? (float*)job_.output + image * values() : (float*)widened_;
        if (job_.sliding)
            replace_windows(image, centres, output);
        else
            replace_tiles(image, centres, output);
        if (job_.pixels != kFloat32) narrow(job_.pixels, output, image * values(), values(), job_.output);
    }

    void replace_tiles(int64_t image, const float* centres, float* output) {
        int32_t labels[kBlock];
        for (int64_t b = 0; b < grid_.blocks(); ++b) {
            stop_.check();
            const int64_t first = b * kBlock, valid = std::min<int64_t>(kBlock, grid_.count() - first);
            book_.label({patches_.passing_block(b), valid, labels});
            put_disjoint(grid_, centres, labels, first, valid, output);
            if (job_.labels) std::copy_n(labels, valid, job_.labels + image * grid_.count() + first);
        }
    }

    void replace_windows(int64_t image, const float* centres, float* output) {
        rebuild_.use(centres);
        for (int64_t b = 0; b < grid_.blocks(); ++b) {
            stop_.check();
            const int64_t first = b * kBlock, valid = std::min<int64_t>(kBlock, grid_.count() - first);
            const float* x = patches_.passing_block(b);
            book_.label({x, valid, rebuild_.labels() + first});
            std::fill(rebuild_.labels() + first + valid, rebuild_.labels() + first + kBlock, 0);
            if (job_.noisy_weights) rebuild_.measure_noisy(patches_, x, first);
        }
        if (job_.labels) std::copy_n(rebuild_.labels(), grid_.count(), job_.labels + image * grid_.count());
        rebuild_.rebuild(pixels_, output, stop_);
    }

    const VqJob& job_;
    Grid grid_;
    StopFlag stop_;
    NoisyPatches patches_;
    Codebook book_;
    Start<NoisyPatches> start_;
    Lloyd<NoisyPatches> lloyd_;
    SlidingRebuild rebuild_;
    Buffer<float> found_, widened_;
    const float* pixels_ = nullptr;
};

// The patches of vq_lloyd, less the mean of the centres to start from.
class GivenPatches {
  public:
    GivenPatches(int64_t count, int64_t dimensions) : n_(count), d_(dimensions), row_(row_length(dimensions)) {
        data_.resize(up(n_, kBlock) * d_);
        origin_.resize(up(d_, W));
        if (up(n_, kBlock) * row_ <= kRowsKept) rows_.resize(up(n_, kBlock) * row_ + W);
    }

    void use(const float* patches, const float* start, int64_t codes) {
        for (int64_t c = 0; c < d_; ++c) {
            double sum = 0;
            for (int64_t j = 0; j < codes; ++j) sum += start[j * d_ + c];
            origin_[c] = (float)(sum / (double)codes);
        }
        for (int64_t i = 0; i < n_; i += W)
            for (int64_t c = 0; c < d_; c += W) {
                F square[W];
                const F origin = load<F>(origin_ + c);
                for (int r = 0; r < W; ++r) {
                    const F value = values(patches, i + r, c);
                    square[r] = value - origin;
                }
                if (rows_) keep_rows(square, i, c);
                transpose(square);
                float* block = data_ + i / kBlock * kBlock * d_ + i % kBlock;
                for (int r = 0; r < W && c + r < d_; ++r) store(block + (c + r) * kBlock, square[r]);
            }
    }

    int64_t count() const { return n_; }
    int64_t dimensions() const { return d_; }
    D round(D value) const { return value; }
    float origin(int64_t c) const { return origin_[c]; }
    bool kept() const { return true; }
    const float* block(int64_t b) const { return data_ + b * d_ * kBlock; }
    const float* rows() const { return rows_; }

  private:
    // Components c … c+W−1 of patch i, as far as there are any.
    F values(const float* patches, int64_t i, int64_t c) const {
        const float* from = patches + i * d_ + c;
        if (from + W <= patches + n_ * d_) return load<F>(from);
        F some = {};
        for (int j = 0; i < n_ && c + j < d_; ++j) some[j] = from[j];
        return some;
    }

    void keep_rows(const F (&square)[W], int64_t i, int64_t c) {
        const I there = counting() < (int32_t)(d_ - c);
        for (int r = 0; r < W; ++r) {
            const F part = there ? square[r] : F{};
            float* to = rows_ + (i + r) * row_ + c;
            c + W <= row_ ? store(to, part) : store(to, lower(part));
        }
    }

    int64_t n_, d_, row_;
    Buffer<float> origin_, data_, rows_;
};

class LloydWorker {
  public:
    explicit LloydWorker(const VqLloydJob& job)
        : job_(job),
          patches_(job.count, job.dimensions),
          book_(job.codes, job.dimensions),
          lloyd_(patches_, book_, {job.stop}) {}

    void run(int64_t image) {
        const int64_t d = job_.dimensions, values = job_.codes * d;
        const float* start = job_.start + image * values;
        check_values("patches", job_.patches + image * job_.count * d, job_.count * d, -kMostValue, kMostValue);
        check_values("start", start, values, -kMostValue, kMostValue);
        patches_.use(job_.patches + image * job_.count * d, start, job_.codes);
        for (int64_t j = 0; j < job_.codes; ++j) {
            for (int64_t c = 0; c < d; ++c) book_.edit(j)[c] = start[j * d + c] - patches_.origin(c);
            book_.edited(j);
        }
        lloyd_.iterate(job_.iterations, job_.tolerance);
        float* centres = job_.centres + image * values;
        for (int64_t i = 0; i < values; ++i) centres[i] = book_.centre(i / d)[i % d] + patches_.origin(i % d);
    }

  private:
    const VqLloydJob& job_;
    GivenPatches patches_;
    Codebook book_;
    Lloyd<GivenPatches> lloyd_;
};

}  // namespace
