// Lloyd's iterations. Sums are float64; only patches whose label changes move from one sum to another, and only
// patches whose label may change are looked at: when centres have moved less than the slack of a patch (Hamerly,
// "Making k-means even faster", 2010), its label stays. What is left of the blocks is packed into full ones.
#pragma once

#include "codebook.hpp"

namespace {

// Source: count(), dimensions(), block(b) → [d][kBlock], rows() or null, and round(value), to which centres are
// rounded.
template <class Source>
class Lloyd {
  public:
    Lloyd(Source& source, Codebook& codebook, StopFlag stop)
        : source_(source), book_(codebook), stop_(stop), n_(source.count()), d_(source.dimensions()) {
        blocks_ = up(n_, kBlock) / kBlock;
        row_ = book_.row;
        labels_.resize(blocks_ * kBlock);
        sums_.resize(book_.k * row_);
        counts_.resize(book_.k);
        moves_.resize(book_.k);
        drift_.resize(up(book_.k, W));
        if (source.rows())
            order_.resize(n_), first_.resize(book_.k + 1);
        else
            rows_.resize(kBlock * row_);
        bounded_ = source.rows() && book_.k > 1 && book_.k * d_ >= kWorthBounds;
        if (!bounded_) return;
        norms_.resize(blocks_ * kBlock);
        slack_.resize(blocks_ * kBlock);
        packed_.resize(d_ * kBlock);
    }

    // From the centres in the codebook, until at most tolerance·n labels change.
    void iterate(int64_t iterations, double tolerance) {
        std::fill_n((int32_t*)labels_, n_, -1);
        std::fill_n((double*)sums_, book_.k * row_, 0.0);
        std::fill_n((int64_t*)counts_, book_.k, 0);
        for (int64_t i = 0; i < iterations; ++i) {
            book_.ready();
            const int64_t changed = assign(i == 0);
            move_centres();
            if (i > 0 && (double)changed <= tolerance * (double)n_) break;
        }
    }

  private:
    static constexpr int64_t kWorthBounds = 128;  // multiply-adds a patch: below, all patches are looked at
    static constexpr int kMany = kBlock * 5 / 8;  // so many of a block need no packing

    // New labels; returns how many changed.
    int64_t assign(bool first) {
        changed_ = 0;
        for (int64_t b = 0; b < blocks_; ++b) {
            stop_.check();
            const uint64_t wanted = bounded_ && !first ? restless(b) : there(b);
            if (!wanted) continue;
            if (first && source_.rows())
                label(b, source_.block(b), labels_ + b * kBlock, true);
            else if (!bounded_ || __builtin_popcountll(wanted) > kMany)
                label_again(b, first);
            else
                pack(b, wanted);
        }
        if (first && source_.rows()) sum_clusters();
        if (waiting_count_ > 0) label_packed();
        return changed_;
    }

    // One bit for each patch of a block.
    uint64_t there(int64_t b) const {
        const int64_t behind = (b + 1) * kBlock - n_;
        return ~0ull >> (64 - kBlock + std::max<int64_t>(0, behind));
    }

    // The patches of a block whose label may have changed.
    uint64_t restless(int64_t b) {
        uint64_t bits = 0;
        for (int v = 0; v < 4; ++v) {
            const int64_t at = b * kBlock + v * W;
            const F slack = load<F>(slack_ + at) - lookup(drift_, up(book_.k, W) / W, load<I>(labels_ + at));
            store(slack_ + at, slack);
            bits |= (uint64_t)lanes(slack <= 0.0f) << (v * W);
        }
        return bits & there(b);
    }

    void label(int64_t b, const float* x, int32_t* labels, bool first) {
        const int64_t start = b * kBlock, valid = std::min<int64_t>(kBlock, n_ - start);
        if (!bounded_) return book_.label({x, valid, labels});
        if (first) measure_norms(x, norms_ + start);
        book_.label({x, valid, labels, norms_ + start, slack_ + start});
    }

    void measure_norms(const float* x, float* norms) const {
        F norm[4] = {};
        for (int64_t c = 0; c < d_; ++c)
            for (int v = 0; v < 4; ++v) {
                const F value = load<F>(x + c * kBlock + v * W);
                norm[v] += value * value;
            }
        for (int v = 0; v < 4; ++v) store(norms + v * W, norm[v]);
    }

    // The first sums: the patches in order of their labels, so that a cluster's sum stays in registers.
    void sum_clusters() {
        std::fill_n((int32_t*)first_, book_.k + 1, 0);
        for (int64_t i = 0; i < n_; ++i) ++first_[labels_[i] + 1];
        for (int64_t j = 0; j < book_.k; ++j) counts_[j] = first_[j + 1], first_[j + 1] += first_[j];
        for (int64_t i = 0; i < n_; ++i) order_[first_[labels_[i]]++] = (int32_t)i;  // first_ becomes last
        for (int64_t j = 0; j < book_.k; ++j) {
            moves_[j] = 1;
            const int32_t *end = order_ + first_[j], *begin = end - counts_[j];
            for (int64_t c = 0; c < row_; c += W / 2) {
                D sum = {};
                for (const int32_t* i = begin; i < end; ++i) sum += to_double(load<H>(source_.rows() + *i * row_ + c));
                store(sums_ + j * row_ + c, sum);
            }
        }
        changed_ = n_;
    }

