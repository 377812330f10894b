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

#include "lanes.h"

namespace graphopt::blocked {
namespace {

constexpr int64_t kTransforms = 48;  // tiles of a block of channels that a task transforms
constexpr double kTaskWork = 1e6;    // multiplications a task is worth

template <int M>
struct Minimal;

/* F(2, 3) at the points 0, 1, -1 and infinity. */
template <>
struct Minimal<2> {
  static void Input(const Lanes* d, int64_t stride, Lanes* to, int64_t step) {
    const Lanes d0 = d[0], d1 = d[stride], d2 = d[2 * stride], d3 = d[3 * stride];
    to[0] = d0 - d2;
    to[step] = d1 + d2;
    to[2 * step] = d2 - d1;
    to[3 * step] = d1 - d3;
  }
  static void Output(const Lanes* m, int64_t stride, Lanes* to, int64_t step) {
    const Lanes sum = m[stride] + m[2 * stride], difference = m[stride] - m[2 * stride];
    to[0] = m[0] + sum;
    to[step] = difference - m[3 * stride];
  }
  static constexpr double kFilter[4][3] = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}};
};

/* F(4, 3) at the points 0, 1, -1, 2, -2 and infinity. */
template <>
struct Minimal<4> {
  static void Input(const Lanes* d, int64_t stride, Lanes* to, int64_t step) {
    const Lanes d0 = d[0], d1 = d[stride], d2 = d[2 * stride], d3 = d[3 * stride],
                d4 = d[4 * stride], d5 = d[5 * stride];
    const Lanes even = d4 - 4.0f * d2, odd = d3 - 4.0f * d1;
    const Lanes near = d4 - d2, far = 2.0f * (d3 - d1);
    to[0] = 4.0f * d0 - 5.0f * d2 + d4;
    to[step] = even + odd;
    to[2 * step] = even - odd;
    to[3 * step] = near + far;
    to[4 * step] = near - far;
    to[5 * step] = 4.0f * d1 - 5.0f * d3 + d5;
  }
  static void Output(const Lanes* m, int64_t stride, Lanes* to, int64_t step) {
    const Lanes m1 = m[stride], m2 = m[2 * stride], m3 = m[3 * stride], m4 = m[4 * stride];
    const Lanes a = m1 + m2, b = m1 - m2, c = m3 + m4, d = m3 - m4;
    to[0] = m[0] + a + c;
    to[step] = b + 2.0f * d;
    to[2 * step] = a + 4.0f * c;
    to[3 * step] = b + 8.0f * d + m[5 * stride];
  }
  static constexpr double kFilter[6][3] = {
      {1. / 4, 0, 0},           {-1. / 6, -1. / 6, -1. / 6}, {-1. / 6, 1. / 6, -1. / 6},
      {1. / 24, 1. / 12, 1. / 6}, {1. / 24, -1. / 12, 1. / 6}, {0, 0, 1}};
};

struct Tiling {
  int64_t down, across, all, first, count, side, points;
  int64_t in_blocks, out_blocks, groups;

  Tiling(const Step& step, int64_t chunk)
      : down(Ceil(step.out.height, step.tile)),
        across(Ceil(step.out.width, step.tile)),
        all(step.images * down * across),
        first(chunk * step.chunk),
        count(std::min(step.chunk, all - first)),
        side(step.tile + 2),
        points(side * side),
        in_blocks(Ceil(step.channels, kLanes)),
        out_blocks(Ceil(step.filters, kLanes)),
        groups(Ceil(out_blocks, step.group)) {}

  /* Transformed input [point][block][tile], then transformed output alike. */
  float* Input(const Bound& bound, int64_t point, int64_t block) const {
    return bound.arena + bound.step->scratch + (point * in_blocks + block) * count * kLanes;
  }
  float* Output(const Bound& bound, int64_t point, int64_t block) const {
    return bound.arena + bound.step->scratch + points * in_blocks * bound.step->chunk * kLanes +
           (point * out_blocks + block) * count * kLanes;
  }
};

struct Corner {
  int64_t image, y, x;
  Corner(const Tiling& tiling, const Step& step, int64_t tile) {
    image = tile / (tiling.down * tiling.across);
    y = tile / tiling.across % tiling.down * step.tile;
    x = tile % tiling.across * step.tile;
  }
};

template <int M>
void TransformInput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number) {
  constexpr int T = M + 2;
  const Step& step = *bound.step;
  const View& in = step.in;
  const Corner corner(tiling, step, tiling.first + number);
  const int64_t top = corner.y - step.pad_y, left = corner.x - step.pad_x;
  const float* from = bound.arena + in.Place(corner.image, block, 0);
  Lanes given[T * T], half[T * T];
  if (top >= 0 && left >= 0 && top + T <= in.height && left + T <= in.width) {
    for (int y = 0; y < T; ++y)
#pragma GCC unroll 6
      for (int x = 0; x < T; ++x)
        given[y * T + x] = LoadLanes(from + (top + y) * in.row_stride + (left + x) * kLanes);
  } else {
    const Lanes zero = {};
    for (int y = 0; y < T; ++y)
      for (int x = 0; x < T; ++x) {
        const bool inside = top + y >= 0 && top + y < in.height && left + x >= 0 &&
                            left + x < in.width;
        given[y * T + x] =
            inside ? LoadLanes(from + (top + y) * in.row_stride + (left + x) * kLanes) : zero;
      }
  }
#pragma GCC unroll 6
  for (int x = 0; x < T; ++x) Minimal<M>::Input(given + x, T, half + x, T);
  float* to = tiling.Input(bound, 0, block) + number * kLanes;
  const int64_t point = tiling.in_blocks * tiling.count * kLanes;
#pragma GCC unroll 6
  for (int y = 0; y < T; ++y) {
    Lanes row[T];
    Minimal<M>::Input(half + y * T, 1, row, 1);
#pragma GCC unroll 6
    for (int x = 0; x < T; ++x) StoreLanes(to + (y * T + x) * point, row[x]);
  }
}

