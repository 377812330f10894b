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

/* What a call reads and writes, all of it in one layout or in rows. Has to live as long as the call. */
class Laid {
 public:
  std::vector<TBlob> in, out;

  /* May change how outputs are laid out, and what lies in those that are not added to. */
  Laid(const Plan& plan, const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
       const std::vector<NDArray>& outputs) {
    Choose(plan, inputs, requests, outputs);
    copies_.reserve(inputs.size());
    // Inputs first: an output may share their memory.
    for (const NDArray& array : inputs) in.push_back(Input(array));
    for (size_t i = 0; i < outputs.size(); ++i) out.push_back(Output(outputs[i], requests[i]));
  }

 private:
  /* Rows, unless the kernel does not mind, and there is a layout to choose. */
  void Choose(const Plan& plan, const std::vector<NDArray>& inputs,
              const std::vector<OpReqType>& requests, const std::vector<NDArray>& outputs) {
    if (!plan.is_flat) return;
    const NDArray* first = nullptr;
    for (size_t i = 0; i < inputs.size() && !first; ++i) {
      // A gradient in another layout than the values it is of is what a BatchNorm has no fast code for.
      if (plan.backward && plan.inputs[i].source == kHead) continue;
      const Layout* layout = LayoutOf(inputs[i]);
      if (layout && IsDense(*layout, inputs[i].shape())) first = &inputs[i];
    }
    if (!first) return;
    const auto fits = [&](const NDArray& array) {
      return array.shape().Size() == 1 ||
             (array.shape() == first->shape() && array.dtype() == mshadow::kFloat32 &&
              array.byte_offset_ == 0 && !array.IsView());
    };
    if (!std::all_of(inputs.begin(), inputs.end(), fits) ||
        !std::all_of(outputs.begin(), outputs.end(), fits) ||
        std::find(requests.begin(), requests.end(), mxnet::kAddTo) != requests.end())
      return;
    layout_ = *LayoutOf(*first);  // a copy: an output may have the array's memory and change it
    size_ = first->shape().Size();
    in_rows_ = false;
    calls_in_blocks.fetch_add(1, std::memory_order_relaxed);
  }

  bool StaysInRows(const NDArray& array) const { return in_rows_ || array.shape().Size() != size_; }

  TBlob Input(const NDArray& array) {
    const Layout* own = LayoutOf(array);
    if (StaysInRows(array)) return own ? Copy(array.Reorder2Default()).data() : array.data();
    if (own && AreEqual(*own, layout_)) return Raw(array);
    return Raw(Copy(CopyIn(array, layout_)));
  }

  TBlob Output(const NDArray& given, OpReqType request) {
    NDArray& array = const_cast<NDArray&>(given);
    if (!StaysInRows(array) && request != mxnet::kNullOp) {
      array.CreateMKLDNNData(layout_);
      return Raw(array);
    }
    if (request == mxnet::kAddTo && LayoutOf(array))
      array.ptr_->Reorder2Default();
    else if (request != mxnet::kNullOp)
      array.InvalidateMKLDNNData();
    else if (LayoutOf(array))
      return Raw(array);  // nobody looks at it
    return array.data();
  }

  NDArray& Copy(NDArray array) {
    copies_.push_back(std::move(array));
    return copies_.back();
  }

  bool in_rows_ = true;
  Layout layout_;
  size_t size_ = 0;
  std::vector<NDArray> copies_;
};

void ForwardOnArrays(const NodeAttrs& attrs, const mxnet::OpContext&,
                     const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                     const std::vector<NDArray>& outputs) {
  Laid laid(*FindPlan(attrs, false), inputs, requests, outputs);
  Run(ForwardCall(attrs, laid.in, requests, laid.out));
}

void BackwardOnArrays(const NodeAttrs& attrs, const mxnet::OpContext&,
                      const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                      const std::vector<NDArray>& outputs) {
  Laid laid(*FindPlan(attrs, true), inputs, requests, outputs);
  Run(BackwardCall(attrs, laid.in, requests, laid.out));
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
