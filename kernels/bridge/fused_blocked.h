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

#include <vector>

#include "fused.h"
#include "layouts.h"

namespace graphopt {

/* What a call reads and writes, all that runs along all axes in one layout. Lives as long as the call. */
class Laid {
 public:
  Plan* plan;  // for arrays that lie so
  std::vector<TBlob> in, out;

  /* May change how outputs are laid out, and what lies in those that are not added to. */
  Laid(Plan* given, const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
       const std::vector<NDArray>& outputs)
      : plan(given), given_(*given), written_(outputs.size(), nullptr) {
    for (size_t i = 0; i < plan->outputs.size(); ++i)
      written_[plan->backward ? plan->outputs[i].index : i] = &plan->outputs[i];
    Choose(inputs, requests, outputs);
    copies_.reserve(inputs.size());
    // Inputs first: an output may share their memory.
    for (size_t i = 0; i < inputs.size(); ++i)
      in.push_back(Shaped(Input(inputs[i], given->inputs[i]), &plan->inputs[i]));
    for (size_t i = 0; i < outputs.size(); ++i)
      out.push_back(Shaped(Output(outputs[i], requests[i], written_[i]), InPlan(i)));
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
    const int block = BlockOf(layout_, shape);
    for (int d = 0; d < shape.ndim(); ++d) extents_.push_back(d == 1 ? shape[d] / block : shape[d]);
    extents_.push_back(block);
    plan = PlanInBlocks(*plan);
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
  std::vector<NDArray> copies_;
};

void ForwardOnArrays(const NodeAttrs& attrs, const mxnet::OpContext&,
                     const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                     const std::vector<NDArray>& outputs) {
  Laid laid(FindPlan(attrs, false), inputs, requests, outputs);
  Run(ForwardCall(laid.plan, laid.in, requests, laid.out));
}

void BackwardOnArrays(const NodeAttrs& attrs, const mxnet::OpContext&,
                      const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                      const std::vector<NDArray>& outputs) {
  Plan* plan = FindPlan(attrs, true);
  Laid laid(plan, inputs, requests, outputs);
  Call call = BackwardCall(laid.plan, HasBackwardScratch(attrs, *plan), laid.in, requests, laid.out);
  // Planned for rows; how much it takes in blocks is another matter.
  if (laid.plan != plan) call.scratch = nullptr;
  Run(call);
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
