// The defense for images whose noisy patches fit into a multiprocessor's own memory: a block of threads an image, which
// makes the patches, finds the start, does Lloyd's rounds, labels the patches and rebuilds the image, and writes nothing
// but results.
//
// Patches are float32 values while they are made and the start is found, then halves for products.
//
// BLOCKS is how many blocks a multiprocessor shall have room for.
#include "clusters.cuh"

constexpr int HELD = FULL <= 7 ? 2 : 1;  // patches that a thread keeps in registers

struct Given {
    const float* images;       // (B, q, h, w)
    const long long* streams;  // (B,)
    float* codebooks;          // (B, k, d): found, where `finds` says so and they are wanted, or given
    float* output;             // (B, q, h, w), the quantized images, where they are wanted
    int* labels;               // (B, n), where they are wanted
    float sigma, tau, beta;
    float scale;  // of the sums: a power of two
    float most;   // squared distances between patches are less in all
    float doubt;  // rounding errors of half a squared distance are smaller
    float bias;   // added to such distances, so that none is below zero
    int finds, spread, noisy;  // k-means at all; from k-means++; weights from the noisy windows
    int codes, iterations, limit;
    Cut cut;
    Keys keys;  // of the seed

    FUNCTION int patches() const { return cut.patches(); }
    FUNCTION const float* image() const { return images + (u64)blockIdx.x * CHANNELS * cut.height * cut.width; }
};

// What is in shared memory; resident.py knows its size. Those of the start and of the rounds share a place.
struct Room {
    float* rows;   // (n, STRIDE) and BEHIND, as float32
    u32* halves;   // the same place, as halves
    int* offsets;  // (D), where a patch's pixels lie
    int* chosen;   // (CODES), which patches the rounds start from
    int* moved;    // how many patches have changed their cluster so far
    u32* words;    // of the start: (CODES), random
    float* near;           // (groups·32), squared distances
    u32* running;          // (2, groups·33), their sums within groups of 32 patches, and by group
    u32* factors;          // of the rounds: the centres as the matrix units want them, less their sign
    float* norms;          // (CODES), half the squared ones
    float* steps;          // (CODES), how far centres moved
    float* ways;           // (CODES), and in all rounds
    int* sums;             // (CODES, TALLY)
    float* centres;        // the same place: the codebook less ½, when it is found
    u32* states;           // (groups·32), reach and label
    unsigned short* todo;  // a list of patches for each warp
};

FUNCTION Room room_of(u8* memory, int n) {
    const int rows = groups_of(n) * WARP;
    Room room;
    room.rows = (float*)memory;
    room.halves = (u32*)memory;
    room.offsets = (int*)(room.rows + n * STRIDE + BEHIND);
    room.chosen = room.offsets + TALLY;
    room.moved = room.chosen + CODES;
    room.words = (u32*)(room.moved + 4);
    room.near = (float*)(room.words + CODES);
    room.running = (u32*)(room.near + rows);
    room.factors = (u32*)(room.moved + 4);
    room.norms = (float*)(room.factors + CODES * READ);
    room.steps = room.norms + CODES;
    room.ways = room.steps + CODES;
    room.sums = (int*)(room.ways + CODES);
    room.centres = (float*)room.sums;
    room.states = (u32*)(room.sums + CODES * TALLY);
    room.todo = (unsigned short*)(room.states + rows);
    return room;
}

// The patch that k-means++ takes next: the first whose running sum is above the target. Every warp finds the same one.
FUNCTION int pick(const u32* running, const u32* totals, int n, u32 word, u32& total) {
    const int lane = lane_number(), groups = groups_of(n);
    u32 first = 0;
    total = 0;
    for (int start = 0; start < groups; start += WARP) {
        const u32 sums = running_sum(start + lane < groups ? totals[start + lane] : 0, lane);
        if (start == 0) first = sums;
        total += __shfl_sync(EVERY, sums, WARP - 1);
    }
    if (total == 0) return (int)__umulhi(word, n);
    u32 target = __umulhi(word, total);
    for (int start = 0;; start += WARP) {
        const u32 sums =
            start == 0 ? first : running_sum(start + lane < groups ? totals[start + lane] : 0, lane);
        const int passed = __popc(__ballot_sync(EVERY, sums <= target));
        const u32 before = __shfl_sync(EVERY, sums, max(passed - 1, 0));
        if (passed > 0) target -= before;
        if (passed < WARP) {
            const int group = start + passed;
            return group * WARP + __popc(__ballot_sync(EVERY, running[group * WARP + lane] <= target));
        }
    }
}

