// k-means and labels for images whose patches do not fit into a multiprocessor's own memory: they lie in global memory,
// and a block of threads takes a strip of one image's patches. Kernels follow each other; what the strips of an image have
// found is put together by whole numbers, so that the order of blocks does not matter.
//
// The compiler is told STRIP and BATCH.
#include "clusters.cuh"

constexpr int STRIP_GROUPS = STRIP / WARP;
constexpr int LIST = STRIP_GROUPS / WARPS * WARP;  // patches of one warp

struct Given {
    const float* images;       // (B, q, h, w)
    const long long* streams;  // (B,)
    u32* rows;                 // (B, room, STRIDE): the patches
    float* near;               // (B, room): squared distances from the nearest centre so far
    u32* sketches;             // (B, room): the patches in brief, where the start asks for them
    u32* states;               // (B, room): reach and label
    u64* totals;               // (B, strips): sums of distances
    float* centres;            // (B, CODES, TALLY): where the rounds start, less ½
    u32* picked;               // (B,): the sketch of the centre that was found last
    u32* factors;              // (B, CODES, READ)
    float *norms, *steps, *ways;  // (B, CODES)
    float* longest;            // (B,): the longest steps of all rounds together
    long long* sums;           // (B, CODES, TALLY)
    int *moved, *active;       // (B,): patches that changed their cluster; whether the image goes on
    float* codebooks;          // (B, ·, ·), with these strides: what is found, less ½
    long long image_stride, centre_stride;
    int* labels;          // (B, ·), with that stride: the centres that take the place of patches
    float* similarities;  // (B, ·), likewise, of sliding windows: −beta·‖p̂ − p‖²
    long long label_stride;
    float sigma, tau, beta;
    float scale;       // of the sums: a power of two
    float near_scale;  // of distances in totals
    float largest;     // no value of a noisy patch, less ½, is larger in size
    float doubt;       // rounding errors of half a squared distance are smaller
    float bias;        // added to such distances, so that none is below zero
    int codes, iterations, limit, strips;
    int room;    // for an image's patches, and what products read behind the last one
    int noisy;   // similarities are those of the noisy windows
    int number;  // which centre is sought, or which round this is
    Cut cut;
    Keys keys;  // of the seed

    FUNCTION int patches() const { return cut.patches(); }
    FUNCTION u64 first() const { return (u64)blockIdx.y * room + blockIdx.x * STRIP; }
    FUNCTION int count() const { return min(STRIP, patches() - (int)blockIdx.x * STRIP); }
    FUNCTION u32* strip_rows() const { return rows + first() * STRIDE; }
    FUNCTION u32* image_factors(int b) const { return factors + (u64)b * CODES * READ; }
};

// BATCH of an image's noisy patches, in shared memory.
struct Batch {
    int first, count;
    const float* image;
    u32* rows;

    FUNCTION Batch(const Given& given, u8* memory, Stage stage, float noise) : rows((u32*)memory) {
        const int b = blockIdx.y;
        first = blockIdx.x * BATCH;
        count = min(BATCH, given.patches() - first);
        image = given.images + (u64)b * CHANNELS * given.cut.height * given.cut.width;
        float* values = (float*)memory;
        int* offsets = (int*)(values + BATCH * STRIDE + BEHIND);
        given.cut.fill_offsets(offsets);
        __syncthreads();
        make_patches(values, given.cut, offsets, image, first, count, given.keys, (u64)given.streams[b], stage, noise);
        for (int j = threadIdx.x; j < BEHIND; j += THREADS) values[count * STRIDE + j] = 0;
        __syncthreads();
        for (int row = threadIdx.x; row < count; row += THREADS) split_row(values + row * STRIDE);
        __syncthreads();
    }
};

// A patch in brief: the sums of the thirds of its values, on a scale of LEVELS that ends at the largest ones possible.
constexpr int LEVELS = 1 << 10;

FUNCTION constexpr int begin_of(int third) { return third * D / 3; }
FUNCTION constexpr int size_of(int third) { return begin_of(third + 1) - begin_of(third); }