template <int M>
void TransformOutput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number) {
  constexpr int T = M + 2;
  const Step& step = *bound.step;
  const Corner corner(tiling, step, tiling.first + number);
  const float* from = tiling.Output(bound, 0, block) + number * kLanes;
  const int64_t point = tiling.out_blocks * tiling.count * kLanes;
  Lanes given[T * T], half[M * T], found[M * M];
#pragma GCC unroll 36
  for (int i = 0; i < T * T; ++i) given[i] = LoadLanes(from + i * point);
#pragma GCC unroll 6
  for (int x = 0; x < T; ++x) Minimal<M>::Output(given + x, T, half + x, T);
#pragma GCC unroll 4
  for (int y = 0; y < M; ++y) Minimal<M>::Output(half + y * T, 1, found + y * M, 1);
  const Lanes zero = {};
  const Lanes bias = bound.bias ? LoadLanes(bound.bias + block * kLanes) : zero;
  const int64_t filters = FiltersOf(step, block);
  const int64_t rows = std::min<int64_t>(M, step.out.height - corner.y);
  const int64_t columns = std::min<int64_t>(M, step.out.width - corner.x);
  for (int64_t y = 0; y < rows; ++y) {
    float* to = bound.arena + step.out.Place(corner.image, block, corner.y + y) + corner.x * kLanes;
    const float* other =
        step.has_other
            ? bound.arena + step.other.Place(corner.image, block, corner.y + y) + corner.x * kLanes
            : nullptr;
    if (corner.x == 0) ClearHalo(step.out, bound.arena, corner.image, block, corner.y + y);
    for (int64_t x = 0; x < columns; ++x) {
      Lanes value = found[y * M + x] + bias;
      if (other) value += LoadLanes(other + x * kLanes);
      value = Activated(step, value);
      StoreLanes(to + x * kLanes, filters < kLanes ? Kept(value, filters) : value);
    }
  }
}

void Multiply(const Bound& bound, const Tiling& tiling, int64_t item) {
  const Step& step = *bound.step;
  const int64_t point = item / tiling.groups, group = item % tiling.groups;
  const int64_t block = group * step.group;
  const int64_t depth = tiling.in_blocks * kLanes;
  const float* packed =
      bound.weights + (point * tiling.out_blocks + block) * kLanes * depth;
  MultiplyBlocked(tiling.Input(bound, point, 0), tiling.count * kLanes, tiling.in_blocks, packed,
                  std::min(step.group, tiling.out_blocks - block),
                  tiling.Output(bound, point, block), tiling.count * kLanes, tiling.count);
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
  const int64_t blocks = phase == 0 ? tiling.in_blocks : tiling.out_blocks;
  const int64_t end = std::min((task + 1) * kTransforms, blocks * tiling.count);
  for (int64_t item = task * kTransforms; item < end; ++item) {
    const int64_t block = item / tiling.count, number = item % tiling.count;
    if (phase == 0)
      TransformInput<M>(bound, tiling, block, number);
    else
      TransformOutput<M>(bound, tiling, block, number);
  }
}

template <int M>
void Pack(const Step& step, const float* weights, float* packed) {
  constexpr int T = M + 2;
  const Tiling tiling(step, 0);
  const int64_t depth = tiling.in_blocks * kLanes, size = tiling.out_blocks * kLanes * depth;
  std::fill(packed, packed + T * T * size, 0.0f);
  for (int64_t filter = 0; filter < step.filters; ++filter)
    for (int64_t channel = 0; channel < step.channels; ++channel) {
      const float* g = weights + (filter * step.channels + channel) * 9;
      double half[T][3];
      for (int i = 0; i < T; ++i)
        for (int x = 0; x < 3; ++x) {
          half[i][x] = 0;
          for (int y = 0; y < 3; ++y) half[i][x] += Minimal<M>::kFilter[i][y] * g[y * 3 + x];
        }
      const int64_t group = filter / kLanes / step.group, first = group * step.group;
      const int64_t width = std::min(step.group, tiling.out_blocks - first) * kLanes;
      float* to = packed + first * kLanes * depth + channel * width + (filter - first * kLanes);
      for (int i = 0; i < T; ++i)
        for (int j = 0; j < T; ++j) {
          double sum = 0;
          for (int x = 0; x < 3; ++x) sum += half[i][x] * Minimal<M>::kFilter[j][x];
          to[(i * T + j) * size] = static_cast<float>(sum);
        }
    }
}

}  // namespace

int64_t WinogradPhases(const Step& step) {
  return 3 * Ceil(Tiling(step, 0).all, step.chunk);
}

int64_t WinogradTasks(const Step& step, int64_t phase) {
  const Tiling tiling(step, phase / 3);
  if (phase % 3 == 1) return Ceil(tiling.points * tiling.groups, Products(step, tiling));
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
  return tiling.points * tiling.in_blocks * tiling.out_blocks * kLanes * kLanes;
}

void PackWinograd(const Step& step, const float* weights, float* packed) {
  if (step.tile == 2)
    Pack<2>(step, weights, packed);
  else
    Pack<4>(step, weights, packed);
}

}  // namespace graphopt::blocked
