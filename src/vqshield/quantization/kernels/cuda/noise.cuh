// The random numbers of vqshield.noise: the same words, normal values in float32.
#pragma once
#include "device.cuh"

enum Stage : u32 { CODEBOOK = 0, ASSIGNMENT = 1, INIT = 2 };

// What each round of Philox adds to the counter, which follows from the seed alone.
struct Keys {
    u32 first[10], second[10];
};

struct Words {
    u32 word[4];
};

// Philox 4x32-10: four words for a counter block.
FUNCTION Words random_words(const Keys& keys, u64 stream, Stage stage, u32 block) {
    u32 c0 = block, c1 = stage, c2 = (u32)stream, c3 = (u32)(stream >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u64 first = (u64)c0 * 0xD2511F53u, second = (u64)c2 * 0xCD9E8D57u;
        c0 = (u32)(second >> 32) ^ c1 ^ keys.first[round];
        c1 = (u32)second;
        c2 = (u32)(first >> 32) ^ c3 ^ keys.second[round];
        c3 = (u32)first;
    }
    return {{c0, c1, c2, c3}};
}

// Two normal values from two words. The GPU's own logarithm, sine and cosine are exact to some 2^-21, which noise of
// less than one makes smaller than the rounding of what it is added to.
FUNCTION void box_muller(u32 a, u32 b, float& along, float& across) {
    const float radius = sqrtf(-2.0f * __logf(((float)(a >> 1) + 0.5f) * 4.656612873077393e-10f));
    const float angle = (float)(int)b * 1.4629180792671596e-09f;
    along = radius * __cosf(angle);
    across = radius * __sinf(angle);
}

// Normal values number 4·block … 4·block + 3 of a stream and stage.
FUNCTION void normals(const Keys& keys, u64 stream, Stage stage, u32 block, float (&z)[4]) {
    const Words words = random_words(keys, stream, stage, block);
    box_muller(words.word[0], words.word[1], z[0], z[1]);
    box_muller(words.word[2], words.word[3], z[2], z[3]);
}

// Word number `index` of the INIT stage, which decides centre `index`.
FUNCTION u32 init_word(const Keys& keys, u64 stream, int index) {
    const Words words = random_words(keys, stream, INIT, index / 4);
    const int lane = index % 4;
    return lane == 0 ? words.word[0] : lane == 1 ? words.word[1] : lane == 2 ? words.word[2] : words.word[3];
}
