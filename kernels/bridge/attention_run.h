/*
 * Attention of one product after the other, by one thread each; see attention.h.
 */
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention.h"

namespace graphopt {

/* A kernel over some rows of scores, which are in memory of this thread, as are what it makes of them. */
class RowKernel {
 public:
  /* Of the inputs those that are null are rows of scores, as is output `made`. Nobody reads the others. */
  RowKernel(Plan* plan, std::vector<const TBlob*> inputs, std::vector<const TBlob*> outputs, size_t made,
            const mxnet::TShape& scores)
      : function_(Ready(plan)), whole_(static_cast<void*>(nullptr), scores, mxnet::Context::kCPU, mshadow::kFloat32, 0) {
    parts_.assign(inputs.size(), whole_);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!inputs[i]) inputs[i] = &parts_[i];
    outputs[made] = &whole_;
    space_ = Measure(plan, inputs, outputs);
    const int64_t rows = scores[0] * (scores.ndim() == 4 ? scores[1] * scores[2] : scores[1]);
    if (space_.length != scores[scores.ndim() - 1] || space_.rows != rows)
      Fail("kernel " + plan->spec + " does not walk rows of scores");
    scratch_.resize(TilingOf(space_).row_bytes + kLineBytes);
    nobody_.resize(space_.length * sizeof(double));
    for (size_t i = 0; i < outputs.size(); ++i) targets_.push_back({nobody_.data(), i != made});
  }
  RowKernel(const RowKernel&) = delete;

  /* Rows `first` to `first + count`; `from` has those of each operand that is in memory of this thread. */
  void Run(int64_t first, int64_t count, const std::vector<const float*>& from, float* to) {
    const int64_t before = first * space_.length;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (space_.operands[i] == &parts_[i]) parts_[i].dptr_ = const_cast<float*>(from[i]) - before;
    for (Target& target : targets_)
      if (!target.is_dummy) target.base = reinterpret_cast<char*>(to - before);
    Walk(space_, function_, targets_, first, first + count, 0, space_.length, Aligned<char>(scratch_.data()));
  }

 private:
  Function function_;
  TBlob whole_;
  std::vector<TBlob> parts_;
  Space space_;
  std::vector<char> scratch_, nobody_;
  std::vector<Target> targets_;
};

/* Memory of this thread that stays until it is asked for again by the same number. */
inline float* AttentionRoom(int number, int64_t floats) {
  static thread_local std::vector<float> kept[8];
  std::vector<float>& room = kept[number];
  const size_t size = floats + kLineBytes / sizeof(float);
  if (room.size() < size) room.resize(size);
  return Aligned<float>(room.data());
}

/* A matrix that many rows are multiplied by: packed, unless there are few. */
struct Right {
  product::Matrix matrix;
  const float* packed;

  Right(const product::Matrix& what, int64_t rows, int64_t depth, int64_t units, float factor, int room)
      : matrix(what), packed(nullptr) {
    if (slim::Fits(rows, depth, units) || !depth || !units) return;
    const int64_t size = product::PackedSize(depth, units);
    float* at = AttentionRoom(room, size);
    product::PackMatrix(what, depth, units, at);
    for (int64_t i = 0; factor != 1 && i < size; ++i) at[i] *= factor;
    packed = at;
  }

  void Times(int64_t rows, int64_t depth, int64_t units, const product::Matrix& left, float* to, int64_t stride,
             bool adds) const {
    if (packed)
      product::MultiplyPacked(rows, depth, units, left, packed, to, stride, adds);
    else
      slim::Multiply(rows, depth, units, left, matrix, to, stride, adds);
  }
};

/* What all products of a call share. */
struct AttentionCall {
  const Attention& node;
  AttentionSizes sizes;
  const float *queries, *keys, *values;
  dropout::Mask mask;
  bool drops;
  float factor;          // of queries
  int64_t block;         // rows of scores that are computed together
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
    constexpr int64_t kElements = 32768, kStrip = 8;
    block = std::max(kElements / std::max<int64_t>(sizes.others, 1) / kStrip * kStrip, kStrip);
    block = std::min(block, sizes.rows);
    for (int64_t i = 0; i < static_cast<int64_t>(node.kernel->inputs.size()); ++i)
      operands.push_back(i == node.scores ? nullptr : &inputs[first + node.InputOf(i)]);
  }

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
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < q.columns; ++j) to[i * q.columns + j] = factor * from[i * q.stride + j];
    return {to, q.columns, false};
  }
  product::Matrix Keys(int64_t product, bool is_transposed) const {
    return {keys + sizes.keys.At(product), sizes.keys.stride, is_transposed};
  }
  /* Of some rows; `keys` are all of a product. */
  void Scores(const Right& keys, int64_t count, const product::Matrix& q, float* to) const {
    const int64_t n = sizes.others, d = sizes.queries.columns;
    if (d)
      keys.Times(count, d, n, q, to, n, false);
    else
      std::memset(to, 0, count * n * sizeof(float));
  }
  product::Matrix Values(int64_t product, bool is_transposed) const {
    return {values + sizes.values.At(product), sizes.values.stride, is_transposed};
  }
};

