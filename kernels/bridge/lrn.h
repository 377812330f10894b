/*
 * The gradient of MXNet's LRN, with vectors across pixels: oneDNN's code goes pixel by pixel, and takes twenty
 * times as long as the forward pass.
 *
 * With s = knorm + alpha / n * (sum of x^2 over n channels around), y = x s^-beta, and
 * dx = dy s^-beta - 2 alpha beta / n * x * (sum of dy x s^(-beta - 1) over the channels around).
 */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "arrays.h"
#include "joins.h"
#include "layouts.h"
#include "rectifiers.h"

namespace graphopt {

mxnet::FComputeEx plain_lrn_gradient;

struct Lrn {
  float alpha, beta, knorm;  // alpha of one channel
  int64_t around;            // channels on each side
};

/* The powers that nets have; others are left to MXNet. */
bool HasPower(float beta) { return beta == 0.75f || beta == 0.5f || beta == 1.0f; }

/* s^-beta; roots do not look for numbers below zero, so that they are vectors. */
#pragma GCC push_options
#pragma GCC optimize("no-math-errno")
void Powers(const float* s, float beta, int64_t count, float* power) {
  if (beta == 0.75f) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float root = __builtin_sqrtf(s[i]);
      power[i] = 1.0f / (root * __builtin_sqrtf(root));
    }
  } else if (beta == 0.5f) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) power[i] = 1.0f / __builtin_sqrtf(s[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) power[i] = 1.0f / s[i];
  }
}
#pragma GCC pop_options

/* For some pixels of an image: sums of each channel and those around, of rows of `width` numbers. */
void SumAround(const float* from, int64_t channel, int64_t channels, int64_t around, int64_t width,
               float* sum) {
  std::fill(sum, sum + width, 0.0f);
  const int64_t last = std::min(channel + around, channels - 1);
  for (int64_t c = std::max<int64_t>(channel - around, 0); c <= last; ++c)
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sum[i] += from[c * width + i];
}

/* Some pixels of an image: `count` of a plane of `places`, in memory for two images of `width` and four rows. */
void LrnGradientOf(const Lrn& lrn, const float* gradient, const float* data, int64_t channels,
                   int64_t places, int64_t count, float* memory, float* to) {
  float *squares = memory, *terms = memory + channels * count, *sum = terms + channels * count;
  float* power = sum + count;
  for (int64_t c = 0; c < channels; ++c)
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      squares[c * count + i] = data[c * places + i] * data[c * places + i];
  for (int64_t c = 0; c < channels; ++c) {
    SumAround(squares, c, channels, lrn.around, count, sum);
    for (int64_t i = 0; i < count; ++i) sum[i] = lrn.knorm + lrn.alpha * sum[i];
    Powers(sum, lrn.beta, count, power);
    const float *dy = gradient + c * places, *x = data + c * places;
    float *term = terms + c * count, *dx = to + c * places;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      dx[i] = dy[i] * power[i];
      term[i] = dx[i] * x[i] / sum[i];
    }
  }
  const float factor = 2 * lrn.alpha * lrn.beta;
  for (int64_t c = 0; c < channels; ++c) {
    SumAround(terms, c, channels, lrn.around, count, sum);
    const float* x = data + c * places;
    float* dx = to + c * places;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) dx[i] -= factor * x[i] * sum[i];
  }
}

void LrnGradient(const Lrn& lrn, const mxnet::TShape& shape, const float* gradient,
                 const float* data, float* to) {
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  constexpr int64_t kNear = 16384, kFewest = 16;  // floats of an image, and pixels, at a time
  const int64_t images = shape[0], channels = shape[1], places = shape[2] * shape[3];
  const int64_t width = std::max(kFewest, kNear / channels), parts = (places + width - 1) / width;
  const int threads = Threads(4.0 * shape.Size(), images * parts);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<float> memory((2 * channels + 2) * width);
#pragma omp for
    for (int64_t task = 0; task < images * parts; ++task) {
      const int64_t first = task % parts * width, at = task / parts * channels * places + first;
      LrnGradientOf(lrn, gradient + at, data + at, channels, places,
                    std::min(width, places - first), memory.data(), to + at);
    }
  }
}

/* Inputs: the gradient of the output, the data, and what oneDNN does not use. */
void LrnGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                         const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                         const std::vector<NDArray>& outputs) {
  const auto number = [&](const char* key, const char* otherwise) {
    return std::strtof(TextOf(attrs, key, otherwise).c_str(), nullptr);
  };
  const int64_t size = std::strtol(TextOf(attrs, "nsize", "0").c_str(), nullptr, 10);
  const float beta = number("beta", "0.75");
  if (requests[0] != mxnet::kWriteTo || outputs[0].shape().ndim() != 4 || size % 2 != 1 ||
      !HasPower(beta) || !CanWriteDense(inputs[0], inputs[1], requests[0], outputs[0]))
    return plain_lrn_gradient(attrs, context, inputs, requests, outputs);
  const NDArray gradient = InRows(inputs[0]), data = InRows(inputs[1]);
  const Lrn lrn{number("alpha", "1e-4") / size, beta, number("knorm", "2"), size / 2};
  LrnGradient(lrn, outputs[0].shape(), static_cast<const float*>(gradient.data().dptr_),
              static_cast<const float*>(data.data().dptr_),
              static_cast<float*>(AsRows(outputs[0], requests[0]).dptr_));
}

}  // namespace graphopt
