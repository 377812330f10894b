/*
 * Operations are handed to MXNet's engine one at a time.
 *
 * Its `Push` appends an operation to the queue of one variable after the other. Two threads that push at once, each an
 * operation that needs the same two variables, may each come first in one of the queues: then both operations wait for
 * ever, if for each of these variables one of the two writes it. Where pushes follow each other, an operation waits only
 * for earlier ones.
 *
 * So the engine gets a `Push` that takes a lock. Some operations run within it, in the thread that pushes them: those
 * that need not wait for anything. They are begun by `PushToExecute`, the last thing that `Push` does, which gives the
 * lock away before. Both are found among the engine's virtual functions by their names, and a copy of that table with
 * both replaced is put into its place.
 */
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <mxnet/engine.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

extern "C" {
#define GRAPHOPT_OF_MXNET(name, symbol) extern void name() __asm__(symbol) __attribute__((weak))
GRAPHOPT_OF_MXNET(graphopt_mxnet_push, "_ZN5mxnet6engine14ThreadedEngine4PushEPNS0_3OprENS_7ContextEib");
GRAPHOPT_OF_MXNET(graphopt_mxnet_execute_per_device,
                  "_ZN5mxnet6engine23ThreadedEnginePerDevice13PushToExecuteEPNS0_8OprBlockEb");
GRAPHOPT_OF_MXNET(graphopt_mxnet_execute_pooled,
                  "_ZN5mxnet6engine20ThreadedEnginePooled13PushToExecuteEPNS0_8OprBlockEb");
#undef GRAPHOPT_OF_MXNET
}

namespace graphopt {

class Pushing {
 public:
  /* Has pushes follow each other from now on; false if MXNet's engine is none that is known. */
  static bool Begin() {
    mxnet::Engine* engine = mxnet::Engine::Get();
    auto*** table = reinterpret_cast<void***>(engine);
    void** const end = EndOf(*table);
    if (!end || !graphopt_mxnet_push) return false;
    void** const push = Find(*table, end, reinterpret_cast<void*>(&graphopt_mxnet_push));
    if (!push) return true;  // an engine that runs what it is given at once has no queues
    void** execute = Find(*table, end, reinterpret_cast<void*>(&graphopt_mxnet_execute_per_device));
    if (!execute) execute = Find(*table, end, reinterpret_cast<void*>(&graphopt_mxnet_execute_pooled));
    if (!execute) return false;
    push_ = reinterpret_cast<PushFunction*>(*push);
    execute_ = reinterpret_cast<ExecuteFunction*>(*execute);
    void** const begin = *table - kBefore;
    auto* copy = new std::vector<void*>(begin, end);  // for ever, as the engine
    (*copy)[push - begin] = reinterpret_cast<void*>(&Push);
    (*copy)[execute - begin] = reinterpret_cast<void*>(&Execute);
    __atomic_store_n(table, copy->data() + kBefore, __ATOMIC_RELEASE);
    // In a forked child whoever held the lock is gone.
    pthread_atfork(nullptr, nullptr, [] {
      new (&lock_) std::mutex;
      if (has_turn_) lock_.lock();
    });
    return true;
  }

 private:
  using PushFunction = void(mxnet::Engine*, mxnet::engine::Opr*, mxnet::Context, int, bool);
  using ExecuteFunction = void(mxnet::Engine*, void*, bool);

  /* What a table of virtual functions has in front of them: the object's offset and its type. */
  static constexpr ptrdiff_t kBefore = 2;

  /* Of the table of virtual functions of an object that has no other one. */
  static void** EndOf(void** table) {
    Dl_info info;
    void* found = nullptr;
    if (!dladdr1(table, &info, &found, RTLD_DL_SYMENT) || !found || info.dli_saddr != table - kBefore) return nullptr;
    return table - kBefore + static_cast<const ElfW(Sym)*>(found)->st_size / sizeof(void*);
  }

  /* Where a function that may be missing stands, if it does. */
  static void** Find(void** begin, void** end, void* function) {
    void** const found = function ? std::find(begin, end, function) : end;
    return found == end ? nullptr : found;
  }

  static void Push(mxnet::Engine* engine, mxnet::engine::Opr* operation, mxnet::Context context, int priority,
                   bool profiling) {
    // `Push` begins with a push of what was to be pushed in bulk.
    if (has_turn_) return push_(engine, operation, context, priority, profiling);
    const Turn turn(true);
    push_(engine, operation, context, priority, profiling);
  }

  static void Execute(mxnet::Engine* engine, void* operation, bool is_pusher) {
    if (!has_turn_) return execute_(engine, operation, is_pusher);
    const Turn none(false);
    execute_(engine, operation, is_pusher);
  }

  /* Takes the lock, or gives it away, and has it be as before at the end. */
  class Turn {
   public:
    explicit Turn(bool takes) : takes_(takes) { Set(takes); }
    ~Turn() { Set(!takes_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    static void Set(bool takes) {
      if (takes) lock_.lock();
      has_turn_ = takes;
      if (!takes) lock_.unlock();
    }

    bool takes_;
  };

  static inline std::mutex lock_;
  static inline thread_local bool has_turn_ = false;
  static inline PushFunction* push_ = nullptr;
  static inline ExecuteFunction* execute_ = nullptr;
};

}  // namespace graphopt
