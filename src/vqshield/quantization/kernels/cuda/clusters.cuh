// Lloyd's rounds over the patches of one block of threads.
//
// Each patch has a slack: how much nearer its centre is than any other, at least. Centres that move use it up; while
// some is left the patch keeps its label, unread (Hamerly 2010). How far centres have moved is added up over the rounds,
// and a patch's reach is its slack and what they had moved when it was found: it is compared, and not written again. A
// patch that changes its cluster is taken from one sum and added to another; sums are whole numbers, so that the order of
// threads does not matter.
#pragma once
#include "products.cuh"

constexpr int LABEL = 256;  // the lowest bits of a state

FUNCTION int groups_of(int n) { return (n + WARP - 1) / WARP; }

// Patches that one warp may have on its list.
FUNCTION int list_room(int n) { return (groups_of(n) + WARPS - 1) / WARPS * WARP; }

// What a block works on, all of an image or a strip of it.
struct Share {
    int count, codes;
    const u32* halves;   // (count, STRIDE), the patches
    u32* factors;        // the centres
    u32* states;         // up to whole groups of 32: reach and label
    int* sums;           // (CODES, TALLY), changes of the clusters' sums, sizes behind them
    const float* ways;   // (CODES), how far centres have moved in all
    float longest;       // the longest steps of all rounds together
    float scale;         // of the sums: a power of two
    float doubt;         // rounding errors of half a squared distance are smaller
    float bias;          // that such distances have
};

// How much of a patch's reach is used up: its own centre came that far away, and any other one that much nearer.
FUNCTION float used_up(const Share& share, int label) { return share.ways[label] + share.longest; }

// A value of a patch for the sums.
FUNCTION int counted(const Share& share, float value) { return __float2int_rn(value * share.scale); }

// The patches of a list where they lie.
struct InPlace {
    static constexpr int TOGETHER = 4;  // states that a lane loads before it looks at the first
    const u32* rows;
    const unsigned short* todo;

    FUNCTION void begin(int) const {}
    FUNCTION void go_to(int, int) const {}
    FUNCTION const u32* row(int first, int i) const { return rows + todo[first + i] * STRIDE; }
};

// The patches of a list, brought from global memory into a warp's own place in shared memory, 32 of them while it works
// on the 32 before.
struct Fetched {
    static constexpr int TOGETHER = 8;
    static constexpr int WORDS = 2 * (WARP * STRIDE + BEHIND);  // of each warp, in two halves of whole quads
    u32* rows;
    const unsigned short* todo;
    const u32* far;

    FUNCTION void begin(int count) const {
        for (int j = WARP * STRIDE + lane_number(); j < WARP * STRIDE + BEHIND; j += WARP)
            rows[j] = rows[WORDS / 2 + j] = 0;
        fetch(0, count);
    }
    FUNCTION void go_to(int first, int count) const {
        __syncwarp(EVERY);
        fetch(first + WARP, count);
        wait_for_all_but_last_group();
        __syncwarp(EVERY);
    }
    FUNCTION const u32* row(int first, int i) const { return half(first) + i * STRIDE; }
    FUNCTION u32* half(int first) const { return rows + first / WARP % 2 * (WORDS / 2); }
    FUNCTION void fetch(int first, int count) const {
        if (first < count) {
            // A team of lanes a patch; what they leave of it no product reads.
            const int quad = lane_number() % TEAM, team = lane_number() / TEAM;
            int patch[TEAM];
#pragma unroll
            for (int i = 0; i < TEAM; ++i) patch[i] = todo[first + team + i * TEAMS] * STRIDE + 4 * quad;
            u32* target = half(first) + team * STRIDE + 4 * quad;
#pragma unroll
            for (int i = 0; i < TEAM; ++i)
                if (quad < STRIDE / 4) copy_ahead(target + i * TEAMS * STRIDE, far + patch[i]);
        }
        close_group();
    }
};

FUNCTION void add_quad(int* place, int4 sum) {
    atomicAdd(place, sum.x);
    atomicAdd(place + 1, sum.y);
    atomicAdd(place + 2, sum.z);
    atomicAdd(place + 3, sum.w);
}

