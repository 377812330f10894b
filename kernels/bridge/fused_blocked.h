/*
 * Fused kernels over arrays as oneDNN lays them out.
 *
 * Around convolutions MXNet keeps arrays in blocks of channels. An operator that knows rows only gets
 * copies of them, and whoever reads what it writes makes blocks of it again: on the way through a
 * net of depthwise convolutions that takes as long as all else. What computes each element from those
 * at the same place need not know where the place is: if all arrays have one layout, without gaps, such
 * a kernel runs over them as they lie.
 *
 * To be told of layouts an operator has to be an FComputeEx that says TIsMKLDNN; then it gets arrays
 * rather than their data, and brings into rows itself what it wants to have there.
 */
#pragma once

#include <deque>
#include <vector>

#include "fused.h"
#include "layouts.h"

namespace graphopt {

/* Numbers of channels for several pixels at a time: each block of them repeated, that a kernel over blocks has rows
 * longer than a block. */
class Repeated {
 public:
  /* Of `given`, an array of blocks of `block` elements. */
  Repeated(const TBlob& given, int64_t block, int64_t times)
      : given_(given), bytes_(block * ItemSize(given.type_flag_)), times_(times),
        memory_(given.shape_.Size() * ItemSize(given.type_flag_) * times) {}

  void Fill() {
    const char* from = static_cast<const char*>(given_.dptr_);
    for (char* to = memory_.data(); to < memory_.data() + memory_.size(); from += bytes_)
      for (int64_t k = 0; k < times_; ++k, to += bytes_) std::memcpy(to, from, bytes_);
  }

  TBlob blob() {
    TBlob found = given_;
    found.dptr_ = memory_.data();
    return found;
  }

  /* Of float32: what was computed for each of the pixels goes to the array itself, summed up if it `adds`. */
  void Deliver(bool adds, OpReqType request) {
    const int64_t block = bytes_ / sizeof(float);
    float* to = static_cast<float*>(given_.dptr_);
    const float* from = reinterpret_cast<const float*>(memory_.data());
    const int64_t count = adds ? times_ : 1;
    for (int64_t size = given_.shape_.Size(); size > 0; size -= block, to += block, from += times_ * block)
      for (int64_t i = 0; i < block; ++i) {
        float sum = request == mxnet::kAddTo ? to[i] : 0;
        for (int64_t k = 0; k < count; ++k) sum += from[k * block + i];
        to[i] = sum;
      }
  }

 private:
  TBlob given_;
  int64_t bytes_, times_;
  std::vector<char> memory_;
};

/* What a call reads and writes, all that runs along all axes in one layout. Lives as long as the call. */
class Laid {
 public:
  Plan* plan;  // for arrays that lie so
  std::vector<TBlob> in, out;
  std::vector<OpReqType> requests;  // of `out`

  /* May change how outputs are laid out, and what lies in those that are not added to. */
  Laid(Plan* given, const std::vector<NDArray>& inputs, const std::vector<OpReqType>& wanted,
       const std::vector<NDArray>& outputs)
      : plan(given), requests(wanted), given_(*given), written_(outputs.size(), nullptr) {
    for (size_t i = 0; i < plan->outputs.size(); ++i)
      written_[plan->backward ? plan->outputs[i].index : i] = &plan->outputs[i];
    Choose(inputs, requests, outputs);
    copies_.reserve(inputs.size());
    // Inputs first: an output may share their memory.
    for (size_t i = 0; i < inputs.size(); ++i) {
      TBlob blob = Input(inputs[i], given->inputs[i]);
      if (IsRepeated(plan->inputs[i])) {
        repeated_.emplace_back(blob, block_, repeats_);
        repeated_.back().Fill();
        blob = repeated_.back().blob();
      }
      in.push_back(Shaped(blob, &plan->inputs[i]));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      TBlob blob = Output(outputs[i], requests[i], written_[i]);
      const Operand* operand = InPlan(i);
      if (operand && IsRepeated(*operand) && requests[i] != mxnet::kNullOp) {
        repeated_.emplace_back(blob, block_, repeats_);
        delivered_.push_back({&repeated_.back(), operand->adds, requests[i]});
        requests[i] = mxnet::kWriteTo;
        blob = repeated_.back().blob();
      }
      out.push_back(Shaped(blob, operand));
    }
  }

