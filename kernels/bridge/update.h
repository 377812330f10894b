/*
 * What an optimizer does to all weights, in one operation of MXNet's engine; see graphopt/optimizers.
 *
 * A kernel over flat arrays reads a weight, its gradient, its states, numbers that all weights share and numbers of
 * the weight, and writes the weight and its states. Threads share pieces of all weights.
 *
 * Where rates adapt to norms, of weights and of what they move by, there are four kernels: one that writes states, if
 * norms are of what they become; one that sums squares of a piece; one that makes a number, the ratio, of a weight's
 * norms; and the last, which reads the ratio behind the other numbers, and writes no states that were written before.
 */
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "caller.h"

namespace graphopt {

constexpr int64_t kFewWeights = 1 << 15;  // elements that the caller's thread updates
constexpr int64_t kTogether = 1 << 18;    // elements whose norms are taken before they are written, still in a cache

struct Update {
  static constexpr int64_t kGradient = 1;  // of a weight's arrays; the weight is the first one

  Plan *plan, *states, *squares, *ratio;  // all but the first only where rates adapt; `states` not always
  int64_t weights, arrays, shared, own;   // how many there are; arrays of each weight
  std::vector<NDArray> given;
  std::vector<double> numbers;            // the shared ones first
  bool is_small = false;

  const NDArray& At(int64_t weight, int64_t array) const { return given[weight * arrays + array]; }
};

/* Calls of the kernels for each piece of each weight. */
class UpdateRun {
 public:
  static bool Fits(const Update& update) {
    const int64_t numbers = update.shared + update.own, inputs = update.arrays + numbers;
    const auto fits = [](const Plan* plan, int64_t inputs, int64_t outputs) {
      return static_cast<int64_t>(plan->inputs.size()) == inputs &&
             static_cast<int64_t>(plan->outputs.size()) == outputs && inputs + outputs <= kMostOperands &&
             !NeedsScratch(*plan);
    };
    if (update.arrays <= Update::kGradient || numbers <= 0 || !update.plan->is_flat) return false;
    if (!update.ratio != !update.squares) return false;
    if (!update.ratio) return !update.states && fits(update.plan, inputs, update.arrays - 1);
    const int64_t norms = update.squares->outputs.size();
    if (!fits(update.squares, inputs, norms) || !fits(update.ratio, norms + numbers, 1)) return false;
    if (!update.states) return fits(update.plan, inputs + 1, update.arrays - 1);
    return update.states->is_flat && fits(update.states, inputs, update.arrays - 2) && fits(update.plan, inputs + 1, 1);
  }

  explicit UpdateRun(const Update& update)
      : update_(update), function_(Ready(update.plan)), item_(update.plan->item_size) {
    for (int64_t weight = 0; weight < update.weights; ++weight) {
      Locate(weight);
      pieces_.push_back(pieces_.back() + (Size(weight) + kTileElements - 1) / kTileElements);
    }
    const int dtype = update.plan->inputs[update.arrays].dtype;
    numbers_.resize(update.numbers.size() * item_);
    for (size_t i = 0; i < update.numbers.size(); ++i) Write(numbers_.data(), dtype, i, update.numbers[i]);
    ratios_.resize(update.weights * item_);
  }

  void All() {
    if (update_.ratio) {
      for (int64_t from = 0, to; from < update_.weights; from = to) Adapt(from, to = End(from));
    } else {
      Share(0, update_.weights, update_.plan->cost, [this](const Piece& piece) { Apply(piece); });
    }
  }

 private:
  static constexpr int64_t kMostOperands = 64;

  struct Piece {
    int64_t number, weight, first, count;
  };

  /* What a kernel is called with. */
  struct Operands {
    int64_t pointers[kMostOperands], strides[kMostOperands] = {}, count = 0;
    void Add(const char* at) { pointers[count++] = reinterpret_cast<int64_t>(at); }
  };

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

  /* The weight behind the last that is taken together with one. */
  int64_t End(int64_t from) const {
    int64_t to = from, elements = 0;
    while (to < update_.weights && (to == from || elements + Size(to) <= kTogether)) elements += Size(to++);
    return to;
  }

  /* Threads take pieces of some weights in turns; `cost` nanoseconds an element. */
  template <typename Run>
  void Share(int64_t from, int64_t to, double cost, const Run& run) const {
    int64_t elements = 0;
    for (int64_t weight = from; weight < to; ++weight) elements += Size(weight);
    const int64_t end = pieces_[to];
    const int threads = update_.is_small ? 1 : Threads(cost * elements, end - pieces_[from]);
    std::atomic<int64_t> next{pieces_[from]};
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t number; (number = next.fetch_add(1, std::memory_order_relaxed)) < end;) {
      const int64_t weight = std::upper_bound(pieces_.begin(), pieces_.end(), number) - pieces_.begin() - 1;
      const int64_t first = (number - pieces_[weight]) * kTileElements;
      run(Piece{number, weight, first, std::min(kTileElements, Size(weight) - first)});
    }
  }