// k-means++: each next centre is a patch drawn with probability proportional to its squared distance from the
// nearest centre so far. Distances are added up as whole numbers, as large as the last total lets them be; before the
// first pick, one turn finds a total. A thread holds its first patches in registers.
FUNCTION void spread_centres(const Given& given, const Room& room) {
    const int lane = lane_number(), n = given.patches(), groups = groups_of(n);
    float4 held[HELD][FULL];
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        load_row(held[i], room.rows, min((warp_number() + i * WARPS) * WARP + lane, n - 1));
    for (int group = warp_number(); group < groups; group += WARPS) room.near[group * WARP + lane] = 1e30f;
    int chosen = (int)__umulhi(room.words[0], n);
    float most = given.most;
    for (int turn = 0, number = 1;; ++turn) {
        if (threadIdx.x == 0) room.chosen[number - 1] = chosen;
        if (number == given.codes) return;
        // Two places take turns, so that a quick warp does not write what a slow one still reads.
        u32* running = room.running + turn % 2 * (groups * (WARP + 1));
        u32* totals = running + groups * WARP;
        // A power of two that keeps the total below 2^31.
        const float scale = as_float((284u - (as_bits(most) >> 23)) << 23);
        float4 centre[FULL];
        load_row(centre, room.rows, chosen);
        auto approach = [&](int group, const float4(&patch)[FULL]) {
            const int row = group * WARP + lane;
            const float apart = squared_distance([&](int quad) { return patch[quad]; },
                                                 [&](int quad) { return centre[quad]; });
            const float distance = row < n ? fminf(apart, room.near[row]) : 0.0f;
            room.near[row] = distance;
            const u32 sums = running_sum(__float2uint_rn(distance * scale), lane);
            running[row] = sums;
            if (lane == WARP - 1) totals[group] = sums;
        };
#pragma unroll
        for (int i = 0; i < HELD; ++i)
            if (warp_number() + i * WARPS < groups) approach(warp_number() + i * WARPS, held[i]);
        for (int group = warp_number() + HELD * WARPS; group < groups; group += WARPS) {
            float4 patch[FULL];
            load_row(patch, room.rows, min(group * WARP + lane, n - 1));
            approach(group, patch);
        }
        __syncthreads();
        u32 total;
        const int next = pick(running, totals, n, room.words[number], total);
        most = fmaxf((float)(total + n) / scale, 1e-20f);
        if (turn == 0) continue;
        chosen = next;
        ++number;
    }
}

// The state before the first round.
FUNCTION void prepare_rounds(const Given& given, const Room& room) {
    prepare_factors(room.factors, room.norms, given.codes, given.bias,
                    [&](int c) { return (const float4*)room.rows + room.chosen[c] * (STRIDE / 4); });
    for (int place = threadIdx.x; place < CODES * TALLY; place += THREADS) room.sums[place] = 0;
    for (int c = threadIdx.x; c < CODES; c += THREADS) room.ways[c] = 0;
    if (threadIdx.x == 0) *room.moved = 0;
    __syncthreads();
    for (int row = threadIdx.x; row < given.patches(); row += THREADS) split_row(room.rows + row * STRIDE);
}

// The sums' place from here on: the codebook less ½.
FUNCTION void finish_centres(const Given& given, const Room& room) {
    for (int c = warp_number(); c < given.codes; c += WARPS) {
        float values[(D + WARP - 1) / WARP];
        for (int j = lane_number(), i = 0; j < D; j += WARP) values[i++] = final_value(room.sums, room.factors, c, j);
        __syncwarp(EVERY);
        for (int j = lane_number(), i = 0; j < TALLY; j += WARP)
            room.centres[c * TALLY + j] = j < D ? values[i++] : 0.0f;
    }
}

FUNCTION void find_centres(const Given& given, const Room& room, u64 stream) {
    for (int number = threadIdx.x; number < given.codes; number += THREADS)
        room.words[number] = init_word(given.keys, stream, number);
    make_patches(room.rows, given.cut, room.offsets, given.image(), 0, given.patches(), given.keys, stream, CODEBOOK,
                 given.sigma);
    for (int j = threadIdx.x; j < BEHIND; j += THREADS) room.rows[given.patches() * STRIDE + j] = 0;
    __syncthreads();
    if (given.spread) {
        spread_centres(given, room);
    } else {
        sample(room.chosen, given.patches(), given.codes, [&](int number) { return room.words[number]; });
    }
    __syncthreads();
    prepare_rounds(given, room);
    __syncthreads();
    Share share = {given.patches(), given.codes, room.halves, room.factors, room.states, room.sums,
                   room.ways,       0.0f,        given.scale, given.doubt,  given.bias};
    int all = 0;
    for (int round = 0; round < given.iterations; ++round) {
        const int mine = look_again(share, Centres(room.factors, room.norms), room.todo, round == 0,
                                    [&](const unsigned short* todo) { return InPlace{room.halves, todo}; });
        if (lane_number() == 0) atomicAdd(room.moved, mine);
        __syncthreads();
        const int moved = *room.moved - all;
        all += moved;
        update_centres(room.sums, room.factors, room.norms, room.steps, room.ways, given.codes, given.bias);
        __syncthreads();
        share.longest += longest_step(room.steps, given.codes);
        // The first round has no labels to compare with: it never ends the search.
        if (round > 0 && moved <= given.limit) break;
    }
    finish_centres(given, room);
}