  /* After the call. */
  void Finish() {
    for (const Delivery& each : delivered_) each.from->Deliver(each.adds, each.request);
  }

 private:
  /* Rows, unless the kernel does not mind, and there is a layout to choose. */
  void Choose(const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
              const std::vector<NDArray>& outputs) {
    if (!plan->is_flat && !plan->is_by_channels) return;
    const NDArray* first = nullptr;
    for (size_t i = 0; i < inputs.size() && !first; ++i)
      if (Gives(inputs[i], plan->inputs[i])) first = &inputs[i];
    if (!first) return;
    const auto fits = [first](const NDArray& array) {
      return array.shape() == first->shape() && array.dtype() == mshadow::kFloat32 &&
             array.byte_offset_ == 0 && !array.IsView();
    };
    for (size_t i = 0; i < inputs.size(); ++i)
      if (IsFull(plan->inputs[i]) && !fits(inputs[i])) return;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (written_[i] && IsFull(*written_[i]) && (!fits(outputs[i]) || requests[i] == mxnet::kAddTo)) return;
    layout_ = *LayoutOf(*first);  // a copy: an output may have the array's memory and change it
    in_rows_ = false;
    calls_in_blocks.fetch_add(1, std::memory_order_relaxed);
    if (plan->is_flat) return;
    const mxnet::TShape& shape = first->shape();
    block_ = BlockOf(layout_, shape);
    for (int d = 0; d < shape.ndim(); ++d) extents_.push_back(d == 1 ? shape[d] / block_ : shape[d]);
    extents_.push_back(block_);
    plan = PlanInBlocks(*plan);
    Lengthen(outputs);
  }

  /* Rows of several pixels, where nothing but whole arrays runs along pixels: their channels lie side by side. */
  void Lengthen(const std::vector<NDArray>& outputs) {
    constexpr int64_t kLongest = 32;  // pixels
    const int last = plan->rank - 1;
    const auto fits = [this, last](const Operand& operand) {
      return graphopt::IsFull(operand, plan->rank) ||
             std::none_of(operand.axes.begin(), operand.axes.end(), [last](int d) { return d >= 2 && d < last; });
    };
    if (!AllOperands(*plan, fits)) return;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (InPlan(i) && !IsFull(*written_[i]) && outputs[i].dtype() != mshadow::kFloat32) return;
    int64_t pixels = 1;
    for (int d = 2; d < last; ++d) pixels *= extents_[d];
    repeats_ = std::max<int64_t>(1, std::min(kLongest, pixels));
    while (pixels % repeats_ != 0) --repeats_;
    std::fill(extents_.begin() + 2, extents_.end(), 1);
    extents_[last - 1] = pixels / repeats_;
    extents_[last] = repeats_ * block_;
  }

  /* Of the plan over blocks: whether an operand has a number for each channel, and none for pixels. */
  bool IsRepeated(const Operand& operand) const {
    return repeats_ > 1 && !graphopt::IsFull(operand, plan->rank) &&
           std::find(operand.axes.begin(), operand.axes.end(), plan->rank - 1) != operand.axes.end();
  }

  /* Whether all others may be laid out as an input is. */
  bool Gives(const NDArray& array, const Operand& operand) const {
    // A gradient in another layout than the values it is of is what a BatchNorm has no fast code for.
    if (!IsFull(operand) || (plan->backward && operand.source == kHead)) return false;
    const Layout* layout = LayoutOf(array);
    return layout && (plan->is_flat ? IsDense(*layout, array.shape())
                                    : BlockOf(*layout, array.shape()) > 0);
  }

  bool IsFull(const Operand& operand) const { return graphopt::IsFull(operand, given_.rank); }

  TBlob Input(const NDArray& array, const Operand& operand) {
    const Layout* own = LayoutOf(array);
    if (in_rows_ || !IsFull(operand)) return own ? Copy(array.Reorder2Default()).data() : array.data();
    if (own && AreEqual(*own, layout_)) return Raw(array);
    return Raw(Copy(CopyIn(array, layout_)));
  }

