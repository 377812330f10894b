/*
 * Tasks shared among threads: each has a share of adjacent ones, and takes of others' once it is done.
 *
 * Threads that take whichever task is next have their data from each other's caches: a copy of 10 MB took a tenth
 * longer. With shares alone all wait for a thread that others hold up. Here each begins where it began in the last
 * call, and in the kernel that wrote what it reads, and nobody waits for more than a task.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace graphopt {

class Shares {
 public:
  Shares(int64_t tasks, int64_t threads) : count_(std::max<int64_t>(1, std::min(threads, kMost))) {
    for (int64_t i = 0; i < count_; ++i)
      shares_[i].left.store(Pack(tasks * i / count_, tasks * (i + 1) / count_), std::memory_order_relaxed);
  }

  /* The next task of a thread, or -1: the first that is left of its own, else the last of another's. */
  int64_t Take(int64_t thread) {
    const int64_t own = thread % count_;
    int64_t task = TakeOf(own, true);
    for (int64_t i = 1; task < 0 && i < count_; ++i) task = TakeOf((own + i) % count_, false);
    return task;
  }

 private:
  static constexpr int64_t kMost = 64, kLine = 64;

  struct alignas(kLine) Share {
    std::atomic<uint64_t> left;  // the first, and the one behind the last
  };

  static uint64_t Pack(int64_t first, int64_t last) {
    return static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(last);
  }

  int64_t TakeOf(int64_t share, bool is_own) {
    std::atomic<uint64_t>& left = shares_[share].left;
    uint64_t found = left.load(std::memory_order_relaxed);
    for (;;) {
      const int64_t first = found >> 32, last = found & 0xffffffff;
      if (first >= last) return -1;
      const uint64_t rest = is_own ? Pack(first + 1, last) : Pack(first, last - 1);
      if (left.compare_exchange_weak(found, rest, std::memory_order_relaxed)) return is_own ? first : last - 1;
    }
  }

  const int64_t count_;
  Share shares_[kMost];
};

}  // namespace graphopt
