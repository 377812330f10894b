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
  /* Of the inputs those that are null are rows of scores, as is output `made`. Nobody reads the others, unless they
   * get a place. */
  RowKernel(Plan* plan, std::vector<const TBlob*> inputs, std::vector<const TBlob*> outputs, size_t made,
            const mxnet::TShape& scores)
      : function_(Ready(plan)), made_(made), whole_(static_cast<void*>(nullptr), scores, mxnet::Context::kCPU, mshadow::kFloat32, 0) {
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

  /* Where another output is, all of it. */
  void Place(size_t output, void* at) { targets_[output] = {static_cast<char*>(at), false}; }

  /* Rows `first` to `first + count`; `from` has those of each operand that is in memory of this thread. */
  void Run(int64_t first, int64_t count, const std::vector<const float*>& from, float* to) {
    const int64_t before = first * space_.length;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (space_.operands[i] == &parts_[i]) parts_[i].dptr_ = const_cast<float*>(from[i]) - before;
    targets_[made_].base = reinterpret_cast<char*>(to - before);
    Walk(space_, function_, targets_, first, first + count, 0, space_.length, Aligned<char>(scratch_.data()));
  }

 private:
  Function function_;
  size_t made_;
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
  constexpr size_t kMostKept = 1 << 20;  // floats, unless a call needs more
  const size_t size = floats + kLineBytes / sizeof(float);
  if (room.size() < size || room.size() > std::max(size, kMostKept)) {
    std::vector<float>().swap(room);  // first, as growing would copy it
    room.resize(size);
  }
  return Aligned<float>(room.data());
}

/* Matrices that rows are multiplied by, one at a time: packed, unless rows are few. */
class Right {
 public:
  /* `is_transposed`: the matrices have a row for each of the `units`. */
  Right(const Stack& stack, const float* data, bool is_transposed, int64_t rows, float factor, int room)
      : stack_(stack), data_(data), is_transposed_(is_transposed), factor_(factor), room_(room),
        depth_(is_transposed ? stack.columns : stack.rows), units_(is_transposed ? stack.rows : stack.columns),
        packs_(!slim::Fits(rows, depth_, units_) && depth_ && units_) {}

  bool packs() const { return packs_; }

  /* to = left (rows x depth) times the matrix of a product. */
  void Times(int64_t product, int64_t rows, const product::Matrix& left, float* to, int64_t stride, bool adds) {
    const product::Matrix matrix{data_ + stack_.At(product), stack_.stride, is_transposed_};
    if (!packs_) return slim::Multiply(rows, depth_, units_, left, matrix, to, stride, adds);
    if (product != product_) Pack(matrix, product);
    product::MultiplyPacked(rows, depth_, units_, left, packed_, to, stride, adds);
  }

 private:
  void Pack(const product::Matrix& matrix, int64_t product) {
    const int64_t size = product::PackedSize(depth_, units_);
    packed_ = AttentionRoom(room_, size);
    product::PackMatrix(matrix, depth_, units_, packed_);
    for (int64_t i = 0; factor_ != 1 && i < size; ++i) packed_[i] *= factor_;
    product_ = product;
  }

  const Stack stack_;
  const float* data_;
  const bool is_transposed_;
  const float factor_;
  const int room_;
  const int64_t depth_, units_;
  const bool packs_;
  int64_t product_ = -1;
  float* packed_ = nullptr;
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
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < q.columns; ++j) to[i * q.columns + j] = factor * from[i * q.stride + j];
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

/* A gradient that is asked for, or null. */
struct Wanted {
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
  size_t made;  // which of the outputs is the gradient of scores
  Wanted queries, keys, values;

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
  /* Gives a place to gradients of what the kernel reads besides scores: sums of a slot, arrays of as many numbers as
   * there are scores, or, where they are added to, some rows of these. */
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
        added_[i].resize(rows.all() * n_ * size);
        kernel_.Place(i, added_[i].data() - weights_.FirstOf(rows) * n_ * size);
      }
    }
  }

  void AddRows(const SomeRows& rows) {
    for (size_t i = 0; i < added_.size(); ++i)
      if (!added_[i].empty())
        AddTile(*asked_.outputs[i], added_[i].data(), weights_.FirstOf(rows) * n_, rows.all() * n_);
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
