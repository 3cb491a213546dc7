// Patches and centres as the matrix units want them, and distances between them.
//
// A patch less ½ is a row of STRIDE words, half its squared norm behind it: quads of values as hi + lo in half
// precision, 22 bits together, four hi and four lo. Three products make an inner product nearly as good as float32, and
// with the norms it is half a squared distance.
//
// The compiler is told SIZE, CHANNELS, SLIDING (0 or 1), TILES, of sixteen codes each, and THREADS of a block.
#pragma once
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
constexpr int TALLY = 4 * QUADS;  // values of a cluster's sum, its size behind them
constexpr int TEAM = QUADS <= 1 ? 1 : QUADS <= 2 ? 2 : QUADS <= 4 ? 4 : QUADS <= 8 ? 8 : QUADS <= 16 ? 16 : 32;
constexpr int TEAMS = WARP / TEAM;  // of lanes, each with a quad of one row, in a warp
constexpr int NUMBER = CODES <= 16 ? 16 : CODES <= 32 ? 32 : CODES <= 64 ? 64 : CODES <= 128 ? 128 : 256;
constexpr float CENTRE = 0.5f;

// How an image is cut into patches.
struct Cut {
    int height, width, rows, columns;
    u32 reciprocal;  // ⌈2^32 / columns⌉: a product instead of a division

    FUNCTION int patches() const { return rows * columns; }

    // Where in an image patch `row` begins, and how much further its component j lies.
    FUNCTION int corner(int row) const {
        int next;
        return corner(row, next);
    }
    FUNCTION int corner(int row, int& next) const {  // and the patch behind it
        const int y = columns == 1 ? row : (int)__umulhi(row, reciprocal), x = row - y * columns;
        const int here = (y * width + x) * (SLIDING ? 1 : SIZE);
        next = x + 1 < columns ? here + (SLIDING ? 1 : SIZE) : (y + 1) * width * (SLIDING ? 1 : SIZE);
        return here;
    }
    FUNCTION int offset(int j) const {
        return (j / (SIZE * SIZE) * height + j / SIZE % SIZE) * width + j % SIZE;
    }
    // A table of them, by all threads of a block.
    FUNCTION void fill_offsets(int* offsets) const {
        for (int j = threadIdx.x; j < D; j += THREADS) offsets[j] = offset(j);
    }
};

FUNCTION float as_float(u32 bits) { return __uint_as_float(bits); }
FUNCTION u32 as_bits(float value) { return __float_as_uint(value); }

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
    FUNCTION Factor(u32* factors, int c, int quad)
        : place(factors + ((c / 16 * STEPS + quad / 4) * 2 * WARP + c % 8 * 4 + quad % 4) * 4 + c / 8 % 2) {}
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

FUNCTION float component(float4 quad, int number) {
    return number == 0 ? quad.x : number == 1 ? quad.y : number == 2 ? quad.z : quad.w;
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

// All centres, as a lane has them for products. Centres are the left factor and patches the right one, so that a lane
// has its words of a patch as they lie in memory.
struct Centres {
    uint4 high[TILES][STEPS], low[TILES][STEPS];
    float4 norms[TILES];

    FUNCTION Centres(const u32* factors, const float* squares) {
        const int lane = lane_number(), g = lane / 4;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const uint4* place = (const uint4*)factors + (tile * STEPS + step) * 2 * WARP + lane;
                high[tile][step] = place[0];
                low[tile][step] = place[WARP];
            }
            const float upper = squares[16 * tile + g], lower = squares[16 * tile + 8 + g];
            norms[tile] = {upper, upper, lower, lower};
        }
    }

    // Half the squared distances of 32 patches from their nearest centre and the second, and in the lowest bits which
    // centre: one minimum finds both. row(i) is where patch i lies, and lane i has its distances in the end.
    //
    // A product gives lane 4g + t the distances of patches 2t and 2t + 1 of eight from centres g and g + 8 of sixteen;
    // halving three times leaves each lane with one patch.
    template <typename Row>
    FUNCTION void nearest(Row row, u32& nearest, u32& next) const {
        const int lane = lane_number(), g = lane / 4, t = lane % 4;
        u32 best[8], second[8];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            // Two lanes in a row read rows that are four apart: where all follow each other, in different banks.
            const u32* patch = row(8 * part + (g >> 1 | (g & 1) << 2));
            uint4 words[STEPS];
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                words[step] = *(const uint4*)(patch + 16 * step + 4 * t);
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

// Patches first … first + count − 1 with the noise of a stage, as rows of float32 values; by all threads of a block, and
// first·D is a multiple of four.
FUNCTION void make_patches(float* rows, const Cut& cut, const int* offsets, const float* image, int first, int count,
                           const Keys& keys, u64 stream, Stage stage, float noise) {
    const int begin = first * D / 4, values = count * D;
    for (int block = threadIdx.x; 4 * block < values; block += THREADS) {
        const int row = 4 * block / D, j = 4 * block - row * D, last = cut.patches() - 1 - first;
        int next;
        const int here = cut.corner(first + row, next);
        if (row >= last) next = here;  // there is none: anything that can be read
        float clean[4], z[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int over = D >= 4 ? j + i >= D : (j + i) / D;
            const int place = over == 0 ? here : over == 1 ? next : cut.corner(first + min(row + over, last));
            clean[i] = image[place + offsets[j + i - over * D]];
        }
        normals(keys, stream, stage, begin + block, z);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int target = row + (D >= 4 ? j + i >= D : (j + i) / D);
            if (target < count) rows[4 * block + i + target * (STRIDE - D)] = clean[i] - CENTRE + z[i] * noise;
        }
    }
    for (int row = threadIdx.x; row < count; row += THREADS)
        for (int j = D; j < STRIDE; ++j) rows[row * STRIDE + j] = 0;
}