FUNCTION u32 sketched(const u32* row, float largest) {
    float sums[3] = {0, 0, 0};
#pragma unroll
    for (int quad = 0; quad < FULL; ++quad) {
        const float4 values = joined(((const uint4*)row)[quad]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int j = 4 * quad + i;
            if (j < D) sums[(j >= begin_of(1)) + (j >= begin_of(2))] += component(values, i);
        }
    }
    u32 sketch = 0;
#pragma unroll
    for (int third = 0; third < 3; ++third) {
        const float most = size_of(third) * largest;
        const int level = most > 0 ? (int)((sums[third] / most + 1) * (LEVELS / 2)) : 0;
        sketch = sketch * LEVELS + min(max(level, 0), LEVELS - 1);
    }
    return sketch;
}

// Patches with these sketches are at least so far from each other, squared: sums of m values that differ by x are of
// patches that differ by x² / m. A little is left for rounding.
FUNCTION float least_distance(u32 one, u32 other, float largest) {
    int total = 0;
#pragma unroll
    for (int third = 2; third >= 0; --third, one /= LEVELS, other /= LEVELS) {
        const int apart = max(abs((int)(one % LEVELS) - (int)(other % LEVELS)) - 1, 0);
        total += size_of(third) * apart * apart;
    }
    const float level = 2 * largest / LEVELS;
    return 0.999f * level * level * (float)total;
}

KERNEL(patches_kernel, Given, THREADS, 3) {
    SHARED(memory);
    const Batch batch(given, memory, CODEBOOK, given.sigma);
    const int b = blockIdx.y, first = batch.first, count = batch.count;
    const u64 begin = (u64)b * given.room + first;
    uint4* target = (uint4*)(given.rows + begin * STRIDE);
    for (int place = threadIdx.x; place < count * (STRIDE / 4); place += THREADS)
        target[place] = ((const uint4*)batch.rows)[place];
    if (given.sketches != nullptr)
        for (int row = threadIdx.x; row < count; row += THREADS)
            given.sketches[begin + row] = sketched(batch.rows + row * STRIDE, given.largest);
    if (first + count == given.patches())
        for (int place = threadIdx.x; place < BEHIND; place += THREADS) ((u32*)(target + count * (STRIDE / 4)))[place] = 0;
}

FUNCTION u64 counted_distance(const Given& given, float distance) {
    return __float2uint_rn(distance * given.near_scale);
}

// Among `count` values, all threads' parts in order, where the running sum is first above the target; what the values
// before it add up to is taken from the target. value(i) is a whole number.
template <typename Value>
FUNCTION int first_above(u64* scratch, int count, u64& target, Value value) {
    const int part = (count + THREADS - 1) / THREADS, begin = min((int)threadIdx.x * part, count);
    const int end = min(begin + part, count);
    u64 own = 0;
    for (int i = begin; i < end; ++i) own += value(i);
    const u64 within = running_sum(own, lane_number());
    if (lane_number() == WARP - 1) scratch[warp_number()] = within;
    if (threadIdx.x == 0) scratch[WARPS] = (u64)count;
    __syncthreads();
    u64 before = within - own;
    for (int warp = 0; warp < warp_number(); ++warp) before += scratch[warp];
    if (before <= target && target < before + own) {  // true for one thread at most
        int i = begin;
        for (; before + value(i) <= target; ++i) before += value(i);
        scratch[WARPS] = (u64)i;
        scratch[WARPS + 1] = before;
    }
    __syncthreads();
    const int found = (int)scratch[WARPS];
    if (found < count) target -= scratch[WARPS + 1];
    __syncthreads();
    return min(found, count - 1);
}

// Centre `number` of k-means++, the strip first, then the patch in it.
KERNEL(pick_kernel, Given, THREADS, 2) {
    SHARED(memory);
    u64* scratch = (u64*)memory;
    const int lane = lane_number(), b = blockIdx.x, number = given.number;
    const u32 word = init_word(given.keys, (u64)given.streams[b], number);
    int index = (int)__umulhi(word, given.patches());
    if (number > 0) {
        const u64* totals = given.totals + (u64)b * given.strips;
        u64 total = 0;
        for (int strip = threadIdx.x; strip < given.strips; strip += THREADS) total += totals[strip];
        total = warp_sum(total);
        if (lane == 0) scratch[warp_number()] = total;
        __syncthreads();
        total = 0;
        for (int warp = 0; warp < WARPS; ++warp) total += scratch[warp];
        __syncthreads();
        if (total > 0) {
            u64 target = __umul64hi((u64)word << 32, total);
            const int strip = first_above(scratch, given.strips, target, [&](int i) { return totals[i]; });
            const float* near = given.near + (u64)b * given.room + strip * STRIP;
            const int count = min(STRIP, given.patches() - strip * STRIP);
            index = strip * STRIP +
                    first_above(scratch, count, target, [&](int i) { return counted_distance(given, near[i]); });
        }
    }
    const u64 place = (u64)b * given.room + index;
    float* centre = given.centres + ((u64)b * CODES + number) * TALLY;
    for (int j = threadIdx.x; j < TALLY; j += THREADS)
        centre[j] = j < D ? joined(given.rows + place * STRIDE, j) : 0.0f;
    if (threadIdx.x == 0) given.picked[b] = given.sketches[place];
}

