/*
 * Winograd's minimal filtering: its transforms, and how images are cut into tiles for it.
 */
#pragma once

#include <algorithm>

#include "lanes.h"

namespace graphopt::blocked {

struct Filters;

constexpr int64_t kTransforms = 48;  // tiles of a block of channels that a task transforms

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
  /* The gradient of Output: from a tile's output to the products. */
  static void OutputGradient(const Lanes* d, int64_t stride, Lanes* to, int64_t step) {
    const Lanes d0 = d[0], d1 = d[stride], d2 = d[2 * stride], d3 = d[3 * stride];
    const Lanes even = d0 + d2, odd = d1 + d3;
    const Lanes far_even = d0 + 4.0f * d2, far_odd = 2.0f * (d1 + 4.0f * d3);
    to[0] = d0;
    to[step] = even + odd;
    to[2 * step] = even - odd;
    to[3 * step] = far_even + far_odd;
    to[4 * step] = far_even - far_odd;
    to[5 * step] = d3;
  }
  static constexpr double kFilter[6][3] = {
      {1. / 4, 0, 0},           {-1. / 6, -1. / 6, -1. / 6}, {-1. / 6, 1. / 6, -1. / 6},
      {1. / 24, 1. / 12, 1. / 6}, {1. / 24, -1. / 12, 1. / 6}, {0, 0, 1}};
};

/* Floats from point to point, of so many vectors. As a power of two they would all be in the same set of the cache. */
inline int64_t OddLines(int64_t vectors) { return (vectors | 1) * kLanes; }

struct Tiling {
  int64_t chunk;  // tiles that there is room for
  int64_t down, across, all, first, count, side, points;
  int64_t in_blocks, out_blocks, groups;

  Tiling(const Step& step, int64_t number)
      : chunk(step.chunk),
        down(TilesOf(step.out.height, step.dilation_y, step.tile)),
        across(TilesOf(step.out.width, step.dilation_x, step.tile)),
        all(step.images * down * across),
        first(number * chunk),
        count(std::min(chunk, all - first)),
        side(step.tile + 2),
        points(side * side),
        in_blocks(Ceil(step.channels, kLanes)),
        out_blocks(Ceil(step.filters, kLanes)),
        groups(Ceil(out_blocks, step.group)) {}

  /* Transformed input [point][block][tile], then transformed output alike. */
  float* Input(const Bound& bound, int64_t point, int64_t block) const {
    return bound.arena + bound.step->scratch + point * InPoint() + block * count * kLanes;
  }
  float* Output(const Bound& bound, int64_t point, int64_t block) const {
    return Input(bound, 0, 0) + points * OddLines(in_blocks * chunk) + point * OutPoint() + block * count * kLanes;
  }
  /* What is behind both. */
  float* Behind(const Bound& bound) const { return Output(bound, 0, 0) + points * OddLines(out_blocks * chunk); }
  int64_t InPoint() const { return OddLines(in_blocks * count); }
  int64_t OutPoint() const { return OddLines(out_blocks * count); }
};

/* A tile's output, whose points are `point` floats apart, of a tile of training's. */
void TransformTrainingOutput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number, const float* from,
                             int64_t point);
/* Transforms tiles and makes them rows of pairs (paired_blocks.h), in tasks. */
int64_t PairedTransformTasks(const Tiling& tiling);
void PairedTransformTask(const Bound& bound, const Tiling& tiling, int64_t task);
/* Floats that are noted of a row of pairs at a point, behind transformed tiles; of large layers (filtering.h). */
int64_t NotedOfPairs(const Tiling& tiling, bool is_large);
/* All tiles' product with a panel of filters at a point. */
void MultiplyPairedTiles(const Bound& bound, const Tiling& tiling, int64_t point, int64_t panel);
/*
 * Of large layers some blocks of channels at a time: floats of a point of a panel of transformed filters, as wide as so
 * many blocks, with what is noted behind; makes pairs of it, and multiplies strips `begin` to `end` by it, written or
 * added where `to` is, rows of a block together.
 */
