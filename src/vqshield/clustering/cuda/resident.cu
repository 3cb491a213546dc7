// The defense for images whose noisy patches fit into a multiprocessor's own memory: a block of threads an image, which
// makes the patches, finds the start, does Lloyd's rounds, labels the patches and rebuilds the image, and writes nothing
// but results.
//
// A patch less ½ is a row of STRIDE words, half its squared norm behind it: float32 values while patches are made and
// the start is found, then quads of values as hi + lo in half precision, 22 bits together: four hi, four lo, as the
// matrix units want them. Three products there make an inner product nearly as good as float32, and with the norms
// it is half a squared distance.
//
// Each patch has a slack: how much nearer its centre is than any other, at least. Centres that move use it up; while
// some is left the patch keeps its label, unread (Hamerly 2010). A patch that changes its cluster is taken from one
// sum and added to another; sums are whole numbers, so that the order of threads does not matter.
//
// The compiler is told SIZE, CHANNELS, SLIDING (0 or 1), TILES, of sixteen codes each, THREADS of a block, and how many
// BLOCKS a multiprocessor shall have room for.
#include "noise.cuh"

constexpr int WARPS = THREADS / WARP;
constexpr int D = CHANNELS * SIZE * SIZE;
constexpr int FULL = (D + 3) / 4;  // quads of values
constexpr int QUADS = D / 4 + 1;   // and with one more value behind them
constexpr int STRIDE = 4 * (QUADS | 1);  // an odd number of quads: eight rows' are in different banks
constexpr int STEPS = D / 16 + 1;        // of a matrix product
constexpr int READ = 16 * STEPS;         // words of a row that it reads, the next row's among them
constexpr int BEHIND = READ > STRIDE ? READ - STRIDE : 0;  // so there are some behind the last row
constexpr int CODES = 16 * TILES;
constexpr int HELD = FULL <= 7 ? 2 : 0;  // patches that a thread keeps in registers
constexpr int TALLY = 4 * QUADS;  // values of a cluster's sum, its size behind them
constexpr int TEAM = QUADS <= 1 ? 1 : QUADS <= 2 ? 2 : QUADS <= 4 ? 4 : QUADS <= 8 ? 8 : QUADS <= 16 ? 16 : 32;
constexpr int TEAMS = WARP / TEAM;  // of lanes, each with a quad of one row, in a warp
constexpr int NUMBER = CODES <= 16 ? 16 : CODES <= 32 ? 32 : CODES <= 64 ? 64 : CODES <= 128 ? 128 : 256;
constexpr int LABEL = 256;  // the lowest bits of a state
constexpr float CENTRE = 0.5f;
constexpr float BIAS = 6.103515625e-05f;  // keeps distances positive where rounding leaves them below zero

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
    int finds, spread, noisy;  // k-means at all; from k-means++; weights from the noisy windows
    int height, width, rows, columns, codes, iterations, limit;
    u32 reciprocal;  // ⌈2^32 / columns⌉: a product instead of a division
    Keys keys;       // of the seed

    FUNCTION int patches() const { return rows * columns; }
    FUNCTION const float* image() const { return images + (u64)blockIdx.x * CHANNELS * height * width; }
};

// What is in shared memory; resident.py knows its size. Those of the start and of the rounds share a place.
struct Room {
    float* rows;   // (n, STRIDE) and BEHIND, as float32
    u32* halves;   // the same place, as halves
    int* chosen;   // (CODES), which patches the rounds start from
    int* moved;    // how many patches have changed their cluster so far
    u32* words;    // of the start: (CODES), random
    float* near;           // (groups·32), squared distances
    u32* running;          // (2, groups·33), their sums within groups of 32 patches, and by group
    u32* factors;          // of the rounds: the centres as the matrix units want them, less their sign
    float* norms;          // (CODES), half the squared ones
    float* steps;          // (CODES), how far centres moved
    int* sums;             // (CODES, TALLY)
    float* centres;        // the same place: the codebook less ½, when it is found
    u32* states;           // (groups·32), slack and label
    unsigned short* todo;  // a list of patches for each warp
};

