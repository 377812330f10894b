/*
 * The gradient of relu and of a leaky one, where it lies: MXNet has oneDNN write it to other memory and
 * copies it back, and brings what was computed into the layout of the gradient, rows for one that comes from a
 * concatenation.
 */
#pragma once

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "arrays.h"
#include "layouts.h"

namespace graphopt {

mxnet::FComputeEx plain_activation_gradient, plain_leaky_gradient;

/* `kIsLeaky`: with a slope below zero, else nothing passes there. As in oneDNN all passes where the
 * data is NaN. */
template <bool kIsLeaky>
void Rectify(const float* gradient, const float* data, float slope, int64_t size, float* to) {
  constexpr int64_t kAtOnce = 16384;
  const int64_t parts = (size + kAtOnce - 1) / kAtOnce;
  const int threads = Threads(0.3 * size, parts);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t end = std::min((part + 1) * kAtOnce, size);
    // No branches, as signs are all over the place.
#pragma omp simd
    for (int64_t i = part * kAtOnce; i < end; ++i) {
      const float passed = gradient[i], otherwise = kIsLeaky ? slope * passed : 0.0f;
      to[i] = data[i] <= 0 ? otherwise : passed;
    }
  }
}

/* Whether an array may be read and written as its memory lies. */
bool IsPlainOrDense(const NDArray& array) {
  const Layout* layout = LayoutOf(array);
  return array.storage_type() == mxnet::kDefaultStorage && array.dtype() == mshadow::kFloat32 &&
         !array.IsView() && (!layout || IsDense(*layout, array.shape()));
}

/* `data`: what was computed, or computed from; its sign tells where gradients pass. */
void RectifierGradient(const NDArray& gradient, const NDArray& data, float slope,
                       const NDArray& output) {
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  NDArray from = gradient, sign = data, to = output;
  // Convolutions leave blocks and want them; rows come from elsewhere.
  const Layout* wanted = LayoutOf(data) ? LayoutOf(data) : LayoutOf(gradient);
  if (wanted) {
    const Layout layout = *wanted;
    for (NDArray* array : {&from, &sign})
      if (!LayoutOf(*array) || !AreEqual(*LayoutOf(*array), layout)) *array = CopyIn(*array, layout);
    to.CreateMKLDNNData(layout);
  } else {
    to.InvalidateMKLDNNData();
    to.data();  // there may be no memory yet
  }
  const auto rectify = slope == 0 ? &Rectify<false> : &Rectify<true>;
  rectify(static_cast<const float*>(Raw(from).dptr_), static_cast<const float*>(Raw(sign).dptr_),
          slope, output.shape().Size(), static_cast<float*>(Raw(to).dptr_));
}

/* What MXNet hands to oneDNN; its own operators treat NaN in other ways. */
constexpr int kMostAxes = 5;

/* Whether an output like two inputs may be written as its memory lies. */
bool CanWriteDense(const NDArray& gradient, const NDArray& data, OpReqType request,
                const NDArray& output) {
  return (request == mxnet::kWriteTo || request == mxnet::kWriteInplace) &&
         output.shape().Size() > 0 && output.shape().ndim() <= kMostAxes &&
         IsPlainOrDense(gradient) && IsPlainOrDense(data) &&
         output.storage_type() == mxnet::kDefaultStorage && output.dtype() == mshadow::kFloat32 &&
         !output.IsView();
}

/* Inputs: the gradient of the output, and the output. */
void ActivationGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                                const std::vector<NDArray>& inputs,
                                const std::vector<OpReqType>& requests,
                                const std::vector<NDArray>& outputs) {
  if (TextOf(attrs, "act_type", "") != "relu" || inputs.size() < 2 ||
      !CanWriteDense(inputs[0], inputs[1], requests[0], outputs[0]))
    return plain_activation_gradient(attrs, context, inputs, requests, outputs);
  RectifierGradient(inputs[0], inputs[1], 0, outputs[0]);
}

/* Inputs: the gradient of the output, the data, and the output. */
void LeakyGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                           const std::vector<NDArray>& inputs,
                           const std::vector<OpReqType>& requests,
                           const std::vector<NDArray>& outputs) {
  if (TextOf(attrs, "act_type", "leaky") != "leaky" || inputs.size() < 2 ||
      !CanWriteDense(inputs[0], inputs[1], requests[0], outputs[0]))
    return plain_leaky_gradient(attrs, context, inputs, requests, outputs);
  const float slope = std::strtof(TextOf(attrs, "slope", "0.25").c_str(), nullptr);
  RectifierGradient(inputs[0], inputs[1], slope, outputs[0]);
}

}  // namespace graphopt