  TBlob Output(const NDArray& given, OpReqType request, const Operand* operand) {
    NDArray& array = const_cast<NDArray&>(given);
    if (!in_rows_ && operand && IsFull(*operand) && request != mxnet::kNullOp) {
      array.CreateMKLDNNData(layout_);
      return Raw(array);
    }
    return AsRows(given, request);
  }

  /* What an output of the node is to the plan that was chosen. */
  const Operand* InPlan(size_t output) const {
    return written_[output] ? &plan->outputs[written_[output] - given_.outputs.data()] : nullptr;
  }

  /* With the axes that the kernel over blocks has. */
  TBlob Shaped(TBlob blob, const Operand* operand) const {
    if (extents_.empty() || !operand) return blob;
    mxnet::TShape shape(static_cast<int>(operand->axes.size()), 1);
    for (int d = 0; d < shape.ndim(); ++d)
      if (operand->axes[d] >= 0) shape[d] = extents_[operand->axes[d]];
    blob.shape_ = shape;
    return blob;
  }

  NDArray& Copy(NDArray array) {
    copies_.push_back(std::move(array));
    return copies_.back();
  }

  const Plan& given_;
  std::vector<const Operand*> written_;  // what each output of the node is to the plan it was given
  bool in_rows_ = true;
  Layout layout_;
  std::vector<int64_t> extents_;         // of the axes of the plan, where it is one over blocks
  int64_t block_ = 1, repeats_ = 1;      // channels, and pixels that a row of the kernel has
  struct Delivery {
    Repeated* from;
    bool adds;
    OpReqType request;
  };
  std::deque<Repeated> repeated_;        // a deque: they stay where they are
  std::vector<Delivery> delivered_;
  std::vector<NDArray> copies_;
};

void ForwardOnArrays(const NodeAttrs& attrs, const mxnet::OpContext&,
                     const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                     const std::vector<NDArray>& outputs) {
  Laid laid(FindPlan(attrs, false), inputs, requests, outputs);
  Run(ForwardCall(laid.plan, laid.in, laid.requests, laid.out));
  laid.Finish();
}

void BackwardOnArrays(const NodeAttrs& attrs, const mxnet::OpContext&,
                      const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                      const std::vector<NDArray>& outputs) {
  Plan* plan = FindPlan(attrs, true);
  Laid laid(plan, inputs, requests, outputs);
  Call call = BackwardCall(laid.plan, HasBackwardScratch(attrs, *plan), laid.in, laid.requests, laid.out);
  // Planned for rows; how much it takes in blocks is another matter.
  if (laid.plan != plan) call.scratch = nullptr;
  Run(call);
  laid.Finish();
}

/* On the CPU arrays as they are; sparse ones made dense by MXNet. */
bool StorageTypes(const NodeAttrs&, const int device, mxnet::DispatchMode* mode,
                  std::vector<int>* in, std::vector<int>* out) {
  bool dense = true;
  for (int& type : *in) {
    if (type == mxnet::kUndefinedStorage) type = mxnet::kDefaultStorage;
    dense &= type == mxnet::kDefaultStorage;
  }
  for (int& type : *out) {
    if (type == mxnet::kUndefinedStorage) type = mxnet::kDefaultStorage;
    dense &= type == mxnet::kDefaultStorage;
  }
  *mode = !dense ? mxnet::DispatchMode::kFComputeFallback
                 : device == mshadow::cpu::kDevMask ? mxnet::DispatchMode::kFComputeEx
                                                    : mxnet::DispatchMode::kFCompute;
  return true;
}

void DescribeLayouts(const nnvm::Op& op, const mxnet::FComputeEx& compute) {
  SetAttribute<mxnet::FInferStorageType>(op, "FInferStorageType", LegacyFunction(&StorageTypes));
  SetAttribute<mxnet::FComputeEx>(op, "FComputeEx<cpu>", compute);
  SetAttribute<bool>(op, "TIsMKLDNN", true);
}

}  // namespace graphopt
