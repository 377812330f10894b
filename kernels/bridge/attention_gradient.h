/*
 * Gradients of attention, with scores computed again; see attention.h.
 */
#pragma once

#include <memory>
#include <vector>

#include "attention_run.h"

namespace graphopt {

/* A gradient that is asked for, or null. */
struct Sink {
  float* at = nullptr;
  bool adds = false;
};

/* The gradient of a call's result, and what is asked for. */
struct AttentionGradients {
  Stack mixed;
  const float* head;
  Plan* plan;  // of the kernel's gradients
  std::vector<const TBlob*> operands, outputs;  // of it; null are rows of scores
  std::vector<OpReqType> requests;              // of its outputs
  size_t made = 0;  // which of the outputs is the gradient of scores
  Sink queries, keys, values;

  bool IsWanted(size_t i) const { return i != made && requests[i] != mxnet::kNullOp; }
};

/* Gradients of what the kernel reads besides scores, where they are sums: a part for each slot. */
class SummedGradients {
 public:
  static constexpr int64_t kSlots = 16;

  explicit SummedGradients(const AttentionGradients& asked) : asked_(asked) {
    for (size_t i = 0; i < asked.outputs.size(); ++i) {
      at_.push_back(IsSummed(i) ? bytes_ : -1);
      if (IsSummed(i)) bytes_ += Align(asked.outputs[i]->shape_.Size() * asked.plan->item_size);
    }
    parts_.resize(kSlots * bytes_);
  }

  bool IsSummed(size_t i) const { return asked_.IsWanted(i) && asked_.plan->outputs[i].adds; }
  int64_t Slots(int64_t groups) const { return bytes_ ? kSlots : groups; }
  void* Part(size_t i, int64_t slot) { return parts_.data() + slot * bytes_ + at_[i]; }

  void Finish() {
    for (size_t i = 0; i < at_.size(); ++i)
      if (IsSummed(i))
        Combine(*asked_.outputs[i], asked_.requests[i], parts_.data() + at_[i], bytes_, kSlots, asked_.plan->item_size);
  }

 private:
  const AttentionGradients& asked_;
  std::vector<int64_t> at_;
  int64_t bytes_ = 0;
  std::vector<char> parts_;
};

/* A thread that computes gradients. */
class AttentionBackwardThread {
 public:
  AttentionBackwardThread(const AttentionCall& call, const AttentionGradients& asked, SummedGradients* summed)
      : call_(call), asked_(asked), summed_(*summed), n_(call.sizes.others), weights_(call),
        values_(call.sizes.values, call.values, true, call.sizes.rows, 1, 1),
        // By the factor, as gradients of queries are to be; of few rows it is done behind the product.
        keys_(call.sizes.keys, call.keys, false, call.sizes.rows, call.factor, 5),
        kernel_(asked.plan, asked.operands, asked.outputs, asked.made, call.scores),
        gradient_(AttentionRoom(6, call.together * call.block * n_)),
        slopes_(AttentionRoom(7, call.together * call.block * n_)) {
    for (const Operand& operand : asked.plan->inputs)
      reads_.push_back(operand.source == kHead     ? gradient_
                       : operand.source == kOutput ? weights_.weights()
                                                   : weights_.scores());
  }

  void operator()(const SomeRows& rows, int64_t slot) {
    Begin(slot, rows);
    weights_.Compute(rows);
    OfValues(rows);
    for (int64_t i = 0; i < rows.products; ++i)
      values_.Times(rows.product + i, rows.count, Head(rows, i), gradient_ + i * rows.count * n_, n_, false);
    if (call_.drops) weights_.Drop(rows, gradient_, gradient_);
    kernel_.Run(weights_.FirstOf(rows), rows.all(), reads_, slopes_);
    AddRows(rows);
    if (call_.sizes.queries.columns) OfKeysAndQueries(rows);
  }