FUNCTION int groups_of(int n) { return (n + WARP - 1) / WARP; }
FUNCTION int list_room(int n) { return (groups_of(n) + WARPS - 1) / WARPS * WARP; }

FUNCTION Room room_of(u8* memory, int n) {
    const int rows = groups_of(n) * WARP;
    Room room;
    room.rows = (float*)memory;
    room.halves = (u32*)memory;
    room.chosen = (int*)(room.rows + n * STRIDE + BEHIND);
    room.moved = room.chosen + CODES;
    room.words = (u32*)(room.moved + 4);
    room.near = (float*)(room.words + CODES);
    room.running = (u32*)(room.near + rows);
    room.factors = (u32*)(room.moved + 4);
    room.norms = (float*)(room.factors + CODES * READ);
    room.steps = room.norms + CODES;
    room.sums = (int*)(room.steps + CODES);
    room.centres = (float*)room.sums;
    room.states = (u32*)(room.sums + CODES * TALLY);
    room.todo = (unsigned short*)(room.states + rows);
    return room;
}

FUNCTION float as_float(u32 bits) { return __uint_as_float(bits); }
FUNCTION u32 as_bits(float value) { return __float_as_uint(value); }

// Where in an image patch `row` begins.
FUNCTION int corner(const Given& given, int row) {
    const int y = given.columns == 1 ? row : (int)__umulhi(row, given.reciprocal), x = row - y * given.columns;
    return (y * given.width + x) * (SLIDING ? 1 : SIZE);
}

// Where component j of a patch lies, from where it begins.
FUNCTION int offset(const Given& given, int j) {
    return (j / (SIZE * SIZE) * given.height + j / SIZE % SIZE) * given.width + j % SIZE;
}

// The patches with the noise of a stage, in float32.
FUNCTION void make_patches(const Given& given, const Room& room, u64 stream, Stage stage, float noise) {
    const float* image = given.image();
    const int n = given.patches(), values = n * D;
    for (int block = threadIdx.x; 4 * block < values; block += THREADS) {
        const int first = 4 * block / D, j = 4 * block - first * D;
        const int here = corner(given, first), next = corner(given, min(first + 1, n - 1));
        float clean[4], z[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int over = D >= 4 ? j + i >= D : (j + i) / D;
            const int place = over == 0 ? here : over == 1 ? next : corner(given, min(first + over, n - 1));
            clean[i] = image[place + offset(given, j + i - over * D)];
        }
        normals(given.keys, stream, stage, block, z);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = first + (D >= 4 ? j + i >= D : (j + i) / D);
            if (row < n) room.rows[4 * block + i + row * (STRIDE - D)] = clean[i] - CENTRE + z[i] * noise;
        }
    }
    for (int row = threadIdx.x; row < n; row += THREADS)
        for (int j = D; j < STRIDE; ++j) room.rows[row * STRIDE + j] = 0;
    for (int j = threadIdx.x; j < BEHIND; j += THREADS) room.rows[n * STRIDE + j] = 0;
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

FUNCTION void load_row(float4 (&values)[FULL], const float* rows, int row) {
#pragma unroll
    for (int quad = 0; quad < FULL; ++quad) values[quad] = ((const float4*)rows)[row * (STRIDE / 4) + quad];
}

FUNCTION float squared_distance(const float4 (&patch)[FULL], const float4 (&centre)[FULL]) {
    float ends[2] = {0, 0};
#pragma unroll
    for (int quad = 0; quad < FULL; ++quad) {
        const float x = patch[quad].x - centre[quad].x, y = patch[quad].y - centre[quad].y;
        const float z = patch[quad].z - centre[quad].z, w = patch[quad].w - centre[quad].w;
        ends[0] += x * x;
        ends[1] += y * y;
        ends[0] += z * z;
        ends[1] += w * w;
    }
    return ends[0] + ends[1];
}