// Distances to centre number − 1, where it is the nearest so far; and the strip's sum of them. Patches whose sketch tells
// that it is not are passed over, unread.
KERNEL(near_kernel, Given, THREADS, 4) {
    SHARED(memory);
    u64* sums = (u64*)memory;
    float4* centre = (float4*)(sums + WARPS);
    unsigned short* todo = (unsigned short*)(centre + FULL) + warp_number() * LIST;
    const int lane = lane_number(), b = blockIdx.y, number = given.number, size = given.count();
    float* near = given.near + given.first();
    const u32* sketches = given.sketches + given.first();
    const u32* rows = given.strip_rows();
    const float4* found = (const float4*)(given.centres + ((u64)b * CODES + number - 1) * TALLY);
    for (int quad = threadIdx.x; quad < FULL; quad += THREADS) centre[quad] = found[quad];
    const u32 picked = given.picked[b];
    u64 sum = 0;
    int count = 0;
    // All at once: none waits for the memory that the one before has waited for.
    float before[STRIP_GROUPS / WARPS];
    u32 sketch[STRIP_GROUPS / WARPS];
#pragma unroll
    for (int i = 0; i < STRIP_GROUPS / WARPS; ++i) {
        const int row = (warp_number() + i * WARPS) * WARP + lane;
        const bool known = number > 1 && row < size;
        before[i] = known ? near[row] : 0.0f;
        sketch[i] = known ? sketches[row] : 0;
    }
#pragma unroll
    for (int i = 0; i < STRIP_GROUPS / WARPS; ++i) {
        const int row = (warp_number() + i * WARPS) * WARP + lane;
        sum += counted_distance(given, before[i]);
        const bool nearer = number == 1 || least_distance(sketch[i], picked, given.largest) < before[i];
        count = listed(todo, count, row, row < size && nearer);
    }
    __syncthreads();
    for (int place = lane; place < count; place += WARP) {
        const int row = todo[place];
        const auto patch = [&](int quad) {
            float4 values = joined(((const uint4*)rows)[row * (STRIDE / 4) + quad]);
            if (quad == D / 4) behind(values) = 0;
            return values;
        };
        const float distance = squared_distance(patch, [&](int quad) { return centre[quad]; });
        const float before = number > 1 ? near[row] : 1e30f;
        if (distance < before) {
            near[row] = distance;
            sum += counted_distance(given, distance) - (number > 1 ? counted_distance(given, before) : 0);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[warp_number()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < WARPS; ++warp) sum += sums[warp];
        given.totals[b * given.strips + blockIdx.x] = sum;
    }
}

// Centres at k distinct patches, every set equally likely (Floyd's sampling).
KERNEL(sample_kernel, Given, THREADS, 2) {
    SHARED(memory);
    int* chosen = (int*)memory;
    const int b = blockIdx.x;
    sample(chosen, given.patches(), given.codes,
           [&](int number) { return init_word(given.keys, (u64)given.streams[b], number); });
    __syncthreads();
    for (int place = threadIdx.x; place < given.codes * TALLY; place += THREADS) {
        const int c = place / TALLY, j = place % TALLY;
        const u32* row = given.rows + ((u64)b * given.room + chosen[c]) * STRIDE;
        given.centres[((u64)b * CODES + c) * TALLY + j] = j < D ? joined(row, j) : 0.0f;
    }
}

// The centres as factors; and where rounds follow, what they begin with.
KERNEL(prepare_kernel, Given, THREADS, 2) {
    const int b = blockIdx.x;
    if (given.sums != nullptr) {
        for (int place = threadIdx.x; place < CODES * TALLY; place += THREADS)
            given.sums[(u64)b * CODES * TALLY + place] = 0;
        for (int c = threadIdx.x; c < CODES; c += THREADS) given.ways[b * CODES + c] = 0;
        if (threadIdx.x == 0) {
            given.longest[b] = 0;
            given.moved[b] = 0;
            given.active[b] = 1;
        }
    }
    prepare_factors(given.image_factors(b), given.norms + b * CODES, given.codes, given.bias,
                    [&](int c) { return (const float4*)(given.centres + ((u64)b * CODES + c) * TALLY); });
}

// New centres from the sums, and whether the image goes on.
KERNEL(update_kernel, Given, THREADS, 2) {
    const int b = blockIdx.x;
    if (given.active[b] == 0) return;
    const long long* sums = given.sums + (u64)b * CODES * TALLY;
    u32* factors = given.image_factors(b);
    float* steps = given.steps + b * CODES;
    // The first round has no labels to compare with: it never ends the search.
    const bool settles = given.number > 0 && given.moved[b] <= given.limit;
    update_centres(sums, factors, given.norms + b * CODES, steps, given.ways + b * CODES, given.codes, given.bias);
    __syncthreads();
    const float longest = longest_step(steps, given.codes);
    if (settles || given.number + 1 == given.iterations) {
        float* codebook = given.codebooks + b * given.image_stride;
        for (int place = threadIdx.x; place < given.codes * D; place += THREADS)
            codebook[place / D * given.centre_stride + place % D] = final_value(sums, factors, place / D, place % D);
    }
    if (threadIdx.x == 0) {
        if (settles) given.active[b] = 0;
        given.moved[b] = 0;
        given.longest[b] += longest;
    }
}

// One round of Lloyd's algorithm over a strip.
KERNEL(round_kernel, Given, THREADS, 2) {
    SHARED(memory);
    const int b = blockIdx.y;
    if (given.active[b] == 0) return;
    u32* fetched = (u32*)memory + warp_number() * Fetched::WORDS;
    int* sums = (int*)memory + WARPS * Fetched::WORDS;
    float* ways = (float*)(sums + CODES * TALLY);
    unsigned short* lists = (unsigned short*)(ways + CODES);
    for (int place = threadIdx.x; place < CODES * TALLY; place += THREADS) sums[place] = 0;
    for (int c = threadIdx.x; c < given.codes; c += THREADS) ways[c] = given.ways[b * CODES + c];
    __syncthreads();
    const Share share = {given.count(), given.codes, given.strip_rows(), given.image_factors(b),
                         given.states + given.first(), sums, ways, given.longest[b], given.scale, given.doubt,
                         given.bias};
    const Centres centres(given.image_factors(b), given.norms + b * CODES);
    const int moved =
        look_again(share, centres, lists, given.number == 0,
                   [&](const unsigned short* todo) { return Fetched{fetched, todo, share.halves}; });
    if (lane_number() == 0 && moved > 0) atomicAdd(&given.moved[b], moved);
    __syncthreads();
    for (int place = threadIdx.x; place < CODES * TALLY; place += THREADS)
        if (sums[place] != 0)
            atomicAdd((u64*)given.sums + (u64)b * CODES * TALLY + place, (u64)(long long)sums[place]);
}

// The centres that take the place of patches, and for sliding windows how similar they are.
KERNEL(label_kernel, Given, THREADS, 2) {
    SHARED(memory);
    const int b = blockIdx.y, lane = lane_number();
    float* centres = (float*)memory + BATCH * STRIDE + BEHIND + D;
    for (int place = threadIdx.x; place < given.codes * TALLY; place += THREADS)
        centres[place] = given.centres[(u64)b * CODES * TALLY + place];
    const Batch batch(given, memory, ASSIGNMENT, given.tau);
    const Centres factors(given.image_factors(b), given.norms + b * CODES);
    for (int group = warp_number(); group < groups_of(batch.count); group += WARPS) {
        const auto row_of = [&](int i) { return batch.rows + min(group * WARP + i, batch.count - 1) * STRIDE; };
        u32 best, second;
        factors.nearest(row_of, best, second);
        const int row = group * WARP + lane;
        const int label = settled(given.image_factors(b), best, second, given.doubt, row_of);
        if (row >= batch.count) continue;
        const u64 place = b * given.label_stride + batch.first + row;
        given.labels[place] = label;
        if (SLIDING)
            given.similarities[place] =
                -given.beta * squared_change(given.cut, batch.image, batch.first + row, batch.rows + row * STRIDE,
                                             given.noisy, centres + label * TALLY);
    }
}