    void label_again(int64_t b, bool first) {
        const int64_t start = b * kBlock;
        const float* x = source_.block(b);
        int32_t fresh[kBlock], moved[kBlock];
        label(b, x, fresh, first);
        uint64_t bits = 0;
        for (int v = 0; v < 4; ++v)
            bits |= (uint64_t)lanes(load<I>(fresh + v * W) != load<I>(labels_ + start + v * W)) << (v * W);
        int count = 0;
        for (bits &= there(b); bits; bits &= bits - 1) moved[count++] = __builtin_ctzll(bits);
        if (!source_.rows()) cut_some_rows(x, moved, count);
        const float* rows = source_.rows() ? source_.rows() + start * row_ : rows_;
        for (int m = 0; m < count; ++m) relabel(start + moved[m], fresh[moved[m]], rows + moved[m] * row_);
    }

    void cut_some_rows(const float* x, const int32_t* moved, int count) {
        if (count > kBlock / 8) return cut_rows(x, d_, rows_);
        for (int m = 0; m < count; ++m)
            for (int64_t c = 0; c < d_; ++c) rows_[moved[m] * row_ + c] = x[c * kBlock + moved[m]];
    }

    // Adds the wanted patches of a block to those that wait; when they fill a block, it is labelled.
    void pack(int64_t b, uint64_t wanted) {
        for (; wanted; wanted &= wanted - 1) {
            waiting_[waiting_count_++] = b * kBlock + __builtin_ctzll(wanted);
            if (waiting_count_ == kBlock) label_packed();
        }
    }

    void label_packed() {
        alignas(64) float norms[kBlock], slack[kBlock];
        int32_t fresh[kBlock];
        std::fill(waiting_ + waiting_count_, waiting_ + kBlock, waiting_[0]);
        for (int m = 0; m < kBlock; ++m) norms[m] = norms_[waiting_[m]];
        for (int v = 0; v * W < waiting_count_; ++v)
            for (int64_t c = 0; c < d_; c += W) {
                F square[W];
                for (int r = 0; r < W; ++r) square[r] = load<F>(source_.rows() + waiting_[v * W + r] * row_ + c);
                transpose(square);
                for (int r = 0; r < W && c + r < d_; ++r) store(packed_ + (c + r) * kBlock + v * W, square[r]);
            }
        book_.label({packed_, waiting_count_, fresh, norms, slack});
        for (int m = 0; m < waiting_count_; ++m) {
            const int64_t i = waiting_[m];
            slack_[i] = slack[m];
            if (labels_[i] != fresh[m]) relabel(i, fresh[m], source_.rows() + i * row_);
        }
        waiting_count_ = 0;
    }

    // Patch i goes from its cluster to another.
    void relabel(int64_t i, int32_t to, const float* row) {
        const int32_t from = labels_[i];
        labels_[i] = to;
        ++changed_;
        ++counts_[to];
        moves_[to] = 1;
        double* sum = sums_ + to * row_;
        for (int64_t c = 0; c < row_; c += W / 2) store(sum + c, load<D>(sum + c) + to_double(load<H>(row + c)));
        if (from < 0) return;
        --counts_[from];
        moves_[from] = 1;
        sum = sums_ + from * row_;
        for (int64_t c = 0; c < row_; c += W / 2) store(sum + c, load<D>(sum + c) - to_double(load<H>(row + c)));
    }

    // Centres become means; an empty cluster keeps its centre. A label's drift is what the slack of its patches
    // loses: how far its centre moved and how far at most another did, and a little for rounding.
    void move_centres() {
        float most = 0, second = 0;
        for (int64_t j = 0; j < book_.k; ++j) {
            drift_[j] = moves_[j] && counts_[j] > 0 ? move_centre(j) : 0;
            moves_[j] = 0;
            second = std::max(second, std::min(most, drift_[j]));
            most = std::max(most, drift_[j]);
        }
        const float rounding = 0x1p-20f * book_.largest_norm();
        for (int64_t j = 0; j < book_.k; ++j) drift_[j] += (drift_[j] < most ? most : second) + rounding;
    }

    // Returns how far it moved.
    float move_centre(int64_t j) {
        float* centre = book_.edit(j);
        D square = {};
        for (int64_t c = 0; c < row_; c += W / 2) {
            const H mean = to_half(source_.round(load<D>(sums_ + j * row_ + c) / (double)counts_[j]));
            const D step = to_double(mean) - to_double(load<H>(centre + c));
            square += step * step;
            store(centre + c, mean);
        }
        book_.edited(j);
        return (float)std::sqrt(sum_of(square));
    }

    Source& source_;
    Codebook& book_;
    StopFlag stop_;
    int64_t n_, d_, blocks_, row_, changed_ = 0;
    bool bounded_;
    Buffer<int32_t> labels_;
    Buffer<double> sums_;
    Buffer<int64_t> counts_;
    Buffer<uint8_t> moves_;        // whether a cluster has lost or won patches
    Buffer<int32_t> order_, first_;
    Buffer<float> rows_;           // of a block, where the source has none
    Buffer<float> norms_, slack_;  // of all patches
    Buffer<float> drift_;          // of all labels
    Buffer<float> packed_;         // a block of patches from here and there
    int64_t waiting_[kBlock];      // their numbers
    int waiting_count_ = 0;
};

}  // namespace