// k-means++: each next centre is a patch drawn with probability proportional to its squared distance from the
// nearest centre so far. Distances are added up as whole numbers, as large as the last total lets them be. A thread
// holds its first patches in registers.
FUNCTION void spread_centres(const Given& given, const Room& room) {
    const int lane = lane_number(), n = given.patches(), groups = groups_of(n);
    float4 held[HELD][FULL];
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        load_row(held[i], room.rows, min((warp_number() + i * WARPS) * WARP + lane, n - 1));
    for (int group = warp_number(); group < groups; group += WARPS) room.near[group * WARP + lane] = 1e30f;
    int chosen = (int)__umulhi(room.words[0], n);
    float most = given.most;
    for (int number = 1;; ++number) {
        if (threadIdx.x == 0) room.chosen[number - 1] = chosen;
        if (number == given.codes) return;
        // Two places take turns, so that a quick warp does not write what a slow one still reads.
        u32* running = room.running + number % 2 * (groups * (WARP + 1));
        u32* totals = running + groups * WARP;
        // A power of two that keeps the total below 2^31.
        const float scale = as_float((284u - (as_bits(most) >> 23)) << 23);
        float4 centre[FULL];
        load_row(centre, room.rows, chosen);
        auto approach = [&](int group, const float4(&patch)[FULL]) {
            const int row = group * WARP + lane;
            const float distance = row < n ? fminf(squared_distance(patch, centre), room.near[row]) : 0.0f;
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
        chosen = pick(running, totals, n, room.words[number], total);
        most = fmaxf((float)total / scale, 1e-20f);
    }
}

// k distinct patches at random, every set equally likely (Floyd's sampling), by the first warp.
FUNCTION void sample_centres(const Given& given, const Room& room) {
    if (warp_number() != 0) return;
    for (int number = 0; number < given.codes; ++number) {
        const int last = given.patches() - given.codes + number;
        const int candidate = (int)(((u64)room.words[number] * (u64)(last + 1)) >> 32);
        bool taken = false;
        for (int other = lane_number(); other < number; other += WARP) taken |= room.chosen[other] == candidate;
        const bool any = __ballot_sync(EVERY, taken) != 0;
        if (lane_number() == 0) room.chosen[number] = any ? last : candidate;
        __syncwarp(EVERY);
    }
}

// Value j of a row in halves.
FUNCTION float joined(const u32* row, int j) {
    const unsigned short* place = (const unsigned short*)row + j / 4 * 8 + j % 4;
    return half_value(place[0]) + half_value(place[4]);
}

FUNCTION float4 joined(uint4 words) {
    return {half_value(words.x & 0xffff) + half_value(words.z & 0xffff),
            half_value(words.x >> 16) + half_value(words.z >> 16),
            half_value(words.y & 0xffff) + half_value(words.w & 0xffff),
            half_value(words.y >> 16) + half_value(words.w >> 16)};
}

FUNCTION uint4 split(float4 v) {
    const u32 x = half_bits(v.x), y = half_bits(v.y), z = half_bits(v.z), w = half_bits(v.w);
    return {x | y << 16, z | w << 16, half_bits(v.x - half_value(x)) | half_bits(v.y - half_value(y)) << 16,
            half_bits(v.z - half_value(z)) | half_bits(v.w - half_value(w)) << 16};
}

// The value of a quad that stands behind the patch's own.
template <typename V>
FUNCTION auto& behind(V& quad) {
    if constexpr (D % 4 == 0) return quad.x;
    if constexpr (D % 4 == 1) return quad.y;
    if constexpr (D % 4 == 2) return quad.z;
    if constexpr (D % 4 == 3) return quad.w;
}

// A quad of centre c as a left factor: lane 4g + t finds all four words of rows g and g + 8 in one place, hi and lo.
struct Factor {
    u32* place;
    FUNCTION Factor(const Room& room, int c, int quad)
        : place(room.factors + ((c / 16 * STEPS + quad / 4) * 2 * WARP + c % 8 * 4 + quad % 4) * 4 + c / 8 % 2) {}
    FUNCTION uint4 load() const { return {place[0], place[2], place[4 * WARP], place[4 * WARP + 2]}; }
    FUNCTION void store(uint4 words) const {
        place[0] = words.x;
        place[2] = words.y;
        place[4 * WARP] = words.z;
        place[4 * WARP + 2] = words.w;
    }
};

// A row of float32 values, in halves from here on.
FUNCTION void split_row(float* row) {
    float4 quads[QUADS];
    float square = 0;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
        const float4 v = quads[quad] = ((const float4*)row)[quad];
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    behind(quads[D / 4]) = 0.5f * square;
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) ((uint4*)row)[quad] = split(quads[quad]);
}

