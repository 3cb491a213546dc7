// The C interface. A batch is worked off by threads that take the next image each; an image's result depends on
// nothing but itself, its stream and the recipe.
#pragma once

#include <atomic>

#include "pool.hpp"
#include "processor.hpp"
#include "soft.hpp"
#include "worker.hpp"

#define VQ_EXPORT extern "C" __attribute__((visibility("default")))

// Of VQ_INVALID the job's message says what is wrong.
enum VqStatus : int32_t { VQ_DONE = 0, VQ_OUT_OF_MEMORY = 1, VQ_STOPPED = 2, VQ_INVALID = 3 };

// Raised whenever VqJob, VqLloydJob or VqSoftJob changes: a library built from other source is not to be called.
constexpr int32_t kInterface = 4;

namespace {

// Makes a worker for each thread and has it do every number below count.
template <class Make, class Do>
int32_t for_each_image(int64_t count, int64_t threads, char* message, const Make& make, const Do& work) {
    std::atomic<int64_t> next{0};
    std::atomic<int32_t> status{VQ_DONE};
    const auto run = [&] {
        int64_t image = next++;
        if (image >= count) return;
        try {
            Pool::Turn turn;
            auto worker = make();
            while (status == VQ_DONE && image < count) {
                work(worker, image);
                image = next++;
                if (image < count) turn.pass();
            }
        } catch (const Invalid& invalid) {
            int32_t none = VQ_DONE;
            if (status.compare_exchange_strong(none, VQ_INVALID)) std::memcpy(message, invalid.message, kMessage);
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

// The job's own checks, and then its work.
template <class Job, class Make, class Do>
int32_t checked(Job* job, VqCall call, const Make& make, const Do& work) {
    if (job == nullptr) return VQ_INVALID;
    try {
        check_job(*job, call);
    } catch (const Invalid& invalid) {
        std::memcpy(job->message, invalid.message, kMessage);
        return VQ_INVALID;
    }
    return job->batch == 0 ? VQ_DONE : for_each_image(job->batch, job->threads, job->message, make, work);
}

}  // namespace

VQ_EXPORT int32_t vq_interface() { return kInterface; }

VQ_EXPORT const char* vq_isa() { return VQ_ISA; }

// Which of the x86 builds this processor can run: 0 the generic one, 1 also avx2, 2 also avx512.
VQ_EXPORT int32_t vq_level() {
#if defined(__x86_64__)
    return processor_level();
#else
    return 0;
#endif
}

// The most images so far that were worked on at the same time, over all callers.
VQ_EXPORT int64_t vq_most_at_once() { return Pool::of_this_process().most_turns(); }

VQ_EXPORT int32_t vq_codebook(VqJob* job) {
    return checked(
        job, VqCall::codebook, [&] { return ImageWorker(*job, true); },
        [](ImageWorker& worker, int64_t i) { worker.codebook(i); });
}

VQ_EXPORT int32_t vq_quantize(VqJob* job) {
    return checked(
        job, VqCall::quantize, [&] { return ImageWorker(*job, false); },
        [](ImageWorker& worker, int64_t i) { worker.quantize(i); });
}

VQ_EXPORT int32_t vq_shield(VqJob* job) {
    return checked(
        job, VqCall::shield, [&] { return ImageWorker(*job, true); },
        [](ImageWorker& worker, int64_t i) { worker.shield(i); });
}

VQ_EXPORT int32_t vq_lloyd(VqLloydJob* job) {
    return checked(
        job, VqCall::lloyd, [&] { return LloydWorker(*job); },
        [](LloydWorker& worker, int64_t i) { worker.run(i); });
}

VQ_EXPORT int32_t vq_soft(VqSoftJob* job) {
    return checked(
        job, VqCall::soft, [&] { return SoftWorker(*job); }, [](SoftWorker& worker, int64_t i) { worker.run(i); });
}

// Words 0 … 4·blocks−1 of a stream and the normal values made of them, to be compared with vqshield.quantization.noise.
VQ_EXPORT int32_t vq_noise(uint64_t seed, int64_t stream, int64_t stage, int64_t blocks, uint32_t* words, float* values) {
    if (words == nullptr || values == nullptr || blocks < 0 || blocks > kMostNoiseValues / 4) return VQ_INVALID;
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
    return VQ_DONE;
}