// Adds `count` patches, of which lane i has the label of number i, to their clusters. A team of lanes adds up those that
// follow each other in one cluster first; row(i) is where patch i lies.
template <typename Row>
FUNCTION void sum_up(const Share& share, int count, int label, Row row) {
    const int quad = lane_number() % TEAM, team = lane_number() / TEAM;
    int4 sum = {0, 0, 0, 0};
    int cluster = -1;
#pragma unroll
    for (int k = 0; k < TEAM; ++k) {
        const int i = team * TEAM + k, next = __shfl_sync(EVERY, label, i);
        if (i >= count || quad >= QUADS) continue;
        if (next != cluster) {
            if (cluster >= 0) add_quad(share.sums + cluster * TALLY + 4 * quad, sum);
            sum = {0, 0, 0, 0};
            cluster = next;
        }
        float4 values = joined(((const uint4*)row(i))[quad]);
        if (quad == D / 4) behind(values) = 1.0f;
        sum.x += counted(share, values.x);
        sum.y += counted(share, values.y);
        sum.z += counted(share, values.z);
        sum.w += counted(share, values.w);
    }
    if (cluster >= 0) add_quad(share.sums + cluster * TALLY + 4 * quad, sum);
}

// New states of the patches on this warp's list, 32 at a time, and the sums that follow from them. In the first round no
// patch has a label yet. Returns how many have moved.
template <typename Source>
FUNCTION int assign(const Share& share, const Centres& centres, const Source& source, int count, bool is_first) {
    const int lane = lane_number();
    const unsigned short* todo = source.todo;
    int moved = 0;
    source.begin(count);
    for (int first = 0; first < count; first += WARP) {
        source.go_to(first, count);
        const int row = todo[first + lane];
        // Behind the last patch on the list, lanes take part without one of their own.
        const bool is_listed = first + lane < count;
        const u32 state = is_first || !is_listed ? 0 : share.states[row];
        const auto row_of = [&](int i) { return source.row(first, i); };
        u32 best, second;
        centres.nearest(row_of, best, second);
        const int label = settled(share.factors, best, second, share.doubt, row_of);
        int before = label;
        if (is_listed) {
            const float packing = NUMBER * 1.2e-7f;
            const float upper = as_float(best) * (1 + packing) - share.bias + share.doubt;
            const float lower = as_float(second) * (1 - packing) - share.bias - share.doubt;
            const float slack = sqrtf(2 * fmaxf(lower, 0.0f)) - sqrtf(2 * fmaxf(upper, 0.0f));
            before = state & (LABEL - 1);
            const float reach = slack + used_up(share, label);
            share.states[row] = (as_bits(reach) & ~(LABEL - 1u)) | label;
        }
        if (is_first) {
            sum_up(share, count - first, label, row_of);
            continue;
        }
        u32 moves = __ballot_sync(EVERY, before != label);
        moved += __popc(moves);
        for (const u32 all = label | before << 16; moves != 0; moves &= moves - 1) {
            const int i = __ffs(moves) - 1;
            const u32 move = __shfl_sync(EVERY, all, i);
            const u32* patch = row_of(i);
            for (int j = lane; j <= D; j += WARP) {
                const int value = counted(share, j < D ? joined(patch, j) : 1.0f);
                atomicAdd(&share.sums[(move & 0xffff) * TALLY + j], value);
                atomicAdd(&share.sums[(move >> 16) * TALLY + j], -value);
            }
        }
    }
    return moved;
}

// A list of `count` patches, and behind them those that lanes want to add, in their order; returns how many it has then.
FUNCTION int listed(unsigned short* todo, int count, int row, bool wanted) {
    const u32 votes = __ballot_sync(EVERY, wanted);
    if (wanted) todo[count + __popc(votes & ((1u << lane_number()) - 1))] = (unsigned short)row;
    return count + __popc(votes);
}

// Any patch, where a list has no more: they are looked at 32 at a time.
FUNCTION void fill_list(unsigned short* todo, int count) {
    if (count % WARP != 0 && lane_number() >= count % WARP) todo[count / WARP * WARP + lane_number()] = 0;
    __syncwarp(EVERY);
}