FUNCTION void load_row(float4 (&values)[FULL], const float* rows, int row) {
#pragma unroll
    for (int quad = 0; quad < FULL; ++quad) values[quad] = ((const float4*)rows)[row * (STRIDE / 4) + quad];
}

// Of what two functions give for the number of a quad.
template <typename One, typename Other>
FUNCTION float squared_distance(One one, Other other) {
    float ends[2] = {0, 0};
#pragma unroll
    for (int quad = 0; quad < FULL; ++quad) {
        const float4 a = one(quad), b = other(quad);
        const float x = a.x - b.x, y = a.y - b.y, z = a.z - b.z, w = a.w - b.w;
        ends[0] += x * x;
        ends[1] += y * y;
        ends[0] += z * z;
        ends[1] += w * w;
    }
    return ends[0] + ends[1];
}

FUNCTION float bounded(float value) { return fminf(fmaxf(value, -6e4f), 6e4f); }

// The centres as factors, and half their squared norms. A bias, the same for all, keeps distances positive where rounding
// would leave them below zero. Halves end at 65,504: a centre so far away is none's nearest. first_quad(c)
// is where the quads of centre c lie.
template <typename Place>
FUNCTION void prepare_factors(u32* factors, float* norms, int codes, float bias, Place first_quad) {
    for (int place = threadIdx.x; place < CODES * 4 * STEPS; place += THREADS) {
        const int c = place / (4 * STEPS), quad = place % (4 * STEPS);
        float4 values = {0, 0, 0, 0};
        if (c < codes && quad < FULL) {
            const float4 centre = first_quad(c)[quad];
            values = {bounded(-centre.x), bounded(-centre.y), bounded(-centre.z), bounded(-centre.w)};
        }
        if (quad == D / 4) behind(values) = 1.0f;
        Factor(factors, c, quad).store(split(values));
    }
    for (int c = threadIdx.x; c < CODES; c += THREADS) {
        float square = 0;
        for (int j = 0; j < D && c < codes; ++j) {
            const float value = ((const float*)first_quad(c))[j];
            square += value * value;
        }
        norms[c] = c < codes ? 0.5f * square + bias : 1e30f;  // that: never near
    }
}

// k distinct patches of n at random, every set equally likely (Floyd's sampling), by the first warp; word(i) decides
// number i.
template <typename Word>
FUNCTION void sample(int* chosen, int n, int codes, Word word) {
    if (warp_number() != 0) return;
    for (int number = 0; number < codes; ++number) {
        const int last = n - codes + number, candidate = (int)__umulhi(word(number), last + 1);
        bool taken = false;
        for (int other = lane_number(); other < number; other += WARP) taken |= chosen[other] == candidate;
        const bool any = __ballot_sync(EVERY, taken) != 0;
        if (lane_number() == 0) chosen[number] = any ? last : candidate;
        __syncwarp(EVERY);
    }
}

// The label of the patch that this lane has, where `best` and `second` are what Centres::nearest found for it. Where they
// are as near as rounding errors, the sign of ‖x − a‖² − ‖x − b‖² = (b − a)·(2x − a − b) decides, whose terms are small.
// All lanes take part, each with a patch of its own; row(i) is where the patch of lane i lies.
template <typename Row>
FUNCTION int settled(u32* factors, u32 best, u32 second, float doubt, Row row) {
    const int lane = lane_number();
    const float near = as_float(best), next = as_float(second);
    int label = best & (NUMBER - 1);
    const u32 pair = label | (second & (NUMBER - 1)) << 16;
    const bool is_close = next - near < 2 * doubt + near * (NUMBER * 2.4e-7f);
    for (u32 left = __ballot_sync(EVERY, is_close); left != 0; left &= left - 1) {
        const int i = __ffs(left) - 1;
        const u32 codes = __shfl_sync(EVERY, pair, i);
        const int a = codes & 0xffff, b = codes >> 16;
        float farther = 0;
        for (int j = lane; j < D; j += WARP) {
            // Factors have the opposite sign.
            const float one = -component(joined(Factor(factors, a, j / 4).load()), j % 4);
            const float other = -component(joined(Factor(factors, b, j / 4).load()), j % 4);
            farther += (other - one) * (2 * joined(row(i), j) - one - other);
        }
        farther = warp_sum(farther);
        if (lane == i) label = farther > 0 ? b : farther < 0 ? a : min(a, b);
    }
    return label;
}

// ‖p̂ − p‖² of a window that a centre takes the place of, p as it came or with the noise that it has in halves.
FUNCTION float squared_change(const Cut& cut, const float* image, int row, const u32* halves, bool noisy,
                              const float* centre) {
    const float* clean = image + cut.corner(row);
    float total = 0;
    auto add = [&](float difference) { total += difference * difference; };
    if (noisy) {
        for (int j = 0; j < D; ++j) add(joined(halves, j) - centre[j]);
    } else {
#pragma unroll
        for (int j = 0; j < D; ++j) add(clean[cut.offset(j)] - CENTRE - centre[j]);
    }
    return total;
}
