// Lloyd's iterations. Sums are float64; only patches whose label changes move from one sum to another, and only
// patches whose label may change are looked at: when centres have moved less than the slack of a patch (Hamerly,
// "Making k-means even faster", 2010), its label stays. What is left of the blocks is packed into full ones. Patches
// that are kept are compared in 16 bits first, and again only where that leaves a doubt.
#pragma once

#include "coarse.hpp"

namespace {

// Source: count(), dimensions(), block(b) → [d][kBlock], kept() if blocks are made once, rows() or null, and
// round(value), to which centres are rounded.
template <class Source>
class Lloyd {
  public:
    Lloyd(Source& source, Codebook& codebook, StopFlag stop)
        : source_(source),
          book_(codebook),
          stop_(stop),
          n_(source.count()),
          d_(source.dimensions()),
          large_(codebook.k > 1 && codebook.k * d_ >= kLarge),
          bounded_(large_ && source.rows()),
          coarse_(codebook, large_ && source.kept() ? n_ : 0, bounded_) {
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
        if (large_) packed_.resize(d_ * kBlock), row_of_.resize(row_);
        if (!bounded_) return;
        norms_.resize(blocks_ * kBlock);
        slack_.resize(blocks_ * kBlock);
    }

    // From the centres in the codebook, until at most tolerance·n labels change.
    void iterate(int64_t iterations, double tolerance) {
        std::fill_n((int32_t*)labels_, n_, -1);
        std::fill_n((double*)sums_, book_.k * row_, 0.0);
        std::fill_n((int64_t*)counts_, book_.k, 0);
        book_.ready();
        if (coarse_.usable()) begin_coarse();
        for (int64_t i = 0; i < iterations; ++i) {
            const int64_t changed = assign(i == 0);
            move_centres();
            if (i > 0 && (double)changed <= tolerance * (double)n_) break;
        }
    }

  private:
    static constexpr int64_t kLarge = 128;        // multiply-adds a patch: below, simply all patches are compared
    static constexpr int kMany = kBlock / 2;      // so many of a block need no packing

    // Numbers of patches that are to be labelled together.
    struct Queue {
        int64_t numbers[kBlock];
        int count = 0;

        bool add(int64_t number) {
            numbers[count++] = number;
            return count == kBlock;
        }
        // Repeats the first number in the places left.
        void fill() { std::fill(numbers + count, numbers + kBlock, numbers[0]); }
    };

    void begin_coarse() {
        for (int64_t b = 0; b < blocks_; ++b) {
            stop_.check();
            coarse_.measure(source_.block(b));
        }
        if (!coarse_.begin()) return;
        for (int64_t b = 0; b < blocks_; ++b) coarse_.take(b, source_.block(b));
        coarse_.taken();
        coarse_.ready();
    }