  /* Updates weights by ratios of their norms. */
  void Adapt(int64_t from, int64_t to) {
    const int64_t norms = update_.squares->outputs.size();
    const Function states = update_.states ? Ready(update_.states) : nullptr, squares = Ready(update_.squares);
    // Of each piece, so that as many threads as there are sum them up alike.
    std::vector<double> sums((pieces_[to] - pieces_[from]) * norms);
    const double cost = update_.squares->cost + (states ? update_.states->cost : 0);
    Share(from, to, cost, [&](const Piece& piece) {
      if (states) {
        Operands operands = Given(piece);
        for (int64_t i = Update::kGradient + 1; i < update_.arrays; ++i) operands.Add(At(piece, i));
        Call(states, operands, piece.count);
      }
      Operands operands = Given(piece);
      alignas(8) char found[8 * kMostOperands];
      for (int64_t i = 0; i < norms; ++i) operands.Add(found + i * item_);
      Call(squares, operands, piece.count);
      for (int64_t i = 0; i < norms; ++i) sums[(piece.number - pieces_[from]) * norms + i] = Read(found, i);
    });
    for (int64_t weight = from; weight < to; ++weight) {
      std::vector<double> of(norms);
      for (int64_t piece = pieces_[weight]; piece < pieces_[weight + 1]; ++piece)
        for (int64_t i = 0; i < norms; ++i) of[i] += sums[(piece - pieces_[from]) * norms + i];
      SetRatio(weight, of);
    }
    Share(from, to, update_.plan->cost, [this](const Piece& piece) { Apply(piece); });
  }

  void SetRatio(int64_t weight, const std::vector<double>& squares) {
    alignas(8) char norms[8 * kMostOperands];
    Operands operands;
    for (size_t i = 0; i < squares.size(); ++i) {
      Write(norms, update_.ratio->inputs[i].dtype, i, std::sqrt(squares[i]));
      operands.Add(norms + i * item_);
    }
    AddNumbers(weight, &operands);
    operands.Add(ratios_.data() + weight * item_);
    Call(Ready(update_.ratio), operands, 1);
  }

  void Apply(const Piece& piece) const {
    Operands operands = Given(piece);
    if (update_.ratio) operands.Add(ratios_.data() + piece.weight * item_);
    operands.Add(At(piece, 0));
    for (int64_t i = Update::kGradient + 1; i < update_.arrays && !update_.states; ++i) operands.Add(At(piece, i));
    Call(function_, operands, piece.count);
  }

  /* Arrays and numbers of a piece. */
  Operands Given(const Piece& piece) const {
    Operands operands;
    for (int64_t i = 0; i < update_.arrays; ++i) operands.Add(At(piece, i));
    AddNumbers(piece.weight, &operands);
    return operands;
  }

  void AddNumbers(int64_t weight, Operands* operands) const {
    const char* own = numbers_.data() + (update_.shared + weight * update_.own) * item_;
    for (int64_t i = 0; i < update_.shared; ++i) operands->Add(numbers_.data() + i * item_);
    for (int64_t i = 0; i < update_.own; ++i) operands->Add(own + i * item_);
  }

  char* At(const Piece& piece, int64_t array) const {
    return at_[piece.weight * update_.arrays + array] + piece.first * item_;
  }

  double Read(const char* numbers, int64_t at) const {
    return item_ == 4 ? reinterpret_cast<const float*>(numbers)[at] : reinterpret_cast<const double*>(numbers)[at];
  }

  static void Call(Function function, const Operands& operands, int64_t count) {
    function(operands.pointers, operands.strides, 1, count, 0);
  }

  const Update& update_;
  const Function function_;
  const int64_t item_;
  std::vector<char*> at_;
  std::vector<NDArray> copies_;  // until the kernels have read them
  std::vector<int64_t> pieces_{0};
  std::vector<char> numbers_, ratios_;  // ratios of each weight
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
  const char* const* specs;  // of the last kernel; of those before it, or null, in the order of Update
  void** handles;
  int64_t weights, arrays;
  const double* numbers;
  int64_t shared, own;
};

std::unique_ptr<Update> UpdateOf(const UpdateCall& told) {
  const auto plan = [&told](int at) -> Plan* {
    if (!told.specs[at]) return nullptr;
    NodeAttrs attrs;
    attrs.name = "graphopt_update";
    attrs.dict["spec"] = told.specs[at];
    return FindPlan(attrs, false);
  };
  std::unique_ptr<Update> update(
      new Update{plan(0), plan(1), plan(2), plan(3), told.weights, told.arrays, told.shared, told.own});
  update->numbers.assign(told.numbers, told.numbers + told.shared + told.weights * told.own);
  if (!UpdateRun::Fits(*update))
    Fail("a kernel of an update reads or writes other arrays and numbers: " + update->plan->spec);
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