FUNCTION float4 negative(float4 v) { return {-v.x, -v.y, -v.z, -v.w}; }

// The centres as factors, and half their squared norms; first_quad(c) is where the quads of centre c lie.
template <typename Place>
FUNCTION void prepare_factors(const Room& room, int codes, Place first_quad) {
    for (int place = threadIdx.x; place < CODES * 4 * STEPS; place += THREADS) {
        const int c = place / (4 * STEPS), quad = place % (4 * STEPS);
        float4 values = {0, 0, 0, 0};
        if (c < codes && quad < FULL) values = negative(first_quad(c)[quad]);
        if (quad == D / 4) behind(values) = 1.0f;
        Factor(room, c, quad).store(split(values));
    }
    for (int c = threadIdx.x; c < CODES; c += THREADS) {
        float square = 0;
        for (int j = 0; j < D && c < codes; ++j) {
            const float value = ((const float*)first_quad(c))[j];
            square += value * value;
        }
        room.norms[c] = c < codes ? 0.5f * square + BIAS : 1e30f;  // that: never near
    }
}

// The state before the first round.
FUNCTION void prepare_rounds(const Given& given, const Room& room) {
    const int n = given.patches();
    prepare_factors(room, given.codes,
                    [&](int c) { return (const float4*)room.rows + room.chosen[c] * (STRIDE / 4); });
    for (int place = threadIdx.x; place < CODES * TALLY; place += THREADS) room.sums[place] = 0;
    // Rows that are none have more slack than any centre's way.
    for (int row = n + threadIdx.x; row < groups_of(n) * WARP; row += THREADS) room.states[row] = 0x7f000000;
    if (threadIdx.x == 0) *room.moved = 0;
    __syncthreads();
    for (int row = threadIdx.x; row < n; row += THREADS) split_row(room.rows + row * STRIDE);
}

// The two smallest of two pairs.
FUNCTION void keep_smallest(u32& best, u32& second, u32 other, u32 next) {
    second = min(max(best, other), min(second, next));
    best = min(best, other);
}

// Of 2·COUNT patches whose pairs two lanes have, each lane goes on with the half that its bit of the lane's number
// names, and gives the other half away.
template <int COUNT>
FUNCTION void halve(u32* best, u32* second, int bit) {
    const bool upper = lane_number() & bit;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const u32 given = upper ? best[i] : best[i + COUNT], next = upper ? second[i] : second[i + COUNT];
        best[i] = upper ? best[i + COUNT] : best[i];
        second[i] = upper ? second[i + COUNT] : second[i];
        keep_smallest(best[i], second[i], __shfl_xor_sync(EVERY, given, bit), __shfl_xor_sync(EVERY, next, bit));
    }
}

// A value of a patch for the sums.
FUNCTION int counted(const Given& given, float value) { return __float2int_rn(value * given.scale); }

// All centres, as a lane has them for products. Centres are the left factor and patches the right one, so that a lane
// has its words of a patch as they lie in memory.
struct Centres {
    uint4 high[TILES][STEPS], low[TILES][STEPS];
    float4 norms[TILES];

