/*
 * MXNet's Deconvolution, with its bias added here.
 *
 * oneDNN has no code of its own for a bias behind a deconvolution: it looks each number's channel up by itself, which
 * takes longer than the deconvolution. Without a bias it is asked for the rest, so the same sums come out.
 */
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include "blocked_arrays.h"
#include "marked_convolution.h"

namespace mxnet {
namespace op {
/* As MXNet has it, in a header that its wheel has not; as far as it is looked at. */
struct DeconvolutionParam {
  mxnet::TShape kernel, stride, dilate, pad, adj, target_shape;
  uint32_t num_filter, num_group;
  uint64_t workspace;
  bool no_bias;
};
}  // namespace op
}  // namespace mxnet

namespace graphopt {

mxnet::FComputeEx plain_deconvolution;

/* A node's attributes with parameters that can be changed; all else is the node's, and only read. */
class OtherParameters {
 public:
  explicit OtherParameters(const NodeAttrs& attrs) {
    std::memcpy(&memory_, &attrs, offsetof(LegacyNode, inputs));
    new (&View().parsed) dmlc::any(reinterpret_cast<const LegacyNode*>(&attrs)->parsed);
  }
  OtherParameters(const OtherParameters&) = delete;
  ~OtherParameters() { View().parsed.~any(); }
  const NodeAttrs& Attrs() const { return reinterpret_cast<const NodeAttrs&>(memory_); }
  template <typename Param>
  Param& Changed() {
    return const_cast<Param&>(dmlc::unsafe_get<Param>(View().parsed));
  }

 private:
  LegacyNode& View() { return reinterpret_cast<LegacyNode&>(memory_); }

  std::aligned_storage_t<sizeof(LegacyNode), alignof(LegacyNode)> memory_;
};

/* Adds a number for each channel to all its places, where channels lie in blocks; in rows those have one. */
template <int64_t kBlock>
void AddToChannels(const float* numbers, int64_t images, int64_t channels, int64_t places, float* to) {
  const int64_t blocks = channels / kBlock;
  const int threads = Threads(0.1 * images * channels * places, images * blocks);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < images * blocks; ++part) {
    float added[kBlock];
    std::copy_n(numbers + part % blocks * kBlock, kBlock, added);
    float* at = to + part * places * kBlock;
    for (int64_t place = 0; place < places; ++place, at += kBlock)
      for (int64_t lane = 0; lane < kBlock; ++lane) at[lane] += added[lane];
  }
}

/* Adds a bias to images as they lie. */
void AddBias(const NDArray& images, const float* bias) {
  const mxnet::TShape& shape = images.shape();
  const Layout* layout = LayoutOf(images);
  const int block = layout ? BlockOf(*layout, shape) : 1;
  const int64_t places = shape.Size() / (shape[0] * shape[1]);
  const auto add = [&](auto lanes, float* to) {
    AddToChannels<decltype(lanes)::value>(bias, shape[0], shape[1], places, to);
  };
  const auto to = static_cast<float*>(Raw(images).dptr_);
  switch (block) {
    case 1: return add(std::integral_constant<int64_t, 1>(), to);
    case 4: return add(std::integral_constant<int64_t, 4>(), to);
    case 8: return add(std::integral_constant<int64_t, 8>(), to);
    case 16: return add(std::integral_constant<int64_t, 16>(), to);
  }
  const NDArray rows = images.Reorder2Default();
  float* const all = WriteRows(images);
  std::memcpy(all, rows.data().dptr_, shape.Size() * sizeof(float));
  add(std::integral_constant<int64_t, 1>(), all);
}

/* Inputs: images, filters and maybe a bias. */
void DeconvolutionOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<NDArray>& inputs,
                           const std::vector<OpReqType>& requests, const std::vector<NDArray>& outputs) {
  const NDArray& images = outputs[0];
  if (inputs.size() != 3 || requests[0] != mxnet::kWriteTo || images.dtype() != mshadow::kFloat32 ||
      !IsWhole(images) || images.shape().ndim() < 3 || images.shape().Size() == 0)
    return plain_deconvolution(attrs, KeepingRows(context, inputs[1]), inputs, requests, outputs);
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  OtherParameters without(attrs);
  without.Changed<mxnet::op::DeconvolutionParam>().no_bias = true;
  plain_deconvolution(without.Attrs(), KeepingRows(context, inputs[1]), {inputs[0], inputs[1]}, requests, outputs);
  AddBias(images, Floats(InRows(inputs[2])));
}

}  // namespace graphopt
