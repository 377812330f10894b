/*
 * Convolutions in training: Winograd's (winograd_gradient.cc), those of one pixel in pairs (paired.h), and those in groups
 * (grouped.cc). Channels and filters fill whole blocks.
 */
#pragma once

#include "blocked.h"

namespace graphopt::blocked {

constexpr int kTrainingTile = 4;         // output pixels of Winograd's tile in each direction
constexpr int64_t kFewChannels = 256;    // with filters, of layers that are not large

/*
 * Filters, (count, channels of a group, y, x). Turned ones are those of the gradient of images: they lie as (channels,
 * count, y, x), in each group if there are several, and pixels are read from the last to the first.
 */
struct Filters {
  const float* weights;
  int64_t count, channels;
  bool is_turned;
};

/* Packing filters for a step, in phases whose tasks may run side by side. */
int64_t PackingPhases(const Step& step);
int64_t PackingTasks(const Filters& filters, const Step& step, int64_t phase);
void PackingTask(const Filters& filters, const Step& step, int64_t phase, int64_t task, float* packed);

/*
 * The gradient of filters. The step is that of the convolution, its output the gradient of the output.
 * `sums` has room for `SummedFloats`, and `gradient` is (filters, channels, y, x). Tasks of a phase must be done before
 * the next one begins.
 */
int64_t SummedFloats(const Step& step);
int64_t GradientPhases(const Step& step);
int64_t GradientTasks(const Step& step, int64_t phase);
void GradientTask(const Bound& bound, int64_t phase, int64_t task, float* sums, float* gradient);

/* Of gradients of filters of one pixel: how many parts of the pixels take up so many floats, to be a step's chunk. */
int64_t PartsOf(const Step& step, int64_t floats);

/* Floats that a step of training may write to from its scratch on; those of the gradient of filters. */
int64_t ScratchFloats(const Step& step);
int64_t GradientScratchFloats(const Step& step);

/*
 * Whether a step's transformed filters, by Winograd, are more than caches hold: then threads transform those that they
 * work with, and sums of their gradients are transformed back where they are made.
 */
bool IsLarge(const Step& step);

/* One kind each; see above. */
int64_t FilterTasks(const Filters& filters);
void FilterTask(const Filters& filters, const Step& step, int64_t task, float* packed);
int64_t LargePhases(const Step& step);
int64_t LargeTasks(const Step& step, int64_t phase);
/* `factors` has room for a number of each channel, as the step's bound has it in pairs, and of each filter. */
void LargeTask(const Bound& bound, const Filters& filters, int64_t phase, int64_t task, float* factors);
int64_t LargeGradientPhases(const Step& step);
int64_t LargeGradientTasks(const Step& step, int64_t phase);
void LargeGradientTask(const Bound& bound, int64_t phase, int64_t task, float* gradient);
/* Groups of 2, 4 or 8 channels and filters, of 3x3 pixels; both have two phases. `packed` has room for GroupedFloats, and is
 * the bound's weights; the gradient's sums are in the step's scratch. */
int64_t GroupedFloats(const Step& step);
int64_t GroupedTasks(const Step& step, int64_t phase);
void GroupedTask(const Bound& bound, const Filters& filters, int64_t phase, int64_t task, float* packed);
int64_t GroupedGradientFloats(const Step& step);
int64_t GroupedGradientTasks(const Step& step, int64_t phase);
void GroupedGradientTask(const Bound& bound, int64_t phase, int64_t task, float* gradient);
int64_t PointwiseTasks(const Step& step, int64_t phase);
void PointwiseTask(const Filters& filters, const Step& step, int64_t phase, int64_t task, float* packed);
int64_t PointwiseGradientFloats(const Step& step);
int64_t PointwiseGradientPhases(const Step& step);
int64_t PointwiseGradientTasks(const Step& step, int64_t phase);
void PointwiseGradientTask(const Bound& bound, int64_t phase, int64_t task, float* gradient);

}  // namespace graphopt::blocked