/* `body(product, kernels of the thread...)`, for all products. */
template <class Worker>
void EachAttention(const AttentionCall& call, int64_t multiplications, const Worker& make) {
  const AttentionSizes& sizes = call.sizes;
  const double columns = sizes.queries.columns + sizes.values.columns;
  const double nanoseconds = sizes.rows * sizes.others * (0.01 * columns * multiplications + 2);
  const int threads = Threads(nanoseconds * sizes.products, sizes.products);
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    auto body = make();
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < sizes.products;) body(i);
  }
}

/* Writes, or adds, what attention makes of all products. */
void RunAttention(const AttentionCall& call, const Stack& mixed, float* to, bool adds) {
  const AttentionSizes& sizes = call.sizes;
  const int64_t n = sizes.others, d = sizes.queries.columns, wide = sizes.values.columns;
  EachAttention(call, 1, [&] {
    auto kernel = std::make_shared<RowKernel>(call.node.kernel, call.operands, std::vector<const TBlob*>(1), 0, call.scores);
    return [&, kernel](int64_t product) {
      const Right keys(call.Keys(product, true), sizes.rows, d, n, 1, 0);
      const Right values(call.Values(product, false), sizes.rows, n, wide, 1, 1);
      float *scores = AttentionRoom(2, call.block * n), *weights = AttentionRoom(3, call.block * n);
      std::vector<const float*> from(call.operands.size(), scores);
      for (int64_t row = 0; row < sizes.rows; row += call.block) {
        const int64_t count = std::min(call.block, sizes.rows - row), first = product * sizes.rows + row;
        call.Scores(keys, count, call.Queries(product, row, count, 4), scores);
        kernel->Run(first, count, from, weights);
        if (call.drops) dropout::ApplyFrom(call.mask, first * n, weights, weights, count * n);
        values.Times(count, n, wide, {weights, n, false}, to + mixed.At(product) + row * mixed.stride,
                     mixed.stride, adds);
      }
    };
  });
}

/* A gradient that is asked for, or null. */
struct Wanted {
  float* at = nullptr;
  bool adds = false;
};

/* Gradients of queries, keys and values, where they are wanted. */
void RunAttentionBackward(const AttentionCall& call, const Stack& mixed, const float* head, Plan* plan,
                          const std::vector<const TBlob*>& operands, const std::vector<const TBlob*>& outputs,
                          size_t made, const Wanted& of_queries, const Wanted& of_keys,
                          const Wanted& of_values) {
  const AttentionSizes& sizes = call.sizes;
  const int64_t n = sizes.others, d = sizes.queries.columns, wide = sizes.values.columns;
  EachAttention(call, 3, [&] {
    auto kernel = std::make_shared<RowKernel>(call.node.kernel, call.operands, std::vector<const TBlob*>(1), 0, call.scores);
    auto backward = std::make_shared<RowKernel>(plan, operands, outputs, made, call.scores);
    return [&, kernel, backward](int64_t product) {
      const Right keys(call.Keys(product, true), sizes.rows, d, n, 1, 0);
      const Right values(call.Values(product, true), sizes.rows, wide, n, 1, 1);
      // By the factor, as gradients of queries are to be; of few rows it is done behind the product.
      const Right back(call.Keys(product, false), sizes.rows, n, d, call.factor, 5);
      float *scores = AttentionRoom(2, call.block * n), *weights = AttentionRoom(3, call.block * n);
      float *gradient = AttentionRoom(6, call.block * n), *dropped = AttentionRoom(7, call.block * n);
      const std::vector<const float*> from(call.operands.size(), scores);
      std::vector<const float*> reads;
      for (const Operand& operand : plan->inputs)
        reads.push_back(operand.source == kHead ? gradient : operand.source == kOutput ? weights : scores);
      for (int64_t row = 0; row < sizes.rows; row += call.block) {
        const int64_t count = std::min(call.block, sizes.rows - row), first = product * sizes.rows + row;
        const product::Matrix q = call.Queries(product, row, count, 4);
        const float* g = head + mixed.At(product) + row * mixed.stride;
        call.Scores(keys, count, q, scores);
        kernel->Run(first, count, from, weights);
        if (of_values.at) {
          const float* with = weights;
          if (call.drops) dropout::ApplyFrom(call.mask, first * n, weights, dropped, count * n), with = dropped;
          MultiplyOne(n, count, wide, {with, n, true}, {g, mixed.stride, false},
                      of_values.at + sizes.values.At(product), sizes.values.stride, of_values.adds || row > 0);
        }
        values.Times(count, wide, n, {g, mixed.stride, false}, gradient, n, false);
        if (call.drops) dropout::ApplyFrom(call.mask, first * n, gradient, gradient, count * n);
        float* slopes = dropped;  // of scores
        backward->Run(first, count, reads, slopes);
        if (of_keys.at && d)
          MultiplyOne(n, count, d, {slopes, n, true}, q, of_keys.at + sizes.keys.At(product), sizes.keys.stride,
                      of_keys.adds || row > 0);
        if (of_queries.at && d) {
          if (!back.packed && call.factor != 1)
            for (int64_t i = 0; i < count * n; ++i) slopes[i] *= call.factor;
          back.Times(count, n, d, {slopes, n, false},
                     of_queries.at + sizes.queries.At(product) + row * sizes.queries.stride,
                     sizes.queries.stride, of_queries.adds);
        }
      }
    };
  });
}

}  // namespace graphopt
