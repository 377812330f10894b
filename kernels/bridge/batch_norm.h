/*
 * BatchNorm's data and gradient brought into one layout before MXNet hands them to oneDNN.
 *
 * oneDNN has fast code for blocks of 8 or 16 channels, of the data and of the gradient alike. MXNet gives
 * it whatever the convolutions around have left: where some have channels in blocks of 8 or 4 and others of
 * 16, as in nets of grouped or narrow convolutions, oneDNN falls back to its reference code, which takes
 * 30 to 200 times as long. A copy costs as much as the fast code.
 */
#pragma once

#include <vector>

#include "layouts.h"

namespace graphopt {

mxnet::FComputeEx plain_batch_norm, plain_batch_norm_gradient;

bool IsFast(int block) { return block == 8 || block == 16; }

/* Of arrays in blocks: how many channels; 0 in rows, -1 where it is something else. */
int BlockOf(const NDArray& array) {
  const Layout* layout = LayoutOf(array);
  if (!layout) return 0;
  const int block = array.shape().ndim() == 4 ? BlockOf(*layout, array.shape()) : 0;
  return block ? block : -1;
}

void Mend(NDArray* array, int block) {
  const int own = BlockOf(*array);
  if (own <= 0 || own == block) return;
  *array = block ? CopyIn(*array, InBlocks(*LayoutOf(*array), array->shape(), block))
                 : array->Reorder2Default();
  mended_layouts.fetch_add(1, std::memory_order_relaxed);
}

int UsualBlock(const NDArray& array) { return array.shape()[1] % 16 ? 0 : 16; }

void BatchNormOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                       const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                       const std::vector<NDArray>& outputs) {
  const int block = BlockOf(inputs[0]);
  if (block <= 0 || IsFast(block))
    return plain_batch_norm(attrs, context, inputs, requests, outputs);
  std::vector<NDArray> mended = inputs;
  Mend(&mended[0], UsualBlock(inputs[0]));
  plain_batch_norm(attrs, context, mended, requests, outputs);
}

/* Inputs: the gradient of the output, mean and variance, the data and more. */
void BatchNormGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                               const std::vector<NDArray>& inputs,
                               const std::vector<OpReqType>& requests,
                               const std::vector<NDArray>& outputs) {
  constexpr size_t kGradient = 0, kData = 3;
  const int gradient = BlockOf(inputs[kGradient]), data = BlockOf(inputs[kData]);
  // One in rows takes the other's layout, which is as good as any that is fast.
  const bool agree = gradient == data || gradient == 0 || data == 0;
  const int common = data > 0 ? data : gradient;
  if (gradient < 0 || data < 0 || (agree && (common == 0 || IsFast(common))))
    return plain_batch_norm_gradient(attrs, context, inputs, requests, outputs);
  const int best = IsFast(data) ? data : IsFast(gradient) ? gradient : UsualBlock(inputs[kData]);
  std::vector<NDArray> mended = inputs;
  Mend(&mended[kGradient], best);
  Mend(&mended[kData], best);
  plain_batch_norm_gradient(attrs, context, mended, requests, outputs);
}

void ReplaceOnArrays(const char* op, mxnet::FComputeEx* plain, const mxnet::FComputeEx& ours) {
  const nnvm::Op* found = nnvm::Op::Get(op);
  const auto& table = nnvm::Op::GetAttr<mxnet::FComputeEx>("FComputeEx<cpu>");
  if (!table.count(found)) return;  // an MXNet without oneDNN
  *plain = table[found];
  SetAttribute<mxnet::FComputeEx>(*found, "FComputeEx<cpu>", ours);
}

void MendBatchNorm() {
  ReplaceOnArrays("BatchNorm", &plain_batch_norm, LegacyFunction(&BatchNormOnArrays));
  ReplaceOnArrays("_backward_BatchNorm", &plain_batch_norm_gradient,
                  LegacyFunction(&BatchNormGradientOnArrays));
}

}  // namespace graphopt