    // New labels; returns how many changed.
    int64_t assign(bool first) {
        changed_ = 0;
        summed_ = !first || !source_.rows();
        for (int64_t b = 0; b < blocks_; ++b) {
            stop_.check();
            const uint64_t wanted = bounded_ && !first ? restless(b) : there(b);
            if (bounded_ && !first && __builtin_popcountll(wanted) <= kMany)
                pack(b, wanted);
            else
                label_block(b, first);
        }
        if (waiting_.count > 0) label_waiting();
        if (doubtful_.count > 0) label_doubtful();
        if (!summed_) sum_clusters();
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

    // The first sums: the patches in order of their labels, so that a cluster's sum stays in registers.
    void sum_clusters() {
        std::fill_n((int32_t*)first_, book_.k + 1, 0);
        for (int64_t i = 0; i < n_; ++i) ++first_[labels_[i] + 1];
        for (int64_t j = 0; j < book_.k; ++j) counts_[j] = first_[j + 1], first_[j + 1] += first_[j];
        for (int64_t i = 0; i < n_; ++i) order_[first_[labels_[i]]++] = (int32_t)i;  // first_ becomes last
        for (int64_t j = 0; j < book_.k; ++j) {
            moves_[j] = 1;
            const int32_t *end = order_ + first_[j], *begin = end - counts_[j];
            int64_t c = 0;
            for (; c + 2 * W <= row_; c += 2 * W) sum_columns<4>(begin, end, c, sums_ + j * row_ + c);
            for (; c < row_; c += W / 2) sum_columns<1>(begin, end, c, sums_ + j * row_ + c);
        }
        changed_ = n_;
    }

    // Several at once, because each addition waits for the one before.
    template <int Columns>
    void sum_columns(const int32_t* begin, const int32_t* end, int64_t c, double* sums) {
        D sum[Columns] = {};
        for (const int32_t* i = begin; i < end; ++i)
            for (int h = 0; h < Columns; ++h)
                sum[h] += to_double(load<H>(source_.rows() + *i * row_ + c + h * W / 2));
        for (int h = 0; h < Columns; ++h) store(sums + h * W / 2, sum[h]);
    }

    // All patches of a block.
    void label_block(int64_t b, bool first) {
        const int64_t start = b * kBlock, valid = std::min<int64_t>(kBlock, n_ - start);
        float* slack = bounded_ ? slack_ + start : nullptr;
        int32_t fresh[kBlock], moved[kBlock];
        uint64_t doubtful = 0;
        const float* x = source_.block(b);  // asked for once: a block that is not kept has to be made
        if (coarse_.active()) {
            doubtful = coarse_.label(b, valid, fresh, slack) & there(b);
        } else {
            if (bounded_ && first)
                for (int v = 0; v < 4; ++v) store(norms_ + start + v * W, squared_lengths(x + v * W, d_));
            book_.label({x, valid, fresh, bounded_ ? norms_ + start : nullptr, slack});
        }
        if (!summed_) std::copy_n(fresh, valid, labels_ + start);  // doubtful ones are corrected later
        for (uint64_t bits = doubtful; bits; bits &= bits - 1) doubt(start + __builtin_ctzll(bits));
        if (!summed_) return;
        uint64_t bits = 0;
        for (int v = 0; v < 4; ++v)
            bits |= (uint64_t)lanes(load<I>(fresh + v * W) != load<I>(labels_ + start + v * W)) << (v * W);
        int count = 0;
        for (bits &= there(b) & ~doubtful; bits; bits &= bits - 1) moved[count++] = __builtin_ctzll(bits);
        if (!source_.rows() && count > 0) cut_some_rows(x, moved, count);
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
        for (; wanted; wanted &= wanted - 1)
            if (waiting_.add(b * kBlock + __builtin_ctzll(wanted))) label_waiting();
    }

    void label_waiting() {
        alignas(64) float slack[kBlock];
        int32_t fresh[kBlock];
        waiting_.fill();
        uint64_t doubtful = 0;
        if (coarse_.active())
            doubtful = coarse_.label_these(waiting_.numbers, waiting_.count, fresh, slack);
        else
            label_these(fresh, slack);
        for (int m = 0; m < waiting_.count; ++m) {
            const int64_t i = waiting_.numbers[m];
            slack_[i] = slack[m];
            if (doubtful >> m & 1)
                doubt(i);
            else if (labels_[i] != fresh[m])
                relabel(i, fresh[m], source_.rows() + i * row_);
        }
        waiting_.count = 0;
    }

    // The patches that wait, in float32.
    void label_these(int32_t* fresh, float* slack) {
        alignas(64) float norms[kBlock];
        for (int m = 0; m < kBlock; ++m) norms[m] = norms_[waiting_.numbers[m]];
        for (int v = 0; v * W < waiting_.count; ++v)
            for (int64_t c = 0; c < d_; c += W) {
                F square[W];
                for (int r = 0; r < W; ++r) square[r] = load<F>(source_.rows() + waiting_.numbers[v * W + r] * row_ + c);
                transpose(square);
                for (int r = 0; r < W && c + r < d_; ++r) store(packed_ + (c + r) * kBlock + v * W, square[r]);
            }
        book_.label({packed_, waiting_.count, fresh, norms, slack});
    }

    void doubt(int64_t i) {
        if (doubtful_.add(i)) label_doubtful();
    }

    // The patches that 16 bits left in doubt.
    void label_doubtful() {
        int32_t fresh[kBlock];
        for (int m = 0; m < doubtful_.count; ++m) {
            const int64_t i = doubtful_.numbers[m];
            const float* x = source_.block(i / kBlock) + i % kBlock;
            for (int64_t c = 0; c < d_; ++c) packed_[c * kBlock + m] = x[c * kBlock];
        }
        book_.label({packed_, doubtful_.count, fresh});
        for (int m = 0; m < doubtful_.count; ++m) {
            const int64_t i = doubtful_.numbers[m];
            if (!summed_) {
                labels_[i] = fresh[m];
            } else if (labels_[i] != fresh[m]) {
                for (int64_t c = 0; c < d_; ++c) row_of_[c] = packed_[c * kBlock + m];
                relabel(i, fresh[m], row_of_);
            }
        }
        doubtful_.count = 0;
    }

    // Patch i goes from its cluster to another.
    void relabel(int64_t i, int32_t to, const float* row) {
        const int32_t from = labels_[i];
        labels_[i] = to;
        ++changed_;
        ++counts_[to];
        moves_[to] = 1;
        double* won = sums_ + to * row_;
        if (from < 0) {
            for (int64_t c = 0; c < row_; c += W / 2) store(won + c, load<D>(won + c) + to_double(load<H>(row + c)));
            return;
        }
        --counts_[from];
        moves_[from] = 1;
        double* lost = sums_ + from * row_;
        for (int64_t c = 0; c < row_; c += W / 2) {
            const D value = to_double(load<H>(row + c));
            store(won + c, load<D>(won + c) + value);
            store(lost + c, load<D>(lost + c) - value);
        }
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
        book_.ready();
        if (coarse_.active()) coarse_.ready();
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
        if (coarse_.active()) coarse_.edited(j);
        return (float)std::sqrt(sum_of(square));
    }

    Source& source_;
    Codebook& book_;
    StopFlag stop_;
    int64_t n_, d_, blocks_, row_, changed_ = 0;
    bool large_, bounded_;
    bool summed_ = false;  // whether sums_ holds the patches as they are labelled
    Coarse coarse_;
    Buffer<int32_t> labels_;
    Buffer<double> sums_;
    Buffer<int64_t> counts_;
    Buffer<uint8_t> moves_;  // whether a cluster has lost or won patches
    Buffer<int32_t> order_, first_;
    Buffer<float> rows_, row_of_;  // of a block, where the source has none; of a patch
    Buffer<float> norms_, slack_;  // of all patches
    Buffer<float> drift_;          // of all labels
    Buffer<float> packed_;         // a block of patches from here and there
    Queue waiting_, doubtful_;
};

}  // namespace
