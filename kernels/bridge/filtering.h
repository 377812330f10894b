/*
 * Winograd's convolutions in training: see winograd_gradient.cc. Channels and filters fill whole blocks.
 */
#pragma once

#include "blocked.h"

namespace graphopt::blocked {

constexpr int kTrainingTile = 4;  // output pixels of a tile in each direction

/*
 * Filters of 3x3 pixels, (count, channels, 3, 3). Turned ones are those of the gradient of images: they lie
 * as (channels, count, 3, 3), and pixels are read from the last to the first.
 */
struct Filters {
  const float* weights;
  int64_t count, channels;
  bool is_turned;
};

/* Packing filters for a step of Winograd's; tasks may run side by side. */
int64_t FilterTasks(const Filters& filters);
void FilterTask(const Filters& filters, const Step& step, int64_t task, float* packed);

/*
 * The gradient of filters. The step is that of the convolution, its output the gradient of the output.
 * `sums` has room for as many numbers as packed filters have; `gradient` is (filters, channels, 3, 3).
 * Tasks of a phase must be done before the next one begins.
 */
int64_t GradientPhases(const Step& step);
int64_t GradientTasks(const Step& step, int64_t phase);
void GradientTask(const Bound& bound, int64_t phase, int64_t task, float* sums, float* gradient);

}  // namespace graphopt::blocked
