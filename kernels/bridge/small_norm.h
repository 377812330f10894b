/*
 * BatchNorm of small graphs, along axis 1, as batch_norm_operator.h has it for images: by one thread, channels side by
 * side where there is one number of each.
 *
 * Inputs of a node: data, gamma, beta, moving mean and variance. Outputs: the result, and for backward the mean and
 * 1 / sqrt(variance + eps) of each channel, and whether these are the data's. As in MXNet moving statistics are updated in
 * backward.
 */
#pragma once

#include <cmath>
#include <vector>

#include "batch_norm_operator.h"

namespace graphopt {

class SmallNorm {
 public:
  static constexpr int kData = 0, kGamma = 1, kBeta = 2, kMovingMean = 3, kMovingVariance = 4;  // of the inputs
  static constexpr int kMade = 0, kMean = 1, kInverse = 2, kIsOwn = 3;                          // of the outputs

  SmallNorm(const NodeAttrs& attrs, const std::vector<TBlob>& in, const std::vector<TBlob>& out)
      : attrs_(attrs), in_(in), out_(out), count_(in[0].shape_[0]), channels_(in[0].shape_[1]),
        inner_(in[0].shape_.ProdShape(2, in[0].shape_.ndim())), epsilon_(NumberOf(attrs, "eps", "1e-3")) {}

  void Forward(bool is_train) const {
    const bool is_own = is_train && !Flag(attrs_, "use_global_stats");
    float *mean = Out(kMean), *inverse = Out(kInverse);
    *Out(kIsOwn) = is_own;
    if (is_own) Measure(mean, inverse);
    for (int64_t c = 0; c < channels_ && !is_own; ++c) {
      mean[c] = In(kMovingMean)[c];
      inverse[c] = 1 / std::sqrt(In(kMovingVariance)[c] + epsilon_);
    }
    const float *x = In(kData), *gamma = In(kGamma), *beta = In(kBeta);
    float* y = Out(kMade);
    Each([&](int64_t i, int64_t c) { y[i] = (x[i] - mean[c]) * (inverse[c] * gamma[c]) + beta[c]; });
  }

  /* Gradients of data, gamma and beta, each null where nobody wants it, and whether it is added. */
  void Backward(const float* head, float* const (&to)[3], const bool (&adds)[3]) const {
    const float *x = In(kData), *gamma = In(kGamma), *mean = Out(kMean), *inverse = Out(kInverse);
    const bool is_own = *Out(kIsOwn) != 0;
    std::vector<double> by_gamma(channels_), by_beta(channels_);
    Each([&](int64_t i, int64_t c) {
      by_gamma[c] += head[i] * ((x[i] - mean[c]) * inverse[c]);
      by_beta[c] += head[i];
    });
    std::vector<float> shift(channels_), slope(channels_);  // of what all numbers of a channel have in common
    const float share = is_own ? 1.0f / (count_ * inner_) : 0;
    for (int64_t c = 0; c < channels_; ++c) {
      shift[c] = static_cast<float>(by_beta[c]) * share;
      slope[c] = static_cast<float>(by_gamma[c]) * share;
    }
    auto by_data = [&](int64_t i, int64_t c) {
      return (head[i] - shift[c] - (x[i] - mean[c]) * inverse[c] * slope[c]) * (inverse[c] * gamma[c]);
    };
    float* dx = to[0];
    if (dx && adds[0]) Each([&](int64_t i, int64_t c) { dx[i] += by_data(i, c); });
    if (dx && !adds[0]) Each([&](int64_t i, int64_t c) { dx[i] = by_data(i, c); });
    for (int64_t c = 0; c < channels_; ++c) {
      if (to[1]) to[1][c] = (adds[1] ? to[1][c] : 0) + static_cast<float>(by_gamma[c]);
      if (to[2]) to[2][c] = (adds[2] ? to[2][c] : 0) + static_cast<float>(by_beta[c]);
    }
    if (is_own) UpdateMoving(attrs_, mean, inverse, channels_, In(kMovingMean), In(kMovingVariance));
  }

 private:
  float* In(int i) const { return static_cast<float*>(in_[i].dptr_); }
  float* Out(int i) const { return static_cast<float*>(out_[i].dptr_); }

  /* Of each number where it is and its channel. */
  template <typename F>
  void Each(const F& f) const {
    for (int64_t n = 0; n < count_; ++n) {
      const int64_t first = n * channels_ * inner_;
      if (inner_ == 1) {
#pragma GCC ivdep
        for (int64_t c = 0; c < channels_; ++c) f(first + c, c);
        continue;
      }
      for (int64_t c = 0; c < channels_; ++c)
#pragma GCC ivdep
        for (int64_t i = 0; i < inner_; ++i) f(first + c * inner_ + i, c);
    }
  }

  /* Around the mean, in a second pass. */
  void Measure(float* mean, float* inverse) const {
    const float* x = In(kData);
    const double size = count_ * inner_;
    std::vector<double> sums(channels_), squares(channels_);
    Each([&](int64_t i, int64_t c) { sums[c] += x[i]; });
    for (int64_t c = 0; c < channels_; ++c) sums[c] /= size;
    Each([&](int64_t i, int64_t c) { squares[c] += (x[i] - sums[c]) * (x[i] - sums[c]); });
    for (int64_t c = 0; c < channels_; ++c) {
      mean[c] = static_cast<float>(sums[c]);
      inverse[c] = static_cast<float>(1 / std::sqrt(squares[c] / size + epsilon_));
    }
  }

  const NodeAttrs& attrs_;
  const std::vector<TBlob>&in_, &out_;
  const int64_t count_, channels_, inner_;
  const float epsilon_;
};

}  // namespace graphopt
