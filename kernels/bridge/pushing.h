/*
 * Operations handed to MXNet's engine by several threads.
 *
 * The engine appends an operation to the queue of one of its variables after the other. Two threads that push at once,
 * each an operation that needs the same two variables, may each come first in one of the queues: then both operations
 * wait for ever, if for each of these variables one of the two writes it. So operations that write several variables are
 * pushed while nothing else of ours is; the others, which at most read what is shared, beside each other.
 *
 * What is pushed while an operation of the same thread is, as one that this thread runs at once, needs no turn.
 */
#pragma once

#include <pthread.h>

#include <mutex>
#include <new>
#include <shared_mutex>

namespace graphopt {

class Pushing {
 public:
  explicit Pushing(bool is_alone) { Begin(is_alone); }
  ~Pushing() { End(); }
  Pushing(const Pushing&) = delete;
  Pushing& operator=(const Pushing&) = delete;

  static void Begin(bool is_alone) {
    if (mine_.depth++ > 0) return;
    mine_.is_alone = is_alone;
    // Who waits here to push alone lets nobody else go first: readers could follow each other for ever.
    std::lock_guard<std::mutex> turnstile(Of().turnstile);
    Take();
  }

  /* Begins to push alone unless that has to be waited for. */
  static bool TryBegin() {
    if (mine_.depth == 0) {
      std::unique_lock<std::mutex> turnstile(Of().turnstile, std::try_to_lock);
      if (!turnstile || !Of().pushes.try_lock()) return false;
      mine_.is_alone = true;
    }
    if (!mine_.is_alone) return false;
    ++mine_.depth;
    return true;
  }

  static void End() {
    if (--mine_.depth > 0) return;
    mine_.is_alone ? Of().pushes.unlock() : Of().pushes.unlock_shared();
  }

 private:
  struct Locks {
    std::mutex turnstile;
    std::shared_mutex pushes;
  };
  struct Mine {  // zeros at first
    int depth;
    bool is_alone;
  };

  static void Take() { mine_.is_alone ? Of().pushes.lock() : Of().pushes.lock_shared(); }

  static Locks& Of() {
    alignas(Locks) static char place[sizeof(Locks)];
    static Locks* const locks = [] {
      // In a forked child the threads that hold them are gone, but for the one that forked.
      pthread_atfork(nullptr, nullptr, [] {
        new (place) Locks;
        if (mine_.depth > 0) Take();
      });
      return new (place) Locks;
    }();
    return *locks;
  }

  static inline thread_local Mine mine_;
};

}  // namespace graphopt