// Lists this warp's patches whose slack the centres' ways have used up; returns how many.
template <int TOGETHER>
FUNCTION int doubtful(const Share& share, unsigned short* todo) {
    const int lane = lane_number(), n = share.count;
    int count = 0;
    // TOGETHER at once: none waits for the memory that the one before has waited for.
    for (int start = warp_number(); start < groups_of(n); start += TOGETHER * WARPS) {
        u32 states[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const int group = start + i * WARPS;
            states[i] = group < groups_of(n) ? share.states[group * WARP + lane] : 0x7f000000;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const int row = (start + i * WARPS) * WARP + lane;
            const float reach = as_float(states[i] & ~(LABEL - 1u));
            count = listed(todo, count, row, reach <= used_up(share, states[i] & (LABEL - 1)));
        }
    }
    fill_list(todo, count);
    return count;
}

// Lists all patches of this warp. Rows that are none have more reach than any centre's way.
FUNCTION int everything(const Share& share, unsigned short* todo) {
    int count = 0;
    for (int group = warp_number(); group < groups_of(share.count); group += WARPS) {
        const int row = group * WARP + lane_number();
        if (row < share.count) {
            todo[count + lane_number()] = (unsigned short)row;
        } else {
            share.states[row] = 0x7f000000;
        }
        count += min(WARP, share.count - group * WARP);
    }
    fill_list(todo, count);
    return count;
}

// One round over a block's patches, of which source(list) gets those on a list; returns how many this warp has moved.
template <typename Source>
FUNCTION int look_again(const Share& share, const Centres& centres, unsigned short* lists, bool is_first,
                        Source source) {
    unsigned short* const todo = lists + warp_number() * list_room(share.count);
    const auto patches = source(todo);
    const int count = is_first ? everything(share, todo) : doubtful<patches.TOGETHER>(share, todo);
    return assign(share, centres, patches, count, is_first);
}

// The longest of the centres' steps, for all lanes of a warp.
FUNCTION float longest_step(const float* steps, int codes) {
    float longest = 0;
    for (int c = lane_number(); c < codes; c += WARP) longest = fmaxf(longest, steps[c]);
    for (int bit = WARP / 2; bit > 0; bit /= 2) longest = fmaxf(longest, __shfl_xor_sync(EVERY, longest, bit));
    return longest;
}

// The clusters' means, how far they are from where the centres were, and how far they have come in all; an empty cluster
// keeps its centre. A team of lanes a centre.
template <typename Sum>
FUNCTION void update_centres(const Sum* sums, u32* factors, float* norms, float* steps, float* ways, int codes,
                             float bias) {
    const int quad = lane_number() % TEAM, team = warp_number() * TEAMS + lane_number() / TEAM;
    for (int start = 0; start < codes; start += WARPS * TEAMS) {
        const int c = start + team;
        const Sum size = c < codes ? sums[c * TALLY + D] : 0;
        float step = 0, square = 0;
        if (size > 0 && quad < FULL) {
            const float part = 1.0f / (float)size;
            const Sum* sum = sums + c * TALLY + 4 * quad;
            const Factor factor(factors, c, quad);
            const float4 old = joined(factor.load());
            float4 mean = {(float)sum[0] * part, (float)sum[1] * part, (float)sum[2] * part, (float)sum[3] * part};
            float4 way = {mean.x + old.x, mean.y + old.y, mean.z + old.z, mean.w + old.w};
            // What is beyond the value behind the patch's own is zero, in sums and in factors.
            if (quad == D / 4) behind(mean) = behind(way) = 0;
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
        if (quad == 0 && c < codes) {
            if (size > 0) norms[c] = 0.5f * square + bias;
            steps[c] = sqrtf(step) * 1.0001f + 1e-6f;  // a little more, for rounding
            ways[c] += steps[c];
        }
    }
}

// Value j of centre c less ½, when all rounds are done, as somebody gets it who gives it back for quantizing.
template <typename Sum>
FUNCTION float final_value(const Sum* sums, u32* factors, int c, int j) {
    const Sum size = sums[c * TALLY + D];
    const float mean = (float)sums[c * TALLY + j] * (1.0f / (float)size);
    return ((size > 0 ? mean : -component(joined(Factor(factors, c, j / 4).load()), j % 4)) + CENTRE) - CENTRE;
}
