/*
 * MXNet's nearest upsampling and its gradient, in blocks of channels or in rows as the images lie.
 *
 * MXNet knows rows only, one number after the other, and has images brought there and back between
 * convolutions.
 */
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "arrays.h"
#include "fused_blocked.h"
#include "joins.h"
#include "layouts.h"
#include "rectifiers.h"

namespace graphopt {

mxnet::FCompute plain_upsampling, plain_upsampling_gradient;

/* Images, and how often each pixel is to be there in each direction; of pixels with so many lanes. */
struct Upsampling {
  int64_t planes, height, width, lanes, scale;

  /* Each line of an image is written several times, one after the other. */
  template <int64_t kLanes>
  void Forward(const float* from, float* to) const {
    const int64_t wide = width * scale * kLanes;
#pragma omp parallel for num_threads(Threads(Cost(), planes * height))
    for (int64_t line = 0; line < planes * height; ++line) {
      const float* pixel = from + line * width * kLanes;
      float *begin = to + line * scale * wide, *at = begin;
      for (int64_t x = 0; x < width; ++x, pixel += kLanes)
        for (int64_t times = 0; times < scale; ++times, at += kLanes)
          std::memcpy(at, pixel, kLanes * sizeof(float));
      for (int64_t copy = 1; copy < scale; ++copy)
        std::memcpy(begin + copy * wide, begin, wide * sizeof(float));
    }
  }

  /* Sums line by line, as MXNet adds. */
  template <int64_t kLanes>
  void Backward(const float* from, float* to) const {
    const int64_t wide = width * scale * kLanes;
#pragma omp parallel for num_threads(Threads(Cost(), planes * height))
    for (int64_t line = 0; line < planes * height; ++line) {
      const float* first = from + line * scale * wide;
      float* pixel = to + line * width * kLanes;
      for (int64_t x = 0; x < width; ++x, pixel += kLanes) {
        float sum[kLanes] = {};
        for (int64_t y = 0; y < scale; ++y) {
          const float* at = first + y * wide + x * scale * kLanes;
          for (int64_t i = 0; i < scale; ++i, at += kLanes)
#pragma omp simd
            for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += at[lane];
        }
        std::memcpy(pixel, sum, sizeof(sum));
      }
    }
  }

  void Run(bool is_backward, const float* from, float* to) const {
    mended_calls.fetch_add(1, std::memory_order_relaxed);
    auto run = [&](auto constant) {
      constexpr int64_t kLanes = decltype(constant)::value;
      is_backward ? Backward<kLanes>(from, to) : Forward<kLanes>(from, to);
    };
    switch (lanes) {
      case 16: return run(std::integral_constant<int64_t, 16>());
      case 8: return run(std::integral_constant<int64_t, 8>());
      case 4: return run(std::integral_constant<int64_t, 4>());
      default: return run(std::integral_constant<int64_t, 1>());
    }
  }

  double Cost() const { return 0.2 * planes * height * width * lanes * scale * scale; }
};

/* Whether it is what is computed here: of one array of images, which becomes another. */
bool CanUpsample(const NodeAttrs& attrs, const std::vector<NDArray>& inputs,
                 const std::vector<OpReqType>& requests, const std::vector<NDArray>& outputs) {
  return TextOf(attrs, "sample_type", "") == "nearest" && inputs.size() == 1 &&
         outputs.size() == 1 && requests[0] == mxnet::kWriteTo && IsPlainOrDense(inputs[0]) &&
         BlockOf(inputs[0]) >= 0 && outputs[0].storage_type() == mxnet::kDefaultStorage &&
         outputs[0].dtype() == mshadow::kFloat32 && !outputs[0].IsView() &&
         outputs[0].shape().Size() > 0;
}

void UpsampleOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                      const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                      const std::vector<NDArray>& outputs, bool is_backward) {
  if (!CanUpsample(attrs, inputs, requests, outputs)) {
    const mxnet::FCompute& plain = is_backward ? plain_upsampling_gradient : plain_upsampling;
    std::vector<NDArray> rows;
    for (const NDArray& input : inputs) rows.push_back(InRows(input));
    return plain(attrs, context, DataOf(rows), requests, RowsOf(outputs, requests));
  }
  const int block = BlockOf(inputs[0]);
  NDArray result = outputs[0];
  const mxnet::TShape &shape = result.shape(), &small = is_backward ? shape : inputs[0].shape();
  if (block)
    result.CreateMKLDNNData(InBlocks(RowLayout(shape), shape, block));
  else
    result.InvalidateMKLDNNData(), result.data();
  const int64_t lanes = std::max(block, 1);
  const int64_t scale = std::strtol(TextOf(attrs, "scale", "1").c_str(), nullptr, 10);
  const Upsampling images{small[0] * small[1] / lanes, small[2], small[3], lanes, scale};
  images.Run(is_backward, static_cast<const float*>(Raw(inputs[0]).dptr_),
             static_cast<float*>(Raw(result).dptr_));
}

void UpsamplingOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                        const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                        const std::vector<NDArray>& outputs) {
  UpsampleOnArrays(attrs, context, inputs, requests, outputs, false);
}

/* Input: the gradient of the output. */
void UpsamplingGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                                const std::vector<NDArray>& inputs,
                                const std::vector<OpReqType>& requests,
                                const std::vector<NDArray>& outputs) {
  UpsampleOnArrays(attrs, context, inputs, requests, outputs, true);
}

/* An operator that knew rows only learns of layouts. */
void LearnLayouts(const char* op, mxnet::FCompute* plain, const mxnet::FComputeEx& ours) {
  const nnvm::Op* found = nnvm::Op::Get(op);
  const auto& table = nnvm::Op::GetAttr<mxnet::FCompute>("FCompute<cpu>");
  if (!table.count(found)) return;
  *plain = table[found];
  DescribeLayouts(*found, ours);
}

}  // namespace graphopt
