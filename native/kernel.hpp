// The C interface. A batch is worked off by threads that take the next image each; an image's result depends on
// nothing but itself, its stream and the recipe.
#pragma once

#include <atomic>

#include "pool.hpp"
#include "worker.hpp"

#define VQ_EXPORT extern "C" __attribute__((visibility("default")))

enum VqStatus : int32_t { VQ_DONE = 0, VQ_OUT_OF_MEMORY = 1, VQ_STOPPED = 2 };

namespace {

// Makes a worker for each thread and has it do every number below count.
template <class Make, class Do>
int32_t for_each_image(int64_t count, int64_t threads, const Make& make, const Do& work) {
    std::atomic<int64_t> next{0};
    std::atomic<int32_t> status{VQ_DONE};
    const auto run = [&] {
        try {
            auto worker = make();
            for (int64_t i; status == VQ_DONE && (i = next++) < count;) work(worker, i);
        } catch (const Stopped&) {
            status = VQ_STOPPED;
        } catch (const std::bad_alloc&) {
            status = VQ_OUT_OF_MEMORY;
        }
    };
    if (std::min(threads, count) > 1) {
        Pool::of_this_process().run(std::min(threads, count) - 1, run);
    } else {
        run();
    }
    return status;
}

}  // namespace

VQ_EXPORT const char* vq_isa() { return VQ_ISA; }

// Which of the x86 builds this processor can run: 0 the generic one, 1 also avx2, 2 also avx512.
VQ_EXPORT int32_t vq_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? 2 : 1;
#else
    return 0;
#endif
}

VQ_EXPORT int32_t vq_codebook(const VqJob* job) {
    return for_each_image(
        job->batch, job->threads, [&] { return ImageWorker(*job, true); },
        [](ImageWorker& worker, int64_t i) { worker.codebook(i); });
}

VQ_EXPORT int32_t vq_quantize(const VqJob* job) {
    return for_each_image(
        job->batch, job->threads, [&] { return ImageWorker(*job, false); },
        [](ImageWorker& worker, int64_t i) { worker.quantize(i); });
}

VQ_EXPORT int32_t vq_shield(const VqJob* job) {
    return for_each_image(
        job->batch, job->threads, [&] { return ImageWorker(*job, true); },
        [](ImageWorker& worker, int64_t i) { worker.shield(i); });
}

VQ_EXPORT int32_t vq_lloyd(const VqLloydJob* job) {
    return for_each_image(
        job->batch, job->threads, [&] { return LloydWorker(*job); },
        [](LloydWorker& worker, int64_t i) { worker.run(i); });
}

// Words 0 … 4·blocks−1 of a stream and the normal values made of them, to be compared with vqshield.noise.
VQ_EXPORT void vq_noise(uint64_t seed, int64_t stream, int64_t stage, int64_t blocks, uint32_t* words, float* values) {
    const Stream source(seed, stream, (uint32_t)stage);
    for (int64_t block = 0; block < blocks; ++block) {
        U fours[4];
        F normal[4];
        philox(source, U{} + (uint32_t)block, fours);
        normals(source, U{} + (uint32_t)block, normal);
        for (int lane = 0; lane < 4; ++lane) {
            *words++ = fours[lane][0];
            *values++ = normal[lane][0];
        }
    }
}
