/*
 * Operators of MXNet that are computed in another way, in every net of the process.
 *
 * Some spare MXNet loops of its own: of boxes (boxes.h, align.h), of concatenation (joins.h), of slices and repetition
 * (slices.h), of nearest upsampling
 * (upsampling.h) and of bilinear resizing (resizing.h). Some spare copies of arrays and changes of their layout: the gradients of relu
 * (rectifiers.h), of concatenation and of upsampling. The others spare it oneDNN's reference code, which takes
 * 10 to 200 times as long. For the gradient of LRN (lrn.h) and for the bias of a deconvolution (deconvolution.h) oneDNN has
 * nothing else. For the rest it has fast
 * code for some of what the convolutions around have left:
 *
 * - BatchNorm: channels in blocks of 8 or 16, of data and gradient alike. Some convolutions like them in
 *   blocks of 8 or 4 and others of 16, so here one is copied, which takes as long as the fast code.
 * - The gradient of a mean over whole images: small ones. It is nothing but one number written everywhere.
 *
 * Gradients to which nothing comes back are mended as well (nothing.h), and those that control flow leaves
 * unwritten (branches.h).
 */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "align_operator.h"
#include "arrays.h"
#include "boxes.h"
#include "branches.h"
#include "deconvolution.h"
#include "joins.h"
#include "layouts.h"
#include "lrn.h"
#include "marked_convolution.h"
#include "nothing.h"
#include "rectifiers.h"
#include "resizing.h"
#include "slices.h"
#include "upsampling.h"

namespace graphopt {

mxnet::FComputeEx plain_batch_norm, plain_batch_norm_gradient, plain_pooling_gradient;

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

/* Writes a number for each image and channel to all its places, where channels lie in blocks. */
void Spread(const float* numbers, int64_t images, int64_t channels, int64_t places, int block,
            float* to) {
  const float share = 1.0f / places;
  const int64_t blocks = images * channels / block;
#pragma omp parallel for num_threads(Threads(blocks * places * block * 0.2, blocks))
  for (int64_t b = 0; b < blocks; ++b) {
    float* at = to + b * places * block;
    for (int64_t i = 0; i < block; ++i) at[i] = numbers[b * block + i] * share;
    if (block == 1)
      std::fill(at + 1, at + places, at[0]);
    else
      for (int64_t place = 1; place < places; ++place)
        std::memcpy(at + place * block, at, block * sizeof(float));
  }
}

/* Inputs of averages: the gradient of the output, the data and the output. */
void PoolingGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                             const std::vector<NDArray>& inputs,
                             const std::vector<OpReqType>& requests,
                             const std::vector<NDArray>& outputs) {
  const bool writes = requests[0] == mxnet::kWriteTo || requests[0] == mxnet::kWriteInplace;
  const mxnet::TShape& shape = outputs[0].shape();
  if (!writes || inputs.size() != 3 || shape.ndim() != 4 || shape.Size() == 0 ||
      outputs[0].dtype() != mshadow::kFloat32 || outputs[0].IsView() ||
      !Flag(attrs, "global_pool") || TextOf(attrs, "pool_type", "max") != "avg")
    return plain_pooling_gradient(attrs, context, inputs, requests, outputs);
  // As the data lie, since gradients from elsewhere are added to it.
  const int block = std::max(BlockOf(inputs[1]), 0);
  // One number for each channel lies in blocks as in rows.
  const NDArray gradient = BlockOf(inputs[0]) > 0 ? inputs[0] : inputs[0].Reorder2Default();
  std::vector<float> numbers(shape[0] * shape[1]);
  std::memcpy(numbers.data(), Raw(gradient).dptr_, numbers.size() * sizeof(float));
  NDArray result = outputs[0];
  if (block)
    result.CreateMKLDNNData(Layout(*LayoutOf(inputs[1])));
  else
    result.InvalidateMKLDNNData(), result.data();
  Spread(numbers.data(), shape[0], shape[1], shape[2] * shape[3], std::max(block, 1),
         static_cast<float*>(Raw(result).dptr_));
}

