/*
 * Arrays that nobody writes to while a thread reads their memory past MXNet's engine.
 *
 * MXNet's convolutions and dense layers bring the weights of inference into oneDNN's order, in place and as an
 * operation of the engine that writes them, in whatever thread it runs. So whoever reads memory has to be an operation
 * of the engine, too: one that is over when it says so.
 */
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "versions.h"

namespace graphopt {

class Holding {
 public:
  /* Waits until nobody writes to the arrays. */
  static Holding* Of(void** arrays, int64_t count) {
    auto made = std::make_unique<Holding>();
    std::vector<Variable*> once;
    for (int64_t i = 0; i < count; ++i) once.push_back(VariableOf(arrays[i]));
    std::sort(once.begin(), once.end());  // the engine takes none twice
    once.erase(std::unique(once.begin(), once.end()), once.end());
    mxnet::Context ctx = mxnet::Context::CPU();
    // Also if what wrote an array failed: this thread waits.
    mxnet::FnProperty property = mxnet::FnProperty::kNoSkip;
    const std::shared_future<void> begun = made->begun_.get_future().share();
    if (MXEnginePushAsync(&Begin, made.get(), nullptr, &ctx, once.data(), once.size(), nullptr, 0, &property, 0,
                          "graphopt_holding") != 0)
      Fail(std::string("arrays cannot be held: ") + MXGetLastError());
    begun.wait();
    return made.release();
  }

  ~Holding() {
    if (is_held_) end_();
  }

 private:
  static void Begin(void*, void* end, void* given) {
    auto& made = *static_cast<Holding*>(given);
    made.end_ = *static_cast<mxnet::engine::CallbackOnComplete*>(end);
    // The engine that runs everything in the thread that asks goes on once an operation is over.
    const char* engine = std::getenv("MXNET_ENGINE_TYPE");
    made.is_held_ = !engine || std::strcmp(engine, "NaiveEngine") != 0;
    if (!made.is_held_) made.end_();
    made.begun_.set_value();
  }

  std::promise<void> begun_;
  mxnet::engine::CallbackOnComplete end_;
  bool is_held_ = false;
};

/* Whether oneDNN has laid an array out in an order of its own; to be asked while it is held. */
bool IsLaidOut(void* array) { return (*static_cast<std::shared_ptr<LegacyChunk>*>(array))->memory != nullptr; }

}  // namespace graphopt
