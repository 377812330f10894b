/*
 * What an optimizer does to all weights, in one operation of MXNet's engine; see graphopt/optimizers.
 *
 * A kernel over flat arrays reads a weight, its gradient, its states, numbers that all weights share and numbers of
 * the weight, and writes the weight and its states. Threads share pieces of all weights.
 */
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "caller.h"

namespace graphopt {

constexpr int64_t kFewWeights = 1 << 15;  // elements that the caller's thread updates

struct Update {
  static constexpr int64_t kGradient = 1;  // of a weight's arrays; the weight is the first one

  Plan* plan;
  int64_t weights, arrays, shared, own;  // how many there are; arrays of each weight
  std::vector<NDArray> given;
  std::vector<double> numbers;           // the shared ones first
  bool is_small = false;

  const NDArray& At(int64_t weight, int64_t array) const { return given[weight * arrays + array]; }
};

/* A call of the kernel for each piece of each weight. */
class UpdateRun {
 public:
  static bool Fits(const Update& update) {
    const int64_t inputs = update.plan->inputs.size(), outputs = update.plan->outputs.size();
    return update.arrays > Update::kGradient && update.shared + update.own > 0 &&
           inputs == update.arrays + update.shared + update.own && outputs == update.arrays - 1 &&
           inputs + outputs <= kMostOperands && update.plan->is_flat && !NeedsScratch(*update.plan);
  }

  explicit UpdateRun(const Update& update)
      : update_(update), function_(Ready(update.plan)), item_(update.plan->item_size) {
    for (int64_t weight = 0; weight < update.weights; ++weight) {
      Locate(weight);
      pieces_.push_back(pieces_.back() + (Size(weight) + kTileElements - 1) / kTileElements);
    }
    numbers_.resize(update.numbers.size() * item_);
    const int dtype = update.plan->inputs[update.arrays].dtype;
    for (size_t i = 0; i < update.numbers.size(); ++i) Write(numbers_.data(), dtype, i, update.numbers[i]);
  }

  void All() {
    int64_t elements = 0;
    for (int64_t weight = 0; weight < update_.weights; ++weight) elements += Size(weight);
    const int threads = update_.is_small ? 1 : Threads(update_.plan->cost * elements, pieces_.back());
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces_.back();) Piece(piece);
  }

 private:
  int64_t Size(int64_t weight) const { return update_.At(weight, 0).shape().Size(); }

  /* Where a weight's arrays are, in plain order. */
  void Locate(int64_t weight) {
    for (int64_t i = 0; i < update_.arrays; ++i) {
      NDArray array = update_.At(weight, i);
      if (i != Update::kGradient) {
        PutInPlainOrder(array);
      } else if (ChunkOf(array)->memory) {
        array = InPlainOrder(array);
        copies_.push_back(array);
      }
      at_.push_back(static_cast<char*>(array.data().dptr_));
    }
  }

  void Piece(int64_t piece) const {
    const int64_t weight = std::upper_bound(pieces_.begin(), pieces_.end(), piece) - pieces_.begin() - 1;
    const int64_t first = (piece - pieces_[weight]) * kTileElements;
    int64_t pointers[kMostOperands], strides[kMostOperands] = {}, result = 0, *to = pointers;
    void* exception = nullptr;
    char* const* at = at_.data() + weight * update_.arrays;
    for (int64_t i = 0; i < update_.arrays; ++i) *to++ = reinterpret_cast<int64_t>(at[i] + first * item_);
    const char* numbers = numbers_.data();
    for (int64_t i = 0; i < update_.shared; ++i) *to++ = reinterpret_cast<int64_t>(numbers + i * item_);
    numbers += (update_.shared + weight * update_.own) * item_;
    for (int64_t i = 0; i < update_.own; ++i) *to++ = reinterpret_cast<int64_t>(numbers + i * item_);
    for (int64_t i = 0; i < update_.arrays; ++i)
      if (i != Update::kGradient) *to++ = pointers[i];
    function_(&result, &exception, pointers, strides, 1, std::min(kTileElements, Size(weight) - first), 0);
  }

  static constexpr int64_t kMostOperands = 64;

  const Update& update_;
  const Function function_;
  const int64_t item_;
  std::vector<char*> at_;
  std::vector<NDArray> copies_;  // until the kernel has read them
  std::vector<int64_t> pieces_{0};
  std::vector<char> numbers_;

};

/* Whether all weights have got gradients since they were updated last. */
bool AreFresh(void** weights, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    int is_fresh = 0;
    if (MXNDArrayGetGradState(weights[i], &is_fresh) != 0) Fail(MXGetLastError());
    if (!is_fresh) return false;
  }
  return true;
}

/* What a call from Python says of an update; see graphopt_update. */
struct UpdateCall {
  const char* spec;
  void** handles;
  int64_t weights, arrays;
  const double* numbers;
  int64_t shared, own;
};

std::unique_ptr<Update> UpdateOf(const UpdateCall& told) {
  NodeAttrs attrs;
  attrs.name = "graphopt_update";
  attrs.dict["spec"] = told.spec;
  std::unique_ptr<Update> update(
      new Update{FindPlan(attrs, false), told.weights, told.arrays, told.shared, told.own});
  update->numbers.assign(told.numbers, told.numbers + told.shared + told.weights * told.own);
  if (!UpdateRun::Fits(*update)) Fail("a kernel of an update reads other arrays and numbers: " + update->plan->spec);
  update->given.reserve(told.weights * told.arrays);
  int64_t elements = 0;
  for (int64_t i = 0; i < told.weights * told.arrays; ++i) {
    const NDArray& array = *static_cast<NDArray*>(told.handles[i]);
    if (array.storage_type() != mxnet::kDefaultStorage) Fail("an array of an optimizer is not dense");
    update->given.push_back(array);
    if (i % told.arrays == 0) elements += array.shape().Size();
  }
  update->is_small = elements <= kFewWeights;
  return update;
}

/* From now on gradients are those of the last step. Weights of modules have none in autograd's eyes. */
void MakeOld(const UpdateCall& told) {
  for (int64_t weight = 0; weight < told.weights; ++weight) {
    void* array = told.handles[weight * told.arrays];
    int is_fresh = 0;
    if (MXNDArrayGetGradState(array, &is_fresh) != 0) Fail(MXGetLastError());
    if (is_fresh && MXNDArraySetGradState(array, 0) != 0) Fail(MXGetLastError());
  }
}

/* Gradients, and what an update writes. */
void AddVariables(const Update& update, Variables* read, Variables* written) {
  for (size_t i = 0; i < update.given.size(); ++i)
    (static_cast<int64_t>(i) % update.arrays == Update::kGradient ? read : written)
        ->push_back(ChunkOf(update.given[i])->variable);
}

/* Has the engine update weights whose gradients are there; from then on these are old. Where all have few elements
 * and nothing has to be waited for, the caller's thread does it. */
void PushUpdate(const UpdateCall& told) {
  std::unique_ptr<Update> update = UpdateOf(told);
  MakeOld(told);
  Variables read, written;
  AddVariables(*update, &read, &written);
  const bool is_small = update->is_small;
  Push([](void*, void* given) { UpdateRun(*static_cast<Update*>(given)).All(); }, update.release(),
       [](void* given) { delete static_cast<Update*>(given); }, read, written, is_small, "graphopt_update");
}

}  // namespace graphopt
