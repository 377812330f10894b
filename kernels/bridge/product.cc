/*
 * The products of product.h, compiled for the processor at hand; see build.py.
 */
#include "product.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lanes.h"
#include "lanes_math.h"

namespace graphopt::product {
namespace {

using blocked::Ceil;
using blocked::kLanes;
using blocked::Lanes;
using blocked::LoadLanes;
using blocked::StoreLanes;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRows = 8, kVectors = 3;
#elif defined(__AVX__)
constexpr int kRows = 4, kVectors = 3;
#else
constexpr int kRows = 4, kVectors = 2;
#endif
constexpr int64_t kWidth = kVectors * kLanes;
constexpr int64_t kDepth = 768;            // of a part at most
constexpr int64_t kStrip = 384;            // of which so much of some rows is copied at a time
constexpr int64_t kStride = kStrip + 16;   // of copied rows, which must not share cache sets
constexpr int64_t kNearFloats = 150'000;   // of the matrix that stay in the second-level cache
constexpr int64_t kChunkRows = 64;
constexpr int64_t kTasksEach = 6;          // that a thread should find, if there is work enough

/* One tile: what it multiplies and where it goes. */
struct Tile {
  const float* left;  // a copied strip
  const float* packed;
  int64_t depth;
  float* to;
  int64_t to_stride, columns;
  bool adds;
  const Operands* finish;  // null: more of the depth is to come
  const float* bias;
};

template <int64_t kActivation>
inline Lanes Activate(Lanes x) {
  const Lanes zero = {};
  switch (kActivation) {
    case kRelu: return x < zero ? zero : x;  // NaN stays
    case kGelu: return blocked::Gelu(x);
    default: return x;
  }
}

template <int64_t kActivation>
void FinishAs(const Tile& tile, Lanes* sum, int rows, int vectors) {
  const Lanes zero = {};
  for (int v = 0; v < vectors; ++v) {
    const Lanes bias = tile.bias ? LoadLanes(tile.bias + v * kLanes) : zero;
    for (int i = 0; i < rows; ++i) {
      const Lanes x = Activate<kActivation>(sum[i * vectors + v] + bias);
      StoreLanes(tile.to + i * tile.to_stride + v * kLanes, x);
    }
  }
}

void Finish(const Tile& tile, Lanes* sum, int rows, int vectors) {
  switch (tile.finish->activation) {
    case kRelu: return FinishAs<kRelu>(tile, sum, rows, vectors);
    case kGelu: return FinishAs<kGelu>(tile, sum, rows, vectors);
    default: return FinishAs<kNone>(tile, sum, rows, vectors);
  }
}

template <int R, int V>
void Whole(const Tile& tile) {
  Lanes sum[R][V];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v)
      sum[i][v] = tile.adds ? LoadLanes(tile.to + i * tile.to_stride + v * kLanes) : Lanes{};
  const float* left = tile.left;
  const float* packed = tile.packed;
#pragma GCC unroll 4
  for (int64_t p = 0; p < tile.depth; ++p, ++left, packed += V * kLanes) {
    Lanes b[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) b[v] = LoadLanes(packed + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const float a = left[i * kStride];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sum[i][v] += a * b[v];
    }
  }
  if (tile.finish) return Finish(tile, &sum[0][0], R, V);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) StoreLanes(tile.to + i * tile.to_stride + v * kLanes, sum[i][v]);
}

void CopyRows(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
              int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * to_stride, from + i * from_stride, columns * sizeof(float));
}

/* Columns that are no whole vectors: computed in a place of their own, where there is room. */
template <int R, int V>
void Narrow(const Tile& tile) {
  float to[R * V * kLanes] = {}, bias[V * kLanes] = {};
  Tile own = tile;
  own.to = to;
  own.to_stride = V * kLanes;
  own.columns = V * kLanes;
  if (tile.adds) CopyRows(tile.to, tile.to_stride, to, own.to_stride, R, tile.columns);
  if (tile.bias) {
    std::memcpy(bias, tile.bias, tile.columns * sizeof(float));
    own.bias = bias;
  }
  Whole<R, V>(own);
  CopyRows(to, own.to_stride, tile.to, tile.to_stride, R, tile.columns);
}

