/*
 * Convolutions of 3x3 pixels by Winograd's minimal filtering: fewer multiplications, more additions.
 *
 * An image is cut into tiles of m x m output pixels. Each tile's input, m + 2 pixels wide, and the
 * filters are transformed; then a product over the channels for each of the (m + 2)^2 transformed
 * pixels gives the transformed output (Lavin and Gray, Fast Algorithms for Convolutional Neural
 * Networks, 2016). With m = 2 it takes 2.25 times fewer multiplications, with m = 4 4 times fewer; what
 * rounding loses grows with m.
 */
#include <algorithm>
#include <vector>

#include "activations.h"
#include "filtering.h"
#include "winograd.h"

namespace graphopt::blocked {
namespace {

constexpr double kTaskWork = 1e6;  // multiplications a task is worth

template <int M>
void TransformOutput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number, const float* from,
                     int64_t point) {
  constexpr int T = M + 2;
  const Step& step = *bound.step;
  const Corner corner(tiling, step, tiling.first + number);
  Lanes given[T * T], half[M * T], found[M * M];
#pragma GCC unroll 36
  for (int i = 0; i < T * T; ++i) given[i] = LoadLanes(from + i * point);
#pragma GCC unroll 6
  for (int x = 0; x < T; ++x) Minimal<M>::Output(given + x, T, half + x, T);
#pragma GCC unroll 4
  for (int y = 0; y < M; ++y) Minimal<M>::Output(half + y * T, 1, found + y * M, 1);
  const Lanes zero = {};
  const Lanes bias = bound.bias ? LoadLanes(bound.bias + block * kLanes) : zero;
  const Lanes slope = SlopeOf(step, bound.slopes, block);
  const int64_t filters = FiltersOf(step, block);
  for (int64_t row = 0; row < corner.rows; ++row) {
    const int64_t y = corner.y + row * step.dilation_y;
    float* to = bound.arena + step.out.Place(corner.image, block, y);
    const float* other = step.has_other ? bound.arena + step.other.Place(corner.image, block, y) : nullptr;
    if (corner.x == 0) ClearHalo(step.out, bound.arena, corner.image, block, y);
    for (int64_t column = 0; column < corner.columns; ++column) {
      const int64_t x = (corner.x + column * step.dilation_x) * kLanes;
      Lanes value = found[row * M + column] + bias;
      if (other) value += LoadLanes(other + x);
      value = Activated(step, value, slope);
      StoreLanes(to + x, filters < kLanes ? Kept(value, filters) : value);
    }
  }
}

void Multiply(const Bound& bound, const Tiling& tiling, int64_t item) {
  const Step& step = *bound.step;
  const int64_t point = item / tiling.groups, group = item % tiling.groups;
  if (step.is_paired) return MultiplyPairedTiles(bound, tiling, point, group);
  const int64_t block = group * step.group;
  const int64_t depth = tiling.in_blocks * kLanes;
  const float* packed =
      bound.weights + (point * tiling.out_blocks + block) * kLanes * depth;
  MultiplyBlocked(tiling.Input(bound, point, 0), tiling.count * kLanes, tiling.in_blocks, packed,
                  std::min(step.group, tiling.out_blocks - block),
                  tiling.Output(bound, point, block), tiling.count * kLanes, tiling.count, false);
}

/* Products that a task computes. */
int64_t Products(const Step& step, const Tiling& tiling) {
  const double work = static_cast<double>(tiling.count) * step.channels * step.group * kLanes;
  return std::max<int64_t>(1, kTaskWork / work);
}

template <int M>
void Run(const Bound& bound, const Tiling& tiling, int64_t phase, int64_t task) {
  if (phase == 1) {
    const int64_t several = Products(*bound.step, tiling);
    const int64_t end = std::min((task + 1) * several, tiling.points * tiling.groups);
    for (int64_t item = task * several; item < end; ++item) Multiply(bound, tiling, item);
    return;
  }
  if (phase == 0 && bound.step->is_paired) return PairedTransformTask(bound, tiling, task);
  const int64_t blocks = phase == 0 ? tiling.in_blocks : tiling.out_blocks;
  const int64_t end = std::min((task + 1) * kTransforms, blocks * tiling.count);
  for (int64_t item = task * kTransforms; item < end; ++item) {
    const int64_t block = item / tiling.count, number = item % tiling.count;
    if (phase == 0)
      TransformInput<M>(bound, tiling, block, number);
    else
      TransformOutput<M>(bound, tiling, block, number, tiling.Output(bound, 0, block) + number * kLanes,
                         tiling.OutPoint());
  }
}

/*
 * Transforms the filters of a block, in float64. Lanes beyond the filters, and channels that fill up the
 * last block, become zeros.
 */
template <int M>
void Pack(const Step& step, const Tiling& tiling, int64_t block, const float* weights,
          float* packed) {
  constexpr int T = M + 2;
  const int64_t depth = tiling.in_blocks * kLanes, size = tiling.out_blocks * kLanes * depth;
  const int64_t first = block / step.group * step.group;
  const int64_t width = std::min(step.group, tiling.out_blocks - first) * kLanes;
  const int64_t filters = FiltersOf(step, block);
  double taps[9][kLanes] = {}, half[T * 3][kLanes];
  for (int64_t channel = 0; channel < depth; ++channel) {
    float* to = packed + first * kLanes * depth + channel * width + (block - first) * kLanes;
    for (int64_t lane = 0; lane < filters; ++lane) {
      const float* from = weights + ((block * kLanes + lane) * step.channels + channel) * 9;
      for (int tap = 0; tap < 9; ++tap)
        taps[tap][lane] = channel < step.channels ? from[tap] : 0.0f;
    }
    for (int i = 0; i < T; ++i)
      for (int x = 0; x < 3; ++x)
        for (int64_t lane = 0; lane < kLanes; ++lane)
          half[i * 3 + x][lane] = Minimal<M>::kFilter[i][0] * taps[x][lane] +
                                  Minimal<M>::kFilter[i][1] * taps[3 + x][lane] +
                                  Minimal<M>::kFilter[i][2] * taps[6 + x][lane];
    for (int i = 0; i < T; ++i)
      for (int j = 0; j < T; ++j)
        for (int64_t lane = 0; lane < kLanes; ++lane)
          to[(i * T + j) * size + lane] =
              static_cast<float>(Minimal<M>::kFilter[j][0] * half[i * 3][lane] +
                                 Minimal<M>::kFilter[j][1] * half[i * 3 + 1][lane] +
                                 Minimal<M>::kFilter[j][2] * half[i * 3 + 2][lane]);
  }
}

}  // namespace