int64_t SlabOf(const Tiling& tiling);
int64_t StripsOf(const Tiling& tiling);
int64_t StripBegin(const Tiling& tiling, int64_t strip);
int64_t PairedSlabFloats(int64_t depth, int64_t blocks);
void PairSlab(const float* factors, int64_t depth, int64_t blocks, float* packed);
void MultiplyPairedSlab(const Bound& bound, const Tiling& tiling, int64_t point, int64_t slab, int64_t begin, int64_t end,
                        const float* packed, int64_t blocks, float* to, int64_t block_stride);
/* What channels `begin` to `end` of filters are multiplied by at all points, when all filters, too, have been noted;
 * `factors` has room for a number of each channel, and behind them of each filter. */
void NoteFilters(const Filters& filters, int64_t begin, int64_t end, float* factors);
void NoteChannels(const Filters& filters, int64_t begin, int64_t end, float* factors);
/* Floats of filters in pairs, for outputs that sum over `depth` numbers; makes pairs of packed ones. */
int64_t PackedPaired(const Step& step, int64_t depth, int64_t points);
void PairFilters(const Step& step, int64_t depth, int64_t points, int64_t point, float* packed);

/* The first output pixel of a tile, and how many of the tile's rows and columns the image has; others are `step.dilation`
 * apart. */
struct Corner {
  int64_t image, y, x, rows, columns;
  Corner(const Tiling& tiling, const Step& step, int64_t tile)
      : image(tile / (tiling.down * tiling.across)),
        y(Begin(tile / tiling.across % tiling.down, step.dilation_y, step.tile)),
        x(Begin(tile % tiling.across, step.dilation_x, step.tile)),
        rows(Count(step.out.height - y, step.dilation_y, step.tile)),
        columns(Count(step.out.width - x, step.dilation_x, step.tile)) {}

 private:
  static int64_t Begin(int64_t number, int64_t dilation, int64_t tile) {
    return number / dilation * tile * dilation + number % dilation;
  }
  static int64_t Count(int64_t left, int64_t dilation, int64_t tile) {
    return std::min(tile, left > 0 ? Ceil(left, dilation) : 0);
  }
};

/* A tile's block, transformed; its points go to `to` and `point` floats on each. */
template <int M>
inline void TransformInput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number, float* to,
                           int64_t point) {
  constexpr int T = M + 2;
  const Step& step = *bound.step;
  const View& in = step.in;
  const Corner corner(tiling, step, tiling.first + number);
  const int64_t top = corner.y - step.pad_y, left = corner.x - step.pad_x;
  const int64_t down = step.dilation_y, across = step.dilation_x;
  const float* from = bound.arena + in.Place(corner.image, block, 0);
  Lanes given[T * T], half[T * T];
  if (top >= 0 && left >= 0 && top + (T - 1) * down < in.height && left + (T - 1) * across < in.width) {
    for (int y = 0; y < T; ++y)
#pragma GCC unroll 6
      for (int x = 0; x < T; ++x)
        given[y * T + x] = LoadLanes(from + (top + y * down) * in.row_stride + (left + x * across) * kLanes);
  } else {
    const Lanes zero = {};
    for (int i = 0; i < T * T; ++i) {
      const int64_t y = top + i / T * down, x = left + i % T * across;
      const bool inside = y >= 0 && y < in.height && x >= 0 && x < in.width;
      given[i] = inside ? LoadLanes(from + y * in.row_stride + x * kLanes) : zero;
    }
  }
#pragma GCC unroll 6
  for (int x = 0; x < T; ++x) Minimal<M>::Input(given + x, T, half + x, T);
#pragma GCC unroll 6
  for (int y = 0; y < T; ++y) {
    Lanes row[T];
    Minimal<M>::Input(half + y * T, 1, row, 1);
#pragma GCC unroll 6
    for (int x = 0; x < T; ++x) StoreLanes(to + (y * T + x) * point, row[x]);
  }
}

template <int M>
inline void TransformInput(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number) {
  TransformInput<M>(bound, tiling, block, number, tiling.Input(bound, 0, block) + number * kLanes,
                    tiling.InPoint());
}

}  // namespace graphopt::blocked
