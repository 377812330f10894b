/*
 * Operations handed to MXNet's engine by several threads.
 *
 * The engine appends an operation to the queue of one of its variables after the other. Two threads that push at once,
 * each an operation that needs the same two variables, may each come first in one of the queues: then both operations
 * wait for ever, if for each of these variables one of the two writes it. So operations that write several variables are
 * pushed while nothing else of ours is; the others, which at most read what is shared, beside each other.
 */
#pragma once

#include <pthread.h>

#include <mutex>
#include <new>
#include <shared_mutex>

namespace graphopt {

class Pushing {
 public:
  explicit Pushing(bool is_alone) : is_alone_(is_alone) {
    // Who waits here to push alone lets nobody else go first: readers could follow each other for ever.
    std::lock_guard<std::mutex> turnstile(Of().turnstile);
    is_alone ? Of().pushes.lock() : Of().pushes.lock_shared();
  }
  ~Pushing() { is_alone_ ? Of().pushes.unlock() : Of().pushes.unlock_shared(); }
  Pushing(const Pushing&) = delete;
  Pushing& operator=(const Pushing&) = delete;

 private:
  struct Locks {
    std::mutex turnstile;
    std::shared_mutex pushes;
  };

  static Locks& Of() {
    alignas(Locks) static char place[sizeof(Locks)];
    static Locks* const locks = [] {
      // In a forked child the threads that hold them are gone.
      pthread_atfork(nullptr, nullptr, [] { new (place) Locks; });
      return new (place) Locks;
    }();
    return *locks;
  }

  const bool is_alone_;
};

}  // namespace graphopt