    FUNCTION explicit Centres(const Room& room) {
        const int lane = lane_number(), g = lane / 4;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const uint4* place = (const uint4*)room.factors + (tile * STEPS + step) * 2 * WARP + lane;
                high[tile][step] = place[0];
                low[tile][step] = place[WARP];
            }
            const float upper = room.norms[16 * tile + g], lower = room.norms[16 * tile + 8 + g];
            norms[tile] = {upper, upper, lower, lower};
        }
    }

    // Half the squared distances of 32 patches from their nearest centre and the second, and in the lowest bits which
    // centre: one minimum finds both. patch_at(i) is the number of patch i, and lane i has its distances in the end.
    //
    // A product gives lane 4g + t the distances of patches 2t and 2t + 1 of eight from centres g and g + 8 of sixteen;
    // halving three times leaves each lane with one patch.
    template <typename Patch>
    FUNCTION void nearest(const Room& room, Patch patch_at, u32& nearest, u32& next) const {
        const int lane = lane_number(), g = lane / 4, t = lane % 4;
        u32 best[8], second[8];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            // Two lanes in a row read rows that are four apart: where all follow each other, in different banks.
            const int patch = patch_at(8 * part + (g >> 1 | (g & 1) << 2));
            uint4 words[STEPS];
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                words[step] = *(const uint4*)(room.halves + patch * STRIDE + 16 * step + 4 * t);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                float4 scores;
                multiply(scores, high[tile][0], words[0].z, words[0].w, norms[tile]);
                multiply_add(scores, low[tile][0], words[0].x, words[0].y);
#pragma unroll
                for (int step = 1; step < STEPS; ++step) {
                    multiply_add(scores, high[tile][step], words[step].z, words[step].w);
                    multiply_add(scores, low[tile][step], words[step].x, words[step].y);
                }
#pragma unroll
                for (int step = 0; step < STEPS; ++step)
                    multiply_add(scores, high[tile][step], words[step].x, words[step].y);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float upper = i == 0 ? scores.x : scores.y, lower = i == 0 ? scores.z : scores.w;
                    const u32 one = (as_bits(upper) & ~(NUMBER - 1u)) | (16 * tile + g);
                    const u32 other = (as_bits(lower) & ~(NUMBER - 1u)) | (16 * tile + 8 + g);
                    if (tile == 0) {
                        best[2 * part + i] = min(one, other);
                        second[2 * part + i] = max(one, other);
                    } else {
                        keep_smallest(best[2 * part + i], second[2 * part + i], min(one, other), max(one, other));
                    }
                }
            }
        }
        halve<4>(best, second, 16);
        halve<2>(best, second, 8);
        halve<1>(best, second, 4);
        nearest = best[0];
        next = second[0];
    }
};

// New states of the patches on this warp's list, 32 at a time, and the sums that follow from them; the first
// round's are summed up later. Returns how many have moved.
FUNCTION int assign(const Given& given, const Room& room, const unsigned short* todo, int count, bool is_first) {
    const int lane = lane_number();
    const Centres centres(room);
    int moved = 0;
    for (int first = 0; first < count; first += WARP) {
        u32 best, second;
        centres.nearest(room, [&](int i) { return todo[first + i]; }, best, second);
        const int row = todo[first + lane], label = best & (NUMBER - 1);
        int before = label;
        if (first + lane < count) {
            const float packing = NUMBER * 1.2e-7f;
            const float upper = as_float(best) * (1 + packing) - BIAS + given.doubt;
            const float lower = as_float(second) * (1 - packing) - BIAS - given.doubt;
            const float slack = sqrtf(2 * fmaxf(lower, 0.0f)) - sqrtf(2 * fmaxf(upper, 0.0f));
            if (!is_first) before = room.states[row] & (LABEL - 1);
            room.states[row] = (as_bits(slack) & ~(LABEL - 1u)) | label;
        }
        u32 moves = __ballot_sync(EVERY, before != label);
        moved += __popc(moves);
        for (const u32 all = row | label << 16 | before << 24; moves != 0; moves &= moves - 1) {
            const u32 move = __shfl_sync(EVERY, all, __ffs(moves) - 1);
            for (int j = lane; j <= D; j += WARP) {
                const float value = j < D ? joined(room.halves + (move & 0xffff) * STRIDE, j) : 1.0f;
                atomicAdd(&room.sums[(move >> 16 & 0xff) * TALLY + j], counted(given, value));
                atomicAdd(&room.sums[(move >> 24) * TALLY + j], -counted(given, value));
            }
        }
    }
    return moved;
}

