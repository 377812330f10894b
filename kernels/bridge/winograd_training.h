/*
 * Winograd's transforms of filters and of gradients, and sums of outer products; for files that are compiled for the
 * processor at hand.
 *
 * An output is A((G g) * (B d)) with g a filter, d a tile of the input, and A, B and G transforms along
 * both axes. So the gradient of g is G'((A' dy) * (B d)), summed over all tiles: a product over the tiles
 * for each transformed pixel, where MXNet's direct way has one of 4 times as many
 * multiplications (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).
 */
#pragma once

#include "filtering.h"
#include "lanes_transpose.h"
#include "winograd.h"

namespace graphopt::blocked {
namespace {  // each file that includes this may be compiled for other instructions

constexpr int M = kTrainingTile, T = M + 2;
constexpr int kTaps = 9;
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

/* Filters of a block for a block of channels: taps of all lanes, of one channel after the other. */
void LoadTaps(const Filters& filters, int64_t block, int64_t channel, Lanes* taps) {
  if (!filters.is_turned) {
    const float* from = filters.weights + (block * kLanes * filters.channels + channel) * kTaps;
    for (int part = 0; part < kTaps; ++part) {
      Lanes square[kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane)
        square[lane] = LoadLanes(from + lane * filters.channels * kTaps + part * kLanes);
      TransposeSquare(square);
      std::copy_n(square, kLanes, taps + part * kLanes);
    }
    return;
  }
  for (int64_t i = 0; i < kLanes; ++i, taps += kTaps) {
    const float* from = filters.weights + ((channel + i) * filters.count + block * kLanes) * kTaps;
    float turned[kTaps][kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane)
      for (int tap = 0; tap < kTaps; ++tap) turned[tap][lane] = from[lane * kTaps + kTaps - 1 - tap];
    for (int tap = 0; tap < kTaps; ++tap) taps[tap] = LoadLanes(turned[tap]);
  }
}

/* Filters of a block for a block of channels, transformed; channels are `stride` floats apart, points `point`. */
void TransformFilters(const Filters& filters, int64_t block, int64_t channel, float* to, int64_t stride, int64_t point) {
  Lanes all[kLanes * kTaps];
  LoadTaps(filters, block, channel, all);
  for (int64_t c = 0; c < kLanes; ++c, to += stride) {
    const Lanes* taps = all + c * kTaps;
    Lanes half[T * 3];
    for (int i = 0; i < T; ++i)
      for (int x = 0; x < 3; ++x) half[i * 3 + x] = Filtered(taps + x, 3, i);
    for (int i = 0; i < T; ++i)
      for (int j = 0; j < T; ++j) StoreLanes(to + (i * T + j) * point, Filtered(half + i * 3, 1, j));
  }
}

/* A tile of the gradient of the output, zero where it reaches over the edge; its points go to `to` and `point` floats
 * on each. */
void TransformGradient(const Bound& bound, const Tiling& tiling, int64_t block, int64_t number, float* to,
                       int64_t point) {
  const Step& step = *bound.step;
  const Corner corner(tiling, step, tiling.first + number);
  const Lanes zero = {};
  Lanes given[M * M], half[T * M];
  for (int y = 0; y < M; ++y) {
    const float* from = bound.arena + step.out.Place(corner.image, block, corner.y + y * step.dilation_y) +
                        corner.x * kLanes;
    for (int x = 0; x < M; ++x)
      given[y * M + x] = y < corner.rows && x < corner.columns ? LoadLanes(from + x * step.dilation_x * kLanes) : zero;
  }
  for (int x = 0; x < M; ++x) Minimal<M>::OutputGradient(given + x, M, half + x, M);
  for (int y = 0; y < T; ++y) {
    Lanes row[T];
    Minimal<M>::OutputGradient(half + y * M, 1, row, 1);
    for (int x = 0; x < T; ++x) StoreLanes(to + (y * T + x) * point, row[x]);
  }
}

/* Number `item` of the tiles to be transformed: those of the images, of all blocks, and then of the output's gradient. */
void TransformEither(const Bound& bound, const Tiling& tiling, int64_t item) {
  const int64_t block = item / tiling.count, number = item % tiling.count, out = block - tiling.in_blocks;
  if (out < 0) return TransformInput<M>(bound, tiling, block, number);
  TransformGradient(bound, tiling, out, number, tiling.Output(bound, 0, out) + number * kLanes,
                    tiling.OutPoint());
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

/* From products of a filter with a block of channels, `point` floats from point to point, to its taps. */
void TransformSums(const float* from, int64_t point, float* to, bool adds) {
  const Lanes zero = {};
  Lanes half[3 * T];
  for (int x = 0; x < 3; ++x)
    for (int j = 0; j < T; ++j) half[x * T + j] = zero;
  for (int i = 0; i < T; ++i)
    for (int j = 0; j < T; ++j) {
      const Lanes value = LoadLanes(from + (i * T + j) * point);
      for (int y = 0; y < 3; ++y)
        half[y * T + j] += static_cast<float>(Minimal<M>::kFilter[i][y]) * value;
    }
  for (int y = 0; y < 3; ++y)
    for (int x = 0; x < 3; ++x) {
      Lanes sum = zero;
      for (int j = 0; j < T; ++j)
        sum += static_cast<float>(Minimal<M>::kFilter[j][x]) * half[y * T + j];
      float* tap = to + y * 3 + x;
      for (int64_t lane = 0; lane < kLanes; ++lane) tap[lane * kTaps] = adds ? tap[lane * kTaps] + sum[lane] : sum[lane];
    }
}

}  // namespace
}  // namespace graphopt::blocked
