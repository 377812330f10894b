/*
 * What training takes besides winograd.cc: filters transformed anew in every step, as they are or turned
 * for the gradient of images, and the gradient of filters.
 *
 * An output is A((G g) * (B d)) with g a filter, d a tile of the input, and A, B and G transforms along
 * both axes. So the gradient of g is G'((A' dy) * (B d)), summed over all tiles: a product over the tiles
 * for each transformed pixel, where MXNet's direct way has one of 4 times as many
 * multiplications (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).
 */
#include <vector>

#include "filtering.h"
#include "winograd.h"

namespace graphopt::blocked {
namespace {

constexpr int M = kTrainingTile, T = M + 2;
constexpr int kTaps = 9;
constexpr int64_t kChannelsOfTask = 64;  // whose filters a task transforms
/* Filters and blocks of channels whose sums fill the registers. */
constexpr int kRows = kLanes == 16 ? 8 : 4;
constexpr int kColumns = kLanes == 16 ? 3 : 2;

/* Row `i` of the transform of filters, as vectors: sum of kFilter[i][x] * g[x]. */
Lanes Filtered(const Lanes* g, int64_t stride, int i) {
  const Lanes zero = {};
  Lanes sum = zero;
  for (int x = 0; x < 3; ++x) {
    const float factor = static_cast<float>(Minimal<M>::kFilter[i][x]);
    if (factor != 0.0f) sum += factor * g[x * stride];
  }
  return sum;
}

/* Filters of a block for one channel: taps of all lanes. */
void LoadTaps(const Filters& filters, int64_t block, int64_t channel, Lanes* taps) {
  float turned[kTaps][kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t filter = block * kLanes + lane;
    const float* from = filters.is_turned ? filters.weights + (channel * filters.count + filter) * kTaps
                                          : filters.weights + (filter * filters.channels + channel) * kTaps;
    for (int tap = 0; tap < kTaps; ++tap)
      turned[tap][lane] = from[filters.is_turned ? kTaps - 1 - tap : tap];
  }
  for (int tap = 0; tap < kTaps; ++tap) taps[tap] = LoadLanes(turned[tap]);
}

void TransformFilters(const Filters& filters, int64_t group, int64_t block, int64_t channel,
                      float* packed) {
  const int64_t blocks = filters.count / kLanes, size = filters.count * filters.channels;
  const int64_t first = block / group * group, width = std::min(group, blocks - first) * kLanes;
  float* to = packed + first * kLanes * filters.channels + channel * width + (block - first) * kLanes;
  Lanes taps[kTaps], half[T * 3];
  LoadTaps(filters, block, channel, taps);
  for (int i = 0; i < T; ++i)
    for (int x = 0; x < 3; ++x) half[i * 3 + x] = Filtered(taps + x, 3, i);
  for (int i = 0; i < T; ++i)
    for (int j = 0; j < T; ++j)
      StoreLanes(to + (i * T + j) * size, Filtered(half + i * 3, 1, j));
}

/* A tile of the gradient of the output, zero where it reaches over the edge. */
void TransformGradient(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number) {
  const Step& step = *bound.step;
  const Corner corner(tiling, step, tiling.first + number);
  const int64_t rows = std::min<int64_t>(M, step.out.height - corner.y);
  const int64_t columns = std::min<int64_t>(M, step.out.width - corner.x);
  const Lanes zero = {};
  Lanes given[M * M], half[T * M];
  for (int y = 0; y < M; ++y) {
    const float* from =
        bound.arena + step.out.Place(corner.image, block, corner.y + y) + corner.x * kLanes;
    for (int x = 0; x < M; ++x)
      given[y * M + x] = y < rows && x < columns ? LoadLanes(from + x * kLanes) : zero;
  }
  for (int x = 0; x < M; ++x) Minimal<M>::OutputGradient(given + x, M, half + x, M);
  float* to = tiling.Output(bound, 0, block) + number * kLanes;
  const int64_t point = tiling.out_blocks * tiling.count * kLanes;
  for (int y = 0; y < T; ++y) {
    Lanes row[T];
    Minimal<M>::OutputGradient(half + y * M, 1, row, 1);
    for (int x = 0; x < T; ++x) StoreLanes(to + (y * T + x) * point, row[x]);
  }
}

/* Sums over tiles of R filters times C blocks of channels, written or added to. */
template <int R, int C>
void Outer(const float* dy, const float* x, int64_t x_stride, int64_t tiles, float* to,
           int64_t to_stride, bool adds) {
  Lanes sum[R][C] = {};
  for (int64_t tile = 0; tile < tiles; ++tile) {
    Lanes column[C];
#pragma GCC unroll 3
    for (int c = 0; c < C; ++c) column[c] = LoadLanes(x + c * x_stride + tile * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float factor = dy[tile * kLanes + r];
#pragma GCC unroll 3
      for (int c = 0; c < C; ++c) sum[r][c] += factor * column[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 3
    for (int c = 0; c < C; ++c) {
      float* at = to + r * to_stride + c * kLanes;
      StoreLanes(at, adds ? LoadLanes(at) + sum[r][c] : sum[r][c]);
    }
}

using OuterFunction = void (*)(const float*, const float*, int64_t, int64_t, float*, int64_t, bool);

OuterFunction PickOuter(int64_t columns) {
  if (columns == 1) return Outer<kRows, 1>;
  if (columns == 2) return Outer<kRows, 2>;
  return Outer<kRows, kColumns>;
}

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

/* From products to the taps of a filter for a block of channels. */
void TransformSums(const Tiling& tiling, int64_t filter, int64_t block, const float* sums,
                   float* gradient) {
  const int64_t channels = tiling.in_blocks * kLanes;
  const int64_t size = tiling.out_blocks * kLanes * channels;
  const float* from = sums + filter * channels + block * kLanes;
  const Lanes zero = {};
  Lanes half[3 * T];
  for (int x = 0; x < 3; ++x)
    for (int j = 0; j < T; ++j) half[x * T + j] = zero;
  for (int i = 0; i < T; ++i)
    for (int j = 0; j < T; ++j) {
      const Lanes value = LoadLanes(from + (i * T + j) * size);
      for (int y = 0; y < 3; ++y)
        half[y * T + j] += static_cast<float>(Minimal<M>::kFilter[i][y]) * value;
    }
  float* to = gradient + (filter * channels + block * kLanes) * kTaps;
  for (int y = 0; y < 3; ++y)
    for (int x = 0; x < 3; ++x) {
      Lanes sum = zero;
      for (int j = 0; j < T; ++j)
        sum += static_cast<float>(Minimal<M>::kFilter[j][x]) * half[y * T + j];
      for (int64_t lane = 0; lane < kLanes; ++lane) to[lane * kTaps + y * 3 + x] = sum[lane];
    }
}

}  // namespace

int64_t FilterTasks(const Filters& filters) {
  return filters.count / kLanes * Ceil(filters.channels, kChannelsOfTask);
}

void FilterTask(const Filters& filters, const Step& step, int64_t task, float* packed) {
  const int64_t parts = Ceil(filters.channels, kChannelsOfTask);
  const int64_t begin = task % parts * kChannelsOfTask;
  const int64_t end = std::min(begin + kChannelsOfTask, filters.channels);
  for (int64_t channel = begin; channel < end; ++channel)
    TransformFilters(filters, step.group, task / parts, channel, packed);
}

int64_t GradientPhases(const Step& step) { return 2 * Ceil(Tiling(step, 0).all, step.chunk) + 1; }

int64_t GradientTasks(const Step& step, int64_t phase) {
  if (phase == GradientPhases(step) - 1) return Tiling(step, 0).out_blocks;
  const Tiling tiling(step, phase / 2);
  if (phase % 2) return tiling.points * ColumnGroups(tiling);
  return Ceil((tiling.in_blocks + tiling.out_blocks) * tiling.count, kTransforms);
}

void GradientTask(const Bound& bound, int64_t phase, int64_t task, float* sums, float* gradient) {
  const Step& step = *bound.step;
  if (phase == GradientPhases(step) - 1) {
    const Tiling tiling(step, 0);
    for (int64_t filter = task * kLanes; filter < (task + 1) * kLanes; ++filter)
      for (int64_t block = 0; block < tiling.in_blocks; ++block)
        TransformSums(tiling, filter, block, sums, gradient);
    return;
  }
  const Tiling tiling(step, phase / 2);
  if (phase % 2) return Products(bound, tiling, task, sums);
  const int64_t all = (tiling.in_blocks + tiling.out_blocks) * tiling.count;
  for (int64_t item = task * kTransforms; item < std::min(all, (task + 1) * kTransforms); ++item) {
    const int64_t block = item / tiling.count, number = item % tiling.count;
    if (block < tiling.in_blocks)
      TransformInput<M>(bound, tiling, block, number);
    else
      TransformGradient(bound, tiling, block - tiling.in_blocks, number);
  }
}

}  // namespace graphopt::blocked
