/*
 * What training takes besides winograd.cc for layers of few channels: filters transformed anew in every step, as they are or
 * turned for the gradient of images, and the gradient of filters. Threads work on the same tiles. Behind that, which file
 * computes each kind of step (filtering.h).
 */
#include <algorithm>

#include "winograd_training.h"

namespace graphopt::blocked {
namespace {

constexpr int64_t kChannelsOfTask = 64;  // whose filters a task transforms

/* Groups of blocks of channels, as even as can be. */
int64_t ColumnGroups(const Tiling& tiling) { return Ceil(tiling.in_blocks, kColumns); }

/* For one transformed pixel and some blocks of channels: the products of all filters. */
void Products(const Bound& bound, const Tiling& tiling, int64_t item, float* sums) {
  const int64_t groups = ColumnGroups(tiling), point = item / groups, group = item % groups;
  const int64_t begin = group * tiling.in_blocks / groups;
  const int64_t end = (group + 1) * tiling.in_blocks / groups;
  const int64_t channels = tiling.in_blocks * kLanes, filters = tiling.out_blocks * kLanes;
  const OuterFunction outer = PickOuter(end - begin);
  float* to = sums + point * filters * channels + begin * kLanes;
  const float* x = tiling.Input(bound, point, begin);
  for (int64_t filter = 0; filter < filters; filter += kRows)
    outer(tiling.Output(bound, point, filter / kLanes) + filter % kLanes, x, tiling.count * kLanes,
          tiling.count, to + filter * channels, channels, tiling.first > 0);
}

}  // namespace

int64_t FilterTasks(const Filters& filters) {
  return filters.count / kLanes * Ceil(filters.channels, kChannelsOfTask);
}

void FilterTask(const Filters& filters, const Step& step, int64_t task, float* packed) {
  const int64_t parts = Ceil(filters.channels, kChannelsOfTask), block = task / parts;
  const int64_t blocks = filters.count / kLanes, size = filters.count * filters.channels;
  const int64_t first = block / step.group * step.group, width = std::min(step.group, blocks - first) * kLanes;
  const int64_t begin = task % parts * kChannelsOfTask, end = std::min(begin + kChannelsOfTask, filters.channels);
  float* to = packed + first * kLanes * filters.channels + (block - first) * kLanes;
  for (int64_t channel = begin; channel < end; channel += kLanes)
    TransformFilters(filters, block, channel, to + channel * width, width, size);
}

int64_t FewGradientPhases(const Step& step) { return 2 * Ceil(Tiling(step, 0).all, step.chunk) + 1; }

int64_t FewGradientTasks(const Step& step, int64_t phase) {
  if (phase == FewGradientPhases(step) - 1) return Tiling(step, 0).out_blocks;
  const Tiling tiling(step, phase / 2);
  if (phase % 2) return tiling.points * ColumnGroups(tiling);
  return Ceil((tiling.in_blocks + tiling.out_blocks) * tiling.count, kTransforms);
}

void FewGradientTask(const Bound& bound, int64_t phase, int64_t task, float* sums, float* gradient) {
  const Step& step = *bound.step;
  const Tiling tiling(step, phase / 2);
  if (phase == FewGradientPhases(step) - 1) {
    const int64_t size = step.filters * step.channels;
    for (int64_t filter = task * kLanes; filter < (task + 1) * kLanes; ++filter)
      for (int64_t channel = filter * step.channels; channel < (filter + 1) * step.channels; channel += kLanes)
        TransformSums(sums + channel, size, gradient + channel * kTaps, false);
    return;
  }
  if (phase % 2) return Products(bound, tiling, task, sums);
  const int64_t all = (tiling.in_blocks + tiling.out_blocks) * tiling.count;
  for (int64_t item = task * kTransforms; item < std::min(all, (task + 1) * kTransforms); ++item)
    TransformEither(bound, tiling, item);
}

int64_t PackingPhases(const Step& step) { return step.kind != kWinograd ? 3 : step.is_paired ? 2 : 1; }

int64_t PackingTasks(const Filters& filters, const Step& step, int64_t phase) {
  if (step.kind != kWinograd) return PointwiseTasks(step, phase);
  return phase ? PairTasks(step) : FilterTasks(filters);
}

void PackingTask(const Filters& filters, const Step& step, int64_t phase, int64_t task, float* packed) {
  if (step.kind != kWinograd) return PointwiseTask(filters, step, phase, task, packed);
  return phase ? PairTask(step, task, packed) : FilterTask(filters, step, task, packed);
}

int64_t ScratchFloats(const Step& step) {
  if (step.kind != kWinograd) return 0;
  const Tiling tiling(step, 0);
  const bool is_large = IsLarge(step);  // then each thread has its own outputs
  const int64_t noted = step.is_paired ? NotedOfPairs(tiling, is_large) * step.chunk : 0;
  const int64_t made = is_large ? 0 : OddLines(tiling.out_blocks * step.chunk);
  return tiling.points * (OddLines(tiling.in_blocks * step.chunk) + made + noted);
}

int64_t GradientScratchFloats(const Step& step) {
  if (step.kind == kDepthwise) return GroupedGradientFloats(step);
  if (step.kind != kWinograd) return PointwiseGradientFloats(step);
  const Tiling tiling(step, 0);
  return tiling.points * (OddLines(tiling.in_blocks * step.chunk) + OddLines(tiling.out_blocks * step.chunk));
}

int64_t SummedFloats(const Step& step) {
  return step.kind == kWinograd && !IsLarge(step) ? (M + 2) * (M + 2) * step.channels * step.filters : 0;
}

int64_t GradientPhases(const Step& step) {
  if (step.kind == kDepthwise) return 2;
  if (step.kind != kWinograd) return PointwiseGradientPhases(step);
  return IsLarge(step) ? LargeGradientPhases(step) : FewGradientPhases(step);
}

int64_t GradientTasks(const Step& step, int64_t phase) {
  if (step.kind == kDepthwise) return GroupedGradientTasks(step, phase);
  if (step.kind != kWinograd) return PointwiseGradientTasks(step, phase);
  return IsLarge(step) ? LargeGradientTasks(step, phase) : FewGradientTasks(step, phase);
}

void GradientTask(const Bound& bound, int64_t phase, int64_t task, float* sums, float* gradient) {
  if (bound.step->kind == kDepthwise) return GroupedGradientTask(bound, phase, task, gradient);
  if (bound.step->kind != kWinograd) return PointwiseGradientTask(bound, phase, task, gradient);
  if (IsLarge(*bound.step)) return LargeGradientTask(bound, phase, task, gradient);
  FewGradientTask(bound, phase, task, sums, gradient);
}

}  // namespace graphopt::blocked
