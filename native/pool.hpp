// Threads that wait for work instead of being made for every call, and that begin it on cores of their own: left to
// itself, a scheduler may keep a thread on the core that made or woke it for longer than a whole call takes.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

class Pool {
   public:
    // The process's pool. It is never destroyed, since its threads may be waiting when the process ends. A forked
    // child has none of its parent's threads and may have inherited their locks as they were, so it forgets the
    // pool (see kForgetsAtFork) and makes one of its own; nothing here takes a lock that a fork could leave closed.
    static Pool& of_this_process() {
        Pool* pool = current_.load();
        if (pool == nullptr) {
            Pool* fresh = new Pool;
            if (current_.compare_exchange_strong(pool, fresh))
                pool = fresh;
            else
                delete fresh;  // another thread was faster
        }
        return *pool;
    }

    static void forget() { current_ = nullptr; }

    // Runs the task here and in up to `helpers` other threads, and returns when all have returned. Where another
    // call has the pool, or no more threads are to be had, fewer run it: the task must allow for that.
    void run(int64_t helpers, const std::function<void()>& task) {
        std::unique_lock<std::mutex> mine(in_use_, std::try_to_lock);
        if (!mine.owns_lock() || helpers <= 0) return task();
        {
            const std::lock_guard<std::mutex> lock(state_);
            grow(helpers);
            wanted_ = running_ = std::min(helpers, made_);
            task_ = &task;
            caller_ = core();
            ++round_;
        }
        begin_.notify_all();
        task();
        std::unique_lock<std::mutex> lock(state_);
        end_.wait(lock, [&] { return running_ == 0; });
    }

    // The right to work on an image. Over all callers as many threads have one as there are cores: more would only
    // push each other's work out of the caches. Waiting threads get it in the order in which they came.
    class Turn {
       public:
        Turn() : pool_(of_this_process()) {
            pool_.take_turn();
            began_ = Clock::now();
        }
        ~Turn() { pool_.give_turn(); }
        Turn(const Turn&) = delete;

        // Between two images: after some of them, lets one that waits already go first.
        void pass() {
            if (Clock::now() < began_ + kTurn) return;
            pool_.pass_turn();
            began_ = Clock::now();
        }

       private:
        using Clock = std::chrono::steady_clock;
        static constexpr std::chrono::milliseconds kTurn{2};  // a handover takes some 20 microseconds

        Pool& pool_;
        Clock::time_point began_;
    };

    // The most images so far that were worked on at the same time.
    int64_t most_turns() {
        const std::lock_guard<std::mutex> lock(turns_);
        return most_;
    }

   private:
    struct Waiting {
        std::condition_variable called;
        bool on = false;

        void wait(std::unique_lock<std::mutex>& lock) {
            called.wait(lock, [&] { return on; });
        }
    };

    void take_turn() {
        std::unique_lock<std::mutex> lock(turns_);
        if (taken_ < cores()) {
            most_ = std::max(most_, ++taken_);
            return;
        }
        Waiting me;
        queue_.push_back(&me);
        me.wait(lock);
    }

    void pass_turn() {
        std::unique_lock<std::mutex> lock(turns_);
        if (queue_.empty()) return;
        Waiting me;
        queue_.push_back(&me);
        call_first();
        me.wait(lock);
    }

    void give_turn() {
        const std::lock_guard<std::mutex> lock(turns_);
        if (queue_.empty())
            --taken_;
        else
            call_first();
    }

    void call_first() {
        queue_.front()->on = true;
        queue_.front()->called.notify_one();
        queue_.pop_front();
    }

    // Those that this thread may run on.
    static int64_t cores() {
#ifdef __linux__
        cpu_set_t allowed;
        if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
        return std::max(1u, std::thread::hardware_concurrency());
    }

    void grow(int64_t helpers) {
        try {
            for (; made_ < helpers; ++made_) std::thread(&Pool::wait_for_work, this, made_, round_).detach();
        } catch (const std::system_error&) {
            // Those that are there do the work.
        }
    }

    void wait_for_work(int64_t number, int64_t seen) {
        for (;;) {
            const std::function<void()>* task;
            int caller;
            {
                std::unique_lock<std::mutex> lock(state_);
                begin_.wait(lock, [&] { return round_ != seen; });
                seen = round_;
                if (number >= wanted_) continue;
                task = task_;
                caller = caller_;
            }
            move_away(caller, number);
            (*task)();
            const std::lock_guard<std::mutex> lock(state_);
            if (--running_ == 0) end_.notify_one();
        }
    }

    static int core() {
#ifdef __linux__
        return sched_getcpu();
#else
        return 0;
#endif
    }

    // Goes to the core that is number+1 places behind the caller's, and may then be moved freely again.
    static void move_away(int caller, int64_t number) {
#ifdef __linux__
        cpu_set_t allowed, one;
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        const int64_t count = CPU_COUNT(&allowed);
        int64_t steps = number % std::max<int64_t>(1, count - 1) + 1;
        int target = caller;
        while (count > 1 && steps > 0) {
            target = (target + 1) % CPU_SETSIZE;
            steps -= CPU_ISSET(target, &allowed) ? 1 : 0;
        }
        if (count < 2 || target == core()) return;
        CPU_ZERO(&one);
        CPU_SET(target, &one);
        sched_setaffinity(0, sizeof one, &one);
        sched_setaffinity(0, sizeof allowed, &allowed);
#else
        (void)caller, (void)number;
#endif
    }

    std::mutex turns_;
    std::deque<Waiting*> queue_;  // those without a turn, while all are taken
    int64_t taken_ = 0, most_ = 0;

    std::mutex in_use_, state_;
    std::condition_variable begin_, end_;
    const std::function<void()>* task_ = nullptr;
    int caller_ = 0;
    int64_t made_ = 0, wanted_ = 0, running_ = 0, round_ = 0;

    static inline std::atomic<Pool*> current_{nullptr};
};

// Done when the library is loaded.
[[maybe_unused]] const int kForgetsAtFork = pthread_atfork(nullptr, nullptr, Pool::forget);

}  // namespace
