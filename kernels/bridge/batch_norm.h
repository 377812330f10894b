/*
 * Normalization over a batch of images, the sum it goes into and the function behind, in two passes over memory.
 *
 * Forward reads the data for their statistics and once more to write the result; backward likewise, for the sums that
 * all gradients of a channel depend on and for these. Where a gradient passes is computed from the data again.
 */
#pragma once

#include <cstdint>

namespace graphopt::norm {

/* Swish is z / (1 + exp(-z)), the hard one z * clip(z + 3, 0, 6) / 6. */
enum Function { kNone, kRelu, kLeaky, kClip, kSwish, kHardSwish };

/* Float32 in blocks of 8 or 16 channels, as oneDNN lays them out, or of one: in rows. */
struct Images {
  int64_t count, channels, pixels, block;
  int64_t units() const { return channels / block; }
};

struct Layer {
  Images images;
  Function function;
  float low, high;  // of kClip
  float slope;      // of kLeaky, where numbers are not positive
  int threads;
};

/* One number for each channel. */
struct Numbers {
  float *mean, *inverse;      // 1 / sqrt(variance + epsilon)
  const float *gamma, *beta;  // no gamma: 1
};

/* `residual`: added before the function; null: nothing is. With `epsilon` mean and inverse are of the data, and
 * written; below 0 they are given. Results are the same for any number of threads. */
void Forward(const Layer& layer, const float* data, const float* residual, const Numbers& numbers, float epsilon,
             float* to);

/* Each null where nobody wants it, or, the last one, where nothing was added. */
struct Gradients {
  float *data, *gamma, *beta, *residual;
};

/* `made`: what forward made, with a residual only. `is_own`: the statistics depend on the data. */
void Backward(const Layer& layer, const float* gradient, const float* data, const float* made, const Numbers& numbers,
              bool is_own, const Gradients& to);

}  // namespace graphopt::norm
