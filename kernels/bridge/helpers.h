/*
 * Threads that help the one that runs a small graph.
 *
 * OpenMP wakes its threads for every product and waits for all of them. Those of a thread that calls MXNet are more
 * than there are cores, as MXNet's engine has its own, and then libgomp lets them sleep at once. These are woken once
 * for a graph, share what they come in time for, and are waited for where they do: a product does not wait for a
 * thread that is still asleep.
 */
#pragma once

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "waiting.h"

namespace graphopt {

class Helpers {
 public:
  /* Those of this process; not for children that it forks, which have none of its threads. */
  static Helpers& All() {
    static auto all = new Helpers;  // they outlive what ends with the process
    return *all;
  }

  static constexpr int64_t kMost = 7;

  /* Has `count` of them, kMost at most, or null while another thread has them. */
  class Hired {
   public:
    explicit Hired(int64_t count)
        : helpers_(count > 0 && All().Hire(std::min(count, kMost)) ? &All() : nullptr) {}
    Hired(const Hired&) = delete;
    ~Hired() {
      if (helpers_) helpers_->Dismiss();
    }
    Helpers* get() const { return helpers_; }

   private:
    Helpers* helpers_;
  };

  /* Calls `work` in this thread and in those that come before that returns, with the number of the thread, 0 for this
   * one; over when all have returned. As in a region of OpenMP, it may not throw: others may be in it. */
  template <class Work>
  void Share(const Work& work) noexcept {
    call_ = [](const void* shared, int64_t thread) { (*static_cast<const Work*>(shared))(thread); };
    shared_ = &work;
    const uint64_t turn = state_.load(std::memory_order_relaxed) / kTurn + 1;
    state_.store(turn * kTurn + kOpen, std::memory_order_release);
    work(0);
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int64_t looks = 0; state_.load(std::memory_order_acquire) % kOpen != 0; ++looks) WaitALittle(looks);
  }

 private:
  // Helpers that are at work; whether more may come; the number of the work.
  static constexpr uint64_t kOpen = 1 << 16, kTurn = 2 * kOpen;
  static constexpr auto kPatience = std::chrono::microseconds(100);

  Helpers() {
    const char* policy = std::getenv("OMP_WAIT_POLICY");
    is_patient_ = !policy || (std::strcmp(policy, "passive") != 0 && std::strcmp(policy, "PASSIVE") != 0);
  }

  bool Hire(int64_t count) {
    if (is_hired_.exchange(true, std::memory_order_acquire)) return false;
    try {
      for (; count_ < count; ++count_) Start(count_ + 1);
    } catch (const std::system_error&) {  // the system has no more threads: there are as many as there are
    }
    wanted_.store(count);
    if (asleep_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }  // whoever counted as asleep is by now
      woken_.notify_all();
    }
    return true;
  }

  void Dismiss() {
    wanted_.store(0);
    is_hired_.store(false, std::memory_order_release);
  }

  /* Signals are for threads that Python knows. */
  void Start(int64_t number) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this, number] { Help(number); }).detach();
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void Help(int64_t number) {
    using Clock = std::chrono::steady_clock;
    uint64_t done = 0;
    auto last = Clock::now();
    for (int64_t looks = 0;; ++looks) {
      uint64_t state = state_.load(std::memory_order_acquire);
      if ((state & kOpen) != 0 && state / kTurn != done && IsWanted(number)) {
        if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
        done = state / kTurn;
        call_(shared_, number);
        state_.fetch_sub(1, std::memory_order_release);
        looks = 0;
      }
      WaitALittle(looks);
      if (looks % 64 != 0) continue;
      const auto now = Clock::now();
      if (IsWanted(number)) last = now;
      if (is_patient_ ? now - last > kPatience : !IsWanted(number)) {
        Sleep(number);
        last = Clock::now();
        looks = 0;
      }
    }
  }

  void Sleep(int64_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++asleep_;
    woken_.wait(lock, [&] { return IsWanted(number); });
    --asleep_;
  }

  /* There may be more than a call wants, from one before it. */
  bool IsWanted(int64_t number) const { return number <= wanted_.load(); }

  bool is_patient_;
  int64_t count_ = 0;
  std::atomic<bool> is_hired_{false};
  std::atomic<int64_t> wanted_{0}, asleep_{0};
  std::atomic<uint64_t> state_{0};
  void (*call_)(const void*, int64_t) = nullptr;
  const void* shared_ = nullptr;
  std::mutex mutex_;
  std::condition_variable woken_;
};

}  // namespace graphopt