FUNCTION void add_quad(int* place, int4 sum) {
    atomicAdd(place, sum.x);
    atomicAdd(place + 1, sum.y);
    atomicAdd(place + 2, sum.z);
    atomicAdd(place + 3, sum.w);
}

// The sums of this warp's patches, after the first round. A team of lanes adds up those that follow each other in one
// cluster, and then adds them to its sum.
FUNCTION void sum_up(const Given& given, const Room& room) {
    const int lane = lane_number(), quad = lane % TEAM, n = given.patches();
    for (int group = warp_number(); group < groups_of(n); group += WARPS) {
        const int first = group * WARP + lane / TEAM * TEAM;
        int4 sum = {0, 0, 0, 0};
        int cluster = -1;
#pragma unroll
        for (int i = 0; i < TEAM; ++i) {
            if (first + i >= n || quad >= QUADS) continue;
            const int label = room.states[first + i] & (LABEL - 1);
            if (label != cluster) {
                if (cluster >= 0) add_quad(room.sums + cluster * TALLY + 4 * quad, sum);
                sum = {0, 0, 0, 0};
                cluster = label;
            }
            float4 values = joined(((const uint4*)room.halves)[(first + i) * (STRIDE / 4) + quad]);
            if (quad == D / 4) behind(values) = 1.0f;
            sum.x += counted(given, values.x);
            sum.y += counted(given, values.y);
            sum.z += counted(given, values.z);
            sum.w += counted(given, values.w);
        }
        if (cluster >= 0) add_quad(room.sums + cluster * TALLY + 4 * quad, sum);
    }
}

// Any patch, where a list has no more: they are looked at 32 at a time.
FUNCTION void fill_list(unsigned short* todo, int count) {
    if (count % WARP != 0 && lane_number() >= count % WARP) todo[count / WARP * WARP + lane_number()] = 0;
    __syncwarp(EVERY);
}

// Lists this warp's patches whose slack is used up by the centres' steps; returns how many.
FUNCTION int doubtful(const Given& given, const Room& room, unsigned short* todo) {
    const int lane = lane_number(), n = given.patches();
    float longest = 0;
    for (int c = lane; c < given.codes; c += WARP) longest = fmaxf(longest, room.steps[c]);
    for (int step = WARP / 2; step > 0; step /= 2) longest = fmaxf(longest, __shfl_xor_sync(EVERY, longest, step));
    int count = 0;
    for (int group = warp_number(); group < groups_of(n); group += WARPS) {
        const int row = group * WARP + lane;
        const u32 state = room.states[row], label = state & (LABEL - 1);
        const float slack = as_float(state & ~(LABEL - 1u)) - room.steps[label] - longest;
        room.states[row] = (as_bits(slack) & ~(LABEL - 1u)) | label;
        const bool doubt = slack <= 0;
        const u32 votes = __ballot_sync(EVERY, doubt);
        if (doubt) todo[count + __popc(votes & ((1u << lane) - 1))] = (unsigned short)row;
        count += __popc(votes);
    }
    fill_list(todo, count);
    return count;
}

// Lists all patches of this warp.
FUNCTION int everything(const Given& given, unsigned short* todo) {
    int count = 0;
    for (int group = warp_number(); group < groups_of(given.patches()); group += WARPS) {
        const int first = group * WARP;
        if (first + lane_number() < given.patches()) todo[count + lane_number()] = (unsigned short)(first + lane_number());
        count += min(WARP, given.patches() - first);
    }
    fill_list(todo, count);
    return count;
}

