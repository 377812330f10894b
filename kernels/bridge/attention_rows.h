/*
 * What a thread has for attention: kernels over rows of scores in its memory, and packed matrices.
 */
#pragma once

#include <algorithm>
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
      : function_(Ready(plan)), made_(made),
        whole_(static_cast<void*>(nullptr), scores, mxnet::Context::kCPU, mshadow::kFloat32, 0) {
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
        packs_(!slim::Fits(rows, units_) && depth_ && units_) {}

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

}  // namespace graphopt
