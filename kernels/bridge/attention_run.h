/*
 * Attention of some rows after the other, by threads that need nothing of each other; see attention.h.
 */
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention_rows.h"

namespace graphopt {

/* What all products of a call share. */
struct AttentionCall {
  const Attention& node;
  AttentionSizes sizes;
  const float *queries, *keys, *values;
  dropout::Mask mask;
  bool drops;
  float factor;          // of queries
  int64_t block;         // rows of scores that are computed together
  int64_t together;      // products whose rows are, if those of one are few
  mxnet::TShape scores;  // as the kernel sees them
  std::vector<const TBlob*> operands;  // of the forward kernel

  /* `inputs` are those of the node, from the `first` of a call's on. */
  AttentionCall(const NodeAttrs& attrs, const Attention& attention, const std::vector<TBlob>& inputs,
                size_t first, bool is_train)
      : node(attention), sizes(attrs, attention, Shapes(inputs, first).data()),
        drops(attention.drops && is_train), scores(sizes.ScoresFor(attention)) {
    auto data = [&](const Site& place) { return static_cast<const float*>(inputs[first + place.input].dptr_); };
    queries = data(node.queries);
    keys = data(node.keys);
    values = data(node.values);
    if (drops) mask = MaskOf(attrs, inputs.back());
    factor = node.scaled ? 1 / std::sqrt(static_cast<float>(sizes.queries.columns)) : 1;
    constexpr int64_t kElements = 32768, kStrip = 8, kGroups = 64;
    block = std::max(kElements / std::max<int64_t>(sizes.others, 1) / kStrip * kStrip, kStrip);
    together = std::max<int64_t>(block / std::max<int64_t>(sizes.rows, 1), 1);
    together = std::clamp<int64_t>(sizes.products / kGroups, 1, together);
    block = std::min(block, sizes.rows);
    for (int64_t i = 0; i < static_cast<int64_t>(node.kernel->inputs.size()); ++i)
      operands.push_back(i == node.scores ? nullptr : &inputs[first + node.InputOf(i)]);
  }

  int64_t groups() const { return (sizes.products + together - 1) / together; }

  static std::vector<mxnet::TShape> Shapes(const std::vector<TBlob>& inputs, size_t first) {
    std::vector<mxnet::TShape> shapes;
    for (size_t i = first; i < inputs.size(); ++i) shapes.push_back(inputs[i].shape_);
    return shapes;
  }

  /* Queries of some rows, by their factor. */
  product::Matrix Queries(int64_t product, int64_t row, int64_t count, int room) const {
    const Stack& q = sizes.queries;
    const float* from = queries + q.At(product) + row * q.stride;
    if (factor == 1) return {from, q.stride, false};
    float* to = AttentionRoom(room, count * q.columns);
    CopyScaled(from, q.stride, count, q.columns, factor, to);
    return {to, q.columns, false};
  }
};

/* Some rows of some products; either all rows or those of one product. */
struct SomeRows {
  int64_t product, products, row, count;
  int64_t all() const { return products * count; }
};

/* `make()` for each thread, and what it makes for the rows of all products. Those of a slot, of so many, are computed
 * in their order by one thread, so that sums are the same for any number of threads. */
template <class Make>
void EachRows(const AttentionCall& call, int64_t multiplications, int64_t slots, const Make& make) {
  const AttentionSizes& sizes = call.sizes;
  const double columns = sizes.queries.columns + sizes.values.columns;
  const double nanoseconds = sizes.rows * sizes.others * (0.01 * columns * multiplications + 2);
  const int64_t groups = call.groups();
  const int threads = Threads(nanoseconds * sizes.products, slots);
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    auto body = make();
    for (int64_t slot; (slot = next.fetch_add(1, std::memory_order_relaxed)) < slots;)
      for (int64_t group = groups * slot / slots; group < groups * (slot + 1) / slots; ++group) {
        const int64_t product = group * call.together;
        const int64_t products = std::min(call.together, sizes.products - product);
        for (int64_t row = 0; row < sizes.rows; row += call.block)
          body(SomeRows{product, products, row, std::min(call.block, sizes.rows - row)}, slot);
      }
  }
}

/* What a thread needs to compute weights, forward and backward. */
class Weights {
 public:
  explicit Weights(const AttentionCall& call)
      : call_(call), n_(call.sizes.others), keys_(call.sizes.keys, call.keys, true, call.sizes.rows, 1, 0),
        kernel_(call.node.kernel, call.operands, std::vector<const TBlob*>(1), 0, call.scores),
        scores_(AttentionRoom(2, call.together * call.block * n_)),
        weights_(AttentionRoom(3, call.together * call.block * n_)), from_(call.operands.size(), scores_) {}

  float* scores() const { return scores_; }
  float* weights() const { return weights_; }

  void Compute(const SomeRows& rows) {
    for (int64_t i = 0; i < rows.products; ++i) {
      float* to = scores_ + i * rows.count * n_;
      if (call_.sizes.queries.columns)
        keys_.Times(rows.product + i, rows.count, call_.Queries(rows.product + i, rows.row, rows.count, 4), to, n_,
                    false);
      else
        std::memset(to, 0, rows.count * n_ * sizeof(float));
    }
    kernel_.Run(FirstOf(rows), rows.all(), from_, weights_);
  }

  /* Masks rows of weights, or of their gradients. */
  void Drop(const SomeRows& rows, const float* from, float* to) const {
    dropout::ApplyFrom(call_.mask, FirstOf(rows) * n_, from, to, rows.all() * n_);
  }

  int64_t FirstOf(const SomeRows& rows) const { return rows.product * call_.sizes.rows + rows.row; }

 private:
  const AttentionCall& call_;
  const int64_t n_;
  Right keys_;
  RowKernel kernel_;
  float *scores_, *weights_;
  std::vector<const float*> from_;
};

/* Compiles a kernel and looks at its operands; threads that share work can neither fail nor wait for Python. */
void CheckKernel(const AttentionCall& call) {
  RowKernel(call.node.kernel, call.operands, std::vector<const TBlob*>(1), 0, call.scores);
}

/* Writes, or adds, what attention makes of all products. */
void RunAttention(const AttentionCall& call, const Stack& mixed, float* to, bool adds) {
  const int64_t n = call.sizes.others;
  CheckKernel(call);
  EachRows(call, 1, call.groups(), [&] {
    auto weights = std::make_shared<Weights>(call);
    auto values = std::make_shared<Right>(call.sizes.values, call.values, false, call.sizes.rows, 1, 1);
    return [&, weights, values](const SomeRows& rows, int64_t) {
      weights->Compute(rows);
      float* found = weights->weights();
      if (call.drops) weights->Drop(rows, found, found);
      for (int64_t i = 0; i < rows.products; ++i)
        values->Times(rows.product + i, rows.count, {found + i * rows.count * n, n, false},
                      to + mixed.At(rows.product + i) + rows.row * mixed.stride, mixed.stride, adds);
    };
  });
}

}  // namespace graphopt