// The pixels of the output. Of windows that overlap, states has the label, and the first word of a row the similarity.
FUNCTION void rebuild(const Given& given, const Room& room) {
    const int pixels = given.cut.height * given.cut.width;
    float* output = given.output + (u64)blockIdx.x * CHANNELS * pixels;
    for (int pixel = threadIdx.x; pixel < pixels; pixel += THREADS) {
        const int y = pixel / given.cut.width, x = pixel - y * given.cut.width;
        float values[CHANNELS];
        if (SLIDING) {
            float weights[SIZE * SIZE], largest = -3e38f, total = 0;
#pragma unroll
            for (int o = 0; o < SIZE * SIZE; ++o) {
                const int wy = y - o / SIZE, wx = x - o % SIZE;
                const bool here = wy >= 0 && wy < given.cut.rows && wx >= 0 && wx < given.cut.columns;
                weights[o] = here ? room.rows[(wy * given.cut.columns + wx) * STRIDE] : -3e38f;
                largest = fmaxf(largest, weights[o]);
            }
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) values[channel] = 0;
#pragma unroll
            for (int o = 0; o < SIZE * SIZE; ++o) {
                const int wy = y - o / SIZE, wx = x - o % SIZE;
                if (!(wy >= 0 && wy < given.cut.rows && wx >= 0 && wx < given.cut.columns)) continue;
                const float weight = expf(weights[o] - largest);
                const float* centre = room.centres + room.states[wy * given.cut.columns + wx] * TALLY + o;
                total += weight;
#pragma unroll
                for (int channel = 0; channel < CHANNELS; ++channel)
                    values[channel] += weight * centre[channel * SIZE * SIZE];
            }
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) values[channel] /= total;
        } else {
            const int label = room.states[y / SIZE * given.cut.columns + x / SIZE];
            const float* centre = room.centres + label * TALLY + y % SIZE * SIZE + x % SIZE;
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) values[channel] = centre[channel * SIZE * SIZE];
        }
#pragma unroll
        for (int channel = 0; channel < CHANNELS; ++channel)
            output[channel * pixels + pixel] = fminf(fmaxf(values[channel] + CENTRE, 0.0f), 1.0f);
    }
}

// Labels, similarities and the output, from the centres.
FUNCTION void quantize(const Given& given, const Room& room, u64 stream) {
    const int lane = lane_number(), n = given.patches();
    prepare_factors(room.factors, room.norms, given.codes, given.bias,
                    [&](int c) { return (const float4*)(room.centres + c * TALLY); });
    make_patches(room.rows, given.cut, room.offsets, given.image(), 0, n, given.keys, stream, ASSIGNMENT, given.tau);
    for (int j = threadIdx.x; j < BEHIND; j += THREADS) room.rows[n * STRIDE + j] = 0;
    __syncthreads();
    for (int row = threadIdx.x; row < n; row += THREADS) split_row(room.rows + row * STRIDE);
    __syncthreads();
    const Centres centres(room.factors, room.norms);
    for (int group = warp_number(); group < groups_of(n); group += WARPS) {
        const auto row_of = [&](int i) { return room.halves + min(group * WARP + i, n - 1) * STRIDE; };
        u32 best, second;
        centres.nearest(row_of, best, second);
        room.states[group * WARP + lane] = settled(room.factors, best, second, given.doubt, row_of);
    }
    __syncthreads();
    for (int row = threadIdx.x; row < n; row += THREADS) {
        const int label = room.states[row];
        if (given.labels != nullptr) given.labels[(u64)blockIdx.x * n + row] = label;
        if (SLIDING)
            room.rows[row * STRIDE] =
                -given.beta * squared_change(given.cut, given.image(), row, room.halves + row * STRIDE, given.noisy,
                                             room.centres + label * TALLY);
    }
    __syncthreads();
    rebuild(given, room);
}

KERNEL(resident_kernel, Given, THREADS, BLOCKS) {
    SHARED(memory);
    const Room room = room_of(memory, given.patches());
    const u64 stream = (u64)given.streams[blockIdx.x];
    float* codebook = given.codebooks + (u64)blockIdx.x * given.codes * D;
    given.cut.fill_offsets(room.offsets);
    __syncthreads();
    if (given.finds) {
        find_centres(given, room, stream);
    } else {
        for (int place = threadIdx.x; place < given.codes * TALLY; place += THREADS) {
            const int c = place / TALLY, j = place % TALLY;
            room.centres[place] = j < D ? codebook[c * D + j] - CENTRE : 0.0f;
        }
    }
    __syncthreads();
    if (given.finds && given.codebooks != nullptr)
        for (int place = threadIdx.x; place < given.codes * D; place += THREADS)
            codebook[place] = room.centres[place / D * TALLY + place % D] + CENTRE;
    if (given.output != nullptr) quantize(given, room, stream);
}