 private:
  /* Gives a place to gradients of what the kernel reads besides scores: sums of a slot, arrays with rows for all of
   * queries, or, where they are added to, some rows of these. */
  void Begin(int64_t slot, const SomeRows& rows) {
    for (size_t i = 0; i < asked_.outputs.size(); ++i) {
      if (!asked_.IsWanted(i)) continue;
      if (summed_.IsSummed(i)) {
        kernel_.Place(i, summed_.Part(i, slot));
      } else if (asked_.requests[i] != mxnet::kAddTo) {
        kernel_.Place(i, asked_.outputs[i]->dptr_);
      } else {
        const int size = ItemSize(asked_.outputs[i]->type_flag_);
        added_.resize(asked_.outputs.size());
        added_[i].resize(rows.all() * WidthOf(i) * size);
        kernel_.Place(i, added_[i].data() - weights_.FirstOf(rows) * WidthOf(i) * size);
      }
    }
  }

  void AddRows(const SomeRows& rows) {
    for (size_t i = 0; i < added_.size(); ++i)
      if (!added_[i].empty())
        AddTile(*asked_.outputs[i], added_[i].data(), weights_.FirstOf(rows) * WidthOf(i),
                rows.all() * WidthOf(i));
  }

  /* Numbers of a row of a gradient that is not summed: one for each score, or one for all. */
  int64_t WidthOf(size_t output) const {
    const std::vector<int>& axes = asked_.plan->outputs[output].axes;
    return std::find(axes.begin(), axes.end(), asked_.plan->rank - 1) == axes.end() ? 1 : n_;
  }

  product::Matrix Head(const SomeRows& rows, int64_t i) const {
    const Stack& mixed = asked_.mixed;
    return {asked_.head + mixed.At(rows.product + i) + rows.row * mixed.stride, mixed.stride, false};
  }

  void OfValues(const SomeRows& rows) {
    const Stack& values = call_.sizes.values;
    if (!asked_.values.at) return;
    const float* weights = weights_.weights();
    if (call_.drops) weights_.Drop(rows, weights, slopes_), weights = slopes_;
    for (int64_t i = 0; i < rows.products; ++i)
      MultiplyOne(n_, rows.count, values.columns, {weights + i * rows.count * n_, n_, true}, Head(rows, i),
                  asked_.values.at + values.At(rows.product + i), values.stride, asked_.values.adds || rows.row > 0);
  }

  void OfKeysAndQueries(const SomeRows& rows) {
    const Stack &keys = call_.sizes.keys, &queries = call_.sizes.queries;
    for (int64_t i = 0; i < rows.products; ++i) {
      const int64_t product = rows.product + i;
      float* slopes = slopes_ + i * rows.count * n_;
      if (asked_.keys.at)
        MultiplyOne(n_, rows.count, keys.columns, {slopes, n_, true}, call_.Queries(product, rows.row, rows.count, 4),
                    asked_.keys.at + keys.At(product), keys.stride, asked_.keys.adds || rows.row > 0);
      if (!asked_.queries.at) continue;
      for (int64_t j = 0; !keys_.packs() && call_.factor != 1 && j < rows.count * n_; ++j) slopes[j] *= call_.factor;
      keys_.Times(product, rows.count, {slopes, n_, false},
                  asked_.queries.at + queries.At(product) + rows.row * queries.stride, queries.stride,
                  asked_.queries.adds);
    }
  }

  const AttentionCall& call_;
  const AttentionGradients& asked_;
  SummedGradients& summed_;
  const int64_t n_;
  Weights weights_;
  Right values_, keys_;
  RowKernel kernel_;
  float *gradient_, *slopes_;
  std::vector<const float*> reads_;
  std::vector<std::vector<char>> added_;
};

/* Gradients of queries, keys and values, where they are asked for. */
void RunAttentionBackward(const AttentionCall& call, const AttentionGradients& asked) {
  CheckKernel(call);
  RowKernel(asked.plan, asked.operands, asked.outputs, asked.made, call.scores);
  SummedGradients summed(asked);
  EachRows(call, 3, summed.Slots(call.groups()), [&] {
    auto thread = std::make_shared<AttentionBackwardThread>(call, asked, &summed);
    return [thread](const SomeRows& rows, int64_t slot) { (*thread)(rows, slot); };
  });
  summed.Finish();
}

}  // namespace graphopt