// The clusters' means, and how far they are from where the centres were; an empty cluster keeps its centre. A team of
// lanes a centre.
FUNCTION void update_centres(const Given& given, const Room& room) {
    const int quad = lane_number() % TEAM, team = warp_number() * TEAMS + lane_number() / TEAM;
    for (int start = 0; start < given.codes; start += WARPS * TEAMS) {
        const int c = start + team, size = c < given.codes ? room.sums[c * TALLY + D] : 0;
        float step = 0, square = 0;
        if (size > 0 && quad < FULL) {
            const float share = 1.0f / (float)size;
            const int4 sum = ((const int4*)room.sums)[c * QUADS + quad];
            const Factor factor(room, c, quad);
            const float4 old = joined(factor.load());
            float4 mean = {(float)sum.x * share, (float)sum.y * share, (float)sum.z * share, (float)sum.w * share};
            float4 way = {mean.x + old.x, mean.y + old.y, mean.z + old.z, mean.w + old.w};
            if (quad == D / 4) behind(mean) = behind(way) = 0;
            // What is beyond the value behind the patch's own is zero, in sums and in factors.
            square = mean.x * mean.x + mean.y * mean.y + mean.z * mean.z + mean.w * mean.w;
            step = way.x * way.x + way.y * way.y + way.z * way.z + way.w * way.w;
            float4 values = negative(mean);
            if (quad == D / 4) behind(values) = 1.0f;
            factor.store(split(values));
        }
        for (int bit = TEAM / 2; bit > 0; bit /= 2) {
            square += __shfl_xor_sync(EVERY, square, bit);
            step += __shfl_xor_sync(EVERY, step, bit);
        }
        if (quad == 0 && c < given.codes) {
            if (size > 0) room.norms[c] = 0.5f * square + BIAS;
            room.steps[c] = sqrtf(step) * 1.0001f + 1e-6f;  // a little more, for rounding
        }
    }
}

FUNCTION float component(float4 quad, int number) {
    return number == 0 ? quad.x : number == 1 ? quad.y : number == 2 ? quad.z : quad.w;
}

// The sums' place from here on: the codebook less ½, as somebody gets it who gives it back for quantizing.
FUNCTION void finish_centres(const Given& given, const Room& room) {
    for (int c = warp_number(); c < given.codes; c += WARPS) {
        const int size = room.sums[c * TALLY + D];
        const float share = 1.0f / (float)size;
        __syncwarp(EVERY);
        for (int j = lane_number(); j < D; j += WARP) {
            const float mean = (float)room.sums[c * TALLY + j] * share;
            const float centre = size > 0 ? mean : -component(joined(Factor(room, c, j / 4).load()), j % 4);
            room.centres[c * TALLY + j] = (centre + CENTRE) - CENTRE;
        }
        for (int j = D + lane_number(); j < TALLY; j += WARP) room.centres[c * TALLY + j] = 0;
    }
}

FUNCTION void find_centres(const Given& given, const Room& room, u64 stream) {
    for (int number = threadIdx.x; number < given.codes; number += THREADS)
        room.words[number] = init_word(given.keys, stream, number);
    make_patches(given, room, stream, CODEBOOK, given.sigma);
    __syncthreads();
    if (given.spread) {
        spread_centres(given, room);
    } else {
        sample_centres(given, room);
    }
    __syncthreads();
    prepare_rounds(given, room);
    __syncthreads();
    unsigned short* const todo = room.todo + warp_number() * list_room(given.patches());
    int all = 0;
    for (int round = 0; round < given.iterations; ++round) {
        if (round == 0) {
            assign(given, room, todo, everything(given, todo), true);
            __syncwarp(EVERY);
            sum_up(given, room);
        } else {
            const int moved = assign(given, room, todo, doubtful(given, room, todo), false);
            if (lane_number() == 0) atomicAdd(room.moved, moved);
        }
        __syncthreads();
        const int moved = *room.moved - all;
        all += moved;
        update_centres(given, room);
        __syncthreads();
        // The first round has no labels to compare with: it never ends the search.
        if (round > 0 && moved <= given.limit) break;
    }
    finish_centres(given, room);
}