void ReplaceOnArrays(const char* op, mxnet::FComputeEx* plain, const mxnet::FComputeEx& ours) {
  const nnvm::Op* found = nnvm::Op::Get(op);
  const auto& table = nnvm::Op::GetAttr<mxnet::FComputeEx>("FComputeEx<cpu>");
  if (!table.count(found)) return;  // an MXNet without oneDNN
  *plain = table[found];
  SetAttribute<mxnet::FComputeEx>(*found, "FComputeEx<cpu>", ours);
}

void Replace(const char* op, mxnet::FCompute* plain, const mxnet::FCompute& ours) {
  const nnvm::Op* found = nnvm::Op::Get(op);
  const auto& table = nnvm::Op::GetAttr<mxnet::FCompute>("FCompute<cpu>");
  if (!table.count(found)) return;
  *plain = table[found];
  SetAttribute<mxnet::FCompute>(*found, "FCompute<cpu>", ours);
}

void MendOperators() {
  ReplaceOnArrays("BatchNorm", &plain_batch_norm, LegacyFunction(&BatchNormOnArrays));
  ReplaceOnArrays("_backward_BatchNorm", &plain_batch_norm_gradient,
                  LegacyFunction(&BatchNormGradientOnArrays));
  ReplaceOnArrays("_backward_Pooling", &plain_pooling_gradient,
                  LegacyFunction(&PoolingGradientOnArrays));
  ReplaceOnArrays("_backward_Activation", &plain_activation_gradient,
                  LegacyFunction(&ActivationGradientOnArrays));
  ReplaceOnArrays("_backward_LeakyReLU", &plain_leaky_gradient,
                  LegacyFunction(&LeakyGradientOnArrays));
  ReplaceOnArrays("_backward_LRN", &plain_lrn_gradient, LegacyFunction(&LrnGradientOnArrays));
  LearnLayouts("UpSampling", &plain_upsampling, LegacyFunction(&UpsamplingOnArrays));
  LearnLayouts("_backward_UpSampling", &plain_upsampling_gradient,
               LegacyFunction(&UpsamplingGradientOnArrays));
  ReplaceOnArrays("Concat", &plain_concat, LegacyFunction(&ConcatOnArrays));
  ReplaceOnArrays("_backward_Concat", &plain_concat_gradient,
                  LegacyFunction(&ConcatGradientOnArrays));
  ReplaceOnArrays("Convolution", &plain_convolution, LegacyFunction(&ConvolutionOnArrays));
  ReplaceOnArrays("_backward_Convolution", &plain_convolution_gradient,
                  LegacyFunction(&ConvolutionGradientOnArrays));
  ReplaceOnArrays("Deconvolution", &plain_deconvolution, LegacyFunction(&DeconvolutionOnArrays));
  Replace("Concat", &plain_concat_on_rows, LegacyFunction(&ConcatOnRows));
  Replace("_backward_Concat", &plain_concat_gradient_on_rows,
          LegacyFunction(&ConcatGradientOnRows));
  ReplaceStateful("SliceChannel", &plain_split, LegacyFunction(&SplitOnRows));
  ReplaceStateful("_backward_SliceChannel", &plain_split_gradient, LegacyFunction(&SplitGradientOnRows));
  Replace("stack", &plain_stack, LegacyFunction(&StackOnRows));
  Replace("_backward_stack", &plain_stack_gradient, LegacyFunction(&StackGradientOnRows));
  Replace("slice_axis", &plain_slice_axis, LegacyFunction(&SliceAxisOnRows));
  Replace("repeat", &plain_repeat, LegacyFunction(&RepeatOnRows));
  Replace("_backward_repeat", &plain_repeat_gradient, LegacyFunction(&RepeatGradientOnRows));
  Replace("_contrib_box_nms", &plain_box_nms, LegacyFunction(&BoxNms));
  Replace("_contrib_ROIAlign", &plain_align, LegacyFunction(&AlignOnRows));
  Replace("_contrib_BilinearResize2D", &plain_resizing, LegacyFunction(&ResizingOnRows));
  Replace("_backward_contrib_BilinearResize2D", &plain_resizing_gradient, LegacyFunction(&ResizingGradientOnRows));
  PassZeros();
  WriteAllGradients();
}

}  // namespace graphopt