template <int R, int V>
void Run(const Tile& tile) {
  return tile.columns == V * kLanes ? Whole<R, V>(tile) : Narrow<R, V>(tile);
}

using Runner = void (*)(const Tile&);

template <int V, int... R>
Runner OfRows(int64_t rows, std::integer_sequence<int, R...>) {
  static const Runner table[] = {Run<R + 1, V>...};
  return table[rows - 1];
}

Runner Pick(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kRows> all;
  if constexpr (kVectors >= 2) {
    if (vectors == 2) return OfRows<2>(rows, all);
    if (vectors == 3) return OfRows<kVectors>(rows, all);
  }
  return OfRows<1>(rows, all);
}

/* Floats of a row of panel `panel`. */
int64_t WidthOf(int64_t units, int64_t panel) {
  return std::min(kWidth, Ceil(units - panel * kWidth, kLanes) * kLanes);
}

}  // namespace

Plan MakePlan(int64_t rows, int64_t depth, int64_t units, int64_t threads) {
  Plan plan{rows, depth, units};
  plan.panels = Ceil(units, kWidth);
  plan.parts = std::max<int64_t>(1, Ceil(depth, kDepth));
  plan.part = Ceil(depth, plan.parts);
  plan.strips = Ceil(rows, kRows);
  plan.chunk = kChunkRows / kRows;
  plan.chunks = Ceil(plan.strips, plan.chunk);
  const int64_t near = kNearFloats / std::max<int64_t>(1, plan.part * kWidth);
  const int64_t even = plan.panels * plan.chunks / (kTasksEach * threads);
  plan.team = std::max<int64_t>(1, std::min({near, even, plan.panels}));
  plan.teams = Ceil(plan.panels, plan.team);
  return plan;
}

void RunTask(const Plan& plan, const Operands& operands, int64_t task) {
  const int64_t chunk = task % plan.chunks, part = task / plan.chunks % plan.parts;
  const int64_t team = task / plan.chunks / plan.parts;
  const int64_t deep = part * plan.part, depth = std::min(plan.part, plan.depth - deep);
  const int64_t first = team * plan.team, last = std::min(plan.panels, first + plan.team);
  const int64_t strips = std::min(plan.strips, (chunk + 1) * plan.chunk);
  const bool ends = part == plan.parts - 1;
  alignas(64) float left[kRows * kStride];
  for (int64_t strip = chunk * plan.chunk; strip < strips; ++strip) {
    const int64_t begin = plan.rows * strip / plan.strips;
    const int64_t rows = plan.rows * (strip + 1) / plan.strips - begin;
    for (int64_t at = deep; at < deep + depth; at += kStrip) {
      const int64_t some = std::min(kStrip, deep + depth - at);
      CopyRows(operands.from + begin * plan.depth + at, plan.depth, left, kStride, rows, some);
      const bool finishes = ends && at + some == plan.depth;
      for (int64_t panel = first; panel < last; ++panel) {
        const int64_t column = panel * kWidth, place = begin * plan.units + column;
        const int64_t width = WidthOf(plan.units, panel);
        const Tile tile{left,
                        operands.packed + column * plan.depth + at * width,
                        some,
                        operands.to + place,
                        plan.units,
                        std::min(kWidth, plan.units - column),
                        at > 0,
                        finishes ? &operands : nullptr,
                        finishes && operands.bias ? operands.bias + column : nullptr};
        Pick(rows, width / kLanes)(tile);
      }
    }
  }
}

int64_t PackedSize(int64_t depth, int64_t units) { return depth * Ceil(units, kLanes) * kLanes; }

void Pack(const float* weights, int64_t depth, int64_t units, float* packed) {
  for (int64_t panel = 0; panel * kWidth < units; ++panel) {
    const int64_t width = WidthOf(units, panel);
    for (int64_t i = 0; i < width; ++i) {
      const int64_t unit = panel * kWidth + i;
      for (int64_t p = 0; p < depth; ++p)
        packed[p * width + i] = unit < units ? weights[unit * depth + p] : 0.0f;
    }
    packed += depth * width;
  }
}

}  // namespace graphopt::product