// −beta·‖p̂ − p‖² of a window, p as it came or with its noise.
FUNCTION float similarity(const Given& given, const Room& room, int row, int label) {
    const float* clean = given.image() + corner(given, row);
    float total = 0;
#pragma unroll
    for (int j = 0; j < D; ++j) {
        const float value = given.noisy ? joined(room.halves + row * STRIDE, j) : clean[offset(given, j)] - CENTRE;
        const float difference = value - room.centres[label * TALLY + j];
        total += difference * difference;
    }
    return -given.beta * total;
}

// The pixels of the output. Of windows that overlap, states has the label, and the first word of a row the similarity.
FUNCTION void rebuild(const Given& given, const Room& room) {
    const int pixels = given.height * given.width;
    float* output = given.output + (u64)blockIdx.x * CHANNELS * pixels;
    for (int pixel = threadIdx.x; pixel < pixels; pixel += THREADS) {
        const int y = pixel / given.width, x = pixel - y * given.width;
        float values[CHANNELS];
        if (SLIDING) {
            float weights[SIZE * SIZE], largest = -3e38f, total = 0;
#pragma unroll
            for (int o = 0; o < SIZE * SIZE; ++o) {
                const int wy = y - o / SIZE, wx = x - o % SIZE;
                const bool here = wy >= 0 && wy < given.rows && wx >= 0 && wx < given.columns;
                weights[o] = here ? room.rows[(wy * given.columns + wx) * STRIDE] : -3e38f;
                largest = fmaxf(largest, weights[o]);
            }
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) values[channel] = 0;
#pragma unroll
            for (int o = 0; o < SIZE * SIZE; ++o) {
                const int wy = y - o / SIZE, wx = x - o % SIZE;
                if (!(wy >= 0 && wy < given.rows && wx >= 0 && wx < given.columns)) continue;
                const float weight = expf(weights[o] - largest);
                const float* centre = room.centres + room.states[wy * given.columns + wx] * TALLY + o;
                total += weight;
#pragma unroll
                for (int channel = 0; channel < CHANNELS; ++channel)
                    values[channel] += weight * centre[channel * SIZE * SIZE];
            }
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) values[channel] /= total;
        } else {
            const int label = room.states[y / SIZE * given.columns + x / SIZE];
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
    prepare_factors(room, given.codes, [&](int c) { return (const float4*)(room.centres + c * TALLY); });
    make_patches(given, room, stream, ASSIGNMENT, given.tau);
    __syncthreads();
    for (int row = threadIdx.x; row < n; row += THREADS) split_row(room.rows + row * STRIDE);
    __syncthreads();
    const Centres centres(room);
    for (int group = warp_number(); group < groups_of(n); group += WARPS) {
        u32 best, second;
        centres.nearest(room, [&](int i) { return min(group * WARP + i, n - 1); }, best, second);
        room.states[group * WARP + lane] = best & (NUMBER - 1);
    }
    __syncthreads();
    for (int row = threadIdx.x; row < n; row += THREADS) {
        const int label = room.states[row];
        if (given.labels != nullptr) given.labels[(u64)blockIdx.x * n + row] = label;
        if (SLIDING) room.rows[row * STRIDE] = similarity(given, room, row, label);
    }
    __syncthreads();
    rebuild(given, room);
}

KERNEL(resident_kernel, Given, THREADS, BLOCKS) {
    SHARED(memory);
    const Room room = room_of(memory, given.patches());
    const u64 stream = (u64)given.streams[blockIdx.x];
    float* codebook = given.codebooks + (u64)blockIdx.x * given.codes * D;
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