void TransformTrainingOutput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number, const float* from,
                             int64_t point) {
  TransformOutput<kTrainingTile>(bound, tiling, block, number, from, point);
}

int64_t WinogradPhases(const Step& step) {
  return 3 * Ceil(Tiling(step, 0).all, step.chunk);
}

int64_t WinogradTasks(const Step& step, int64_t phase) {
  const Tiling tiling(step, phase / 3);
  if (phase % 3 == 1) return Ceil(tiling.points * tiling.groups, Products(step, tiling));
  if (phase % 3 == 0 && step.is_paired) return PairedTransformTasks(tiling);
  return Ceil((phase % 3 == 0 ? tiling.in_blocks : tiling.out_blocks) * tiling.count, kTransforms);
}

void WinogradTask(const Bound& bound, int64_t phase, int64_t task) {
  const Tiling tiling(*bound.step, phase / 3);
  if (bound.step->tile == 2)
    Run<2>(bound, tiling, phase % 3, task);
  else
    Run<4>(bound, tiling, phase % 3, task);
}

int64_t PackedWinograd(const Step& step) {
  const Tiling tiling(step, 0);
  if (step.is_paired) return PackedPaired(step, tiling.in_blocks * kLanes, tiling.points);
  return tiling.points * tiling.in_blocks * tiling.out_blocks * kLanes * kLanes;
}

void PairWinogradTask(const Step& step, int64_t point, float* packed) {
  const Tiling tiling(step, 0);
  PairFilters(step, tiling.in_blocks * kLanes, tiling.points, point, packed);
}

int64_t PackWinogradTasks(const Step& step) { return Tiling(step, 0).out_blocks; }

void PackWinogradTask(const Step& step, int64_t task, const float* weights, float* packed) {
  const Tiling tiling(step, 0);
  if (step.tile == 2)
    Pack<2>(step, tiling, task, weights, packed);
  else
    Pack<4>(step, tiling, task, weights, packed);
}

}  // namespace graphopt::blocked
