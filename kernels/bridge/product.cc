/*
 * The products of product.h, compiled for the processor at hand; see build.py.
 */
#include "product.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ask.h"
#include "lanes.h"
#include "lanes_math.h"
#include "lanes_transpose.h"

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
constexpr int64_t kDepth = 768;           // of a part at most
constexpr int64_t kStride = kDepth + 16;  // of copied rows, which must not share cache sets
constexpr int64_t kChunk = 16;            // strips of which a part is copied at a time
constexpr int64_t kFewRows = 64;          // that a matrix is not packed for
constexpr int64_t kFewestRows = 16;       // not even if its rows share cache sets
constexpr int64_t kShared = 1024;         // floats from one to the next where they do
constexpr int64_t kUnitsAtOnce = 64;      // that are turned at a time
constexpr int64_t kFewStrips = 2;         // of a chunk at least, for which a panel is read again
constexpr int64_t kTasksEach = 4;         // that a thread should find, if there is work enough
constexpr int64_t kRoom = kChunk * kRows * kStride;  // floats of copied rows
constexpr uintptr_t kLineBytes = 64;
constexpr int64_t kLineFloats = kLineBytes / sizeof(float);
constexpr size_t kMostKept = 4 << 20;     // floats of a thread's buffer, unless a call needs more
constexpr int64_t kRowsOfTask = 64;       // that are packed at a time
constexpr int64_t kRowsAhead = 16;        // that are asked for before they are copied
constexpr int64_t kAhead = 32;            // steps of the depth that weights are asked for before

/* One tile: what it multiplies and where it goes. */
struct Tile {
  const float* left;
  const float* packed;
  int64_t left_stride, right_stride;  // floats from row to row, where they are read as they lie
  int64_t depth;
  float* to;
  int64_t to_stride, columns;
  bool adds;          // to what is there
  const float* bias;  // or null
  Activation activation;
};

/* A second pass over a tile that was just written, since GELU needs the registers of the sums. */
void GeluInPlace(const Tile& tile, int rows, int vectors) {
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v) {
      float* at = tile.to + i * tile.to_stride + v * kLanes;
      StoreLanes(at, blocked::Gelu(LoadLanes(at)));
    }
}

/* Far: the weights come from beyond the second-level cache. Direct: rows or weights are read where they lie. */
template <int R, int V, bool Far, bool Direct>
void Whole(const Tile& tile) {
  const int64_t left_stride = Direct ? tile.left_stride : kStride;
  const int64_t right_stride = Direct ? tile.right_stride : V * kLanes;
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) __builtin_prefetch(tile.to + i * tile.to_stride + v * kLanes, 1);
  Lanes sum[R][V] = {};
  const float* left = tile.left;
  const float* packed = tile.packed;
#pragma GCC unroll 4
  for (int64_t p = 0; p < tile.depth; ++p, ++left, packed += right_stride) {
    Lanes b[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      b[v] = LoadLanes(packed + v * kLanes);
      if (Direct) {
        __builtin_prefetch(packed + kRowsAhead * right_stride + v * kLanes);
      } else if (Far) {
        __builtin_prefetch(packed + (kAhead * V + v) * kLanes);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const float a = left[i * left_stride];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sum[i][v] += a * b[v];
    }
  }
  const Lanes zero = {};
#pragma GCC unroll 3
  for (int v = 0; v < V; ++v) {
    const Lanes bias = tile.bias ? LoadLanes(tile.bias + v * kLanes) : zero;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      float* at = tile.to + i * tile.to_stride + v * kLanes;
      Lanes x = sum[i][v] + bias;
      if (tile.adds) x += LoadLanes(at);
      if (tile.activation == kRelu) x = x < zero ? zero : x;  // NaN stays
      StoreLanes(at, x);
    }
  }
  if (tile.activation == kGelu) GeluInPlace(tile, R, V);
}

void CopyRows(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
              int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * to_stride, from + i * from_stride, columns * sizeof(float));
}

/* Columns that are no whole vectors: computed in a place of their own, where there is room. */
template <int R, int V, bool Far, bool Direct>
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
  Whole<R, V, Far, Direct>(own);
  CopyRows(to, own.to_stride, tile.to, tile.to_stride, R, tile.columns);
}

template <int R, int V, bool Far, bool Direct>
void Run(const Tile& tile) {
  return tile.columns == V * kLanes ? Whole<R, V, Far, Direct>(tile) : Narrow<R, V, Far, Direct>(tile);
}

using Runner = void (*)(const Tile&);

template <int V, bool Far, bool Direct, int... R>
Runner OfRows(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Runner table[] = {Run<R + 1, V, Far, Direct>...};
  return table[rows - 1];
}

template <bool Far, bool Direct>
Runner Pick(int64_t rows, int64_t vectors) {
  constexpr std::make_integer_sequence<int, kRows> all;
  if constexpr (kVectors == 3) {
    if (vectors == 3) return OfRows<3, Far, Direct>(rows, all);
  }
  return vectors == 2 ? OfRows<2, Far, Direct>(rows, all) : OfRows<1, Far, Direct>(rows, all);
}

Runner Pick(const Plan& plan, bool is_far, int64_t rows, int64_t vectors) {
  const bool copies = plan.copies || plan.turns;
  if (!copies || plan.right_stride) return Pick<false, true>(rows, vectors);
  return is_far ? Pick<true, false>(rows, vectors) : Pick<false, false>(rows, vectors);
}

/* Where in `kept` there are so many floats; they begin where a cache line does. What is there is lost,
 * and given back if it is much more than is needed now. */
float* Aligned(std::vector<float>* kept, int64_t floats) {
  const size_t size = floats + kLineFloats;
  if (kept->size() < size || kept->size() > std::max(size, kMostKept)) {
    std::vector<float>().swap(*kept);  // first, as growing would copy it
    kept->resize(size);
  }
  const auto at = reinterpret_cast<uintptr_t>(kept->data());
  return kept->data() + (-at % kLineBytes) / sizeof(float);
}

/* Memory of this thread, for copied rows. */
float* Room() {
  static thread_local std::vector<float> kept;
  return Aligned(&kept, kRoom);
}

/* Floats of a row of panel `panel`. */
int64_t WidthOf(int64_t units, int64_t panel) {
  return std::min(kWidth, Ceil(units - panel * kWidth, kLanes) * kLanes);
}

/* Floats of a row of all panels. */
int64_t WidthOf(int64_t units) { return Ceil(units, kLanes) * kLanes; }

/* Where part `part` of the depth begins. */
int64_t PartAt(int64_t depth, int64_t part) { return depth * part / Ceil(depth, kDepth); }

/* Columns `at` to `next` of what is transposed, as rows of a panel. */
void TurnPanel(const Matrix& matrix, int64_t units, int64_t at, int64_t next, int64_t panel,
               float* packed) {
  const int64_t width = WidthOf(units, panel), column = panel * kWidth;
  const int64_t columns = std::min(width, units - column);
  if (columns < width) std::memset(packed, 0, (next - at) * width * sizeof(float));
  blocked::Transpose(matrix.at + column * matrix.stride + at, matrix.stride, columns, next - at,
                     packed, width);
}

/* A row of a panel, with zeros behind it. */
void CopyVectors(const float* from, int64_t columns, float* to) {
  for (; columns >= kLanes; columns -= kLanes, from += kLanes, to += kLanes)
    StoreLanes(to, LoadLanes(from));
  if (columns == 0) return;
  StoreLanes(to, Lanes{});
  std::memcpy(to, from, columns * sizeof(float));
}

/* Rows `begin` to `end` of a part that is rows `at` to `next`, cut into panels. */
void CutRows(const Matrix& matrix, int64_t units, int64_t at, int64_t next, int64_t begin, int64_t end,
             float* packed) {
  for (int64_t p = begin; p < end; ++p) {
    const float* from = matrix.at + p * matrix.stride;
    if (matrix.stride > units && p + kRowsAhead < end)  // no stream that the processor sees coming
      AskForRow(from + kRowsAhead * matrix.stride, units);
    for (int64_t column = 0; column < units; column += kWidth) {
      const int64_t width = WidthOf(units, column / kWidth);
      CopyVectors(from + column, std::min(kWidth, units - column),
                  packed + (next - at) * column + (p - at) * width);
    }
  }
}

/* The rows of a chunk, in one part of their depth; copied unless this thread has them already. */
const float* CopiedRows(const Plan& plan, const Operands& operands, int64_t chunk, int64_t part,
                        Copied* copied) {
  const int64_t first = plan.RowOf(chunk * plan.chunk);
  const int64_t rows = plan.RowOf(std::min(plan.strips, (chunk + 1) * plan.chunk)) - first;
  const bool all_fit = rows * kStride * Ceil(plan.depth, kDepth) <= kRoom;
  if (copied->chunk != chunk || !all_fit) *copied = {chunk, 0};
  float* to = Room() + (all_fit ? part * rows * kStride : 0);
  if (part < copied->parts) return to;
  const int64_t at = PartAt(plan.depth, part), depth = PartAt(plan.depth, part + 1) - at;
  copied->parts = part + 1;
  if (plan.turns) {
    blocked::Transpose(operands.from + at * plan.from_stride + first, plan.from_stride, depth, rows, to,
                       kStride);
    return to;
  }
  const float* from = operands.from + first * plan.from_stride + at;
  for (int64_t i = 0; i < rows; ++i, from += plan.from_stride) {
    if (plan.from_stride > plan.depth && i + kRowsAhead < rows)
      AskForRow(from + kRowsAhead * plan.from_stride, depth);
    std::memcpy(to + i * kStride, from, depth * sizeof(float));
  }
  return to;
}

/* Rows `at` to `next` of a panel of a matrix that is not packed, where they lie; of one that is no whole vectors in a
 * place of their own, as there is no room behind the last. */
const float* RowsOfPanel(const Plan& plan, const Operands& operands, int64_t at, int64_t next, int64_t panel,
                         int64_t* stride) {
  const int64_t column = panel * kWidth, width = WidthOf(plan.units, panel);
  const float* from = operands.packed + at * plan.right_stride + column;
  if (column + width <= plan.units) {
    *stride = plan.right_stride;
    return from;
  }
  static thread_local std::vector<float> kept;
  float* to = Aligned(&kept, kDepth * kWidth);
  for (int64_t p = at; p < next; ++p, from += plan.right_stride)
    CopyVectors(from, plan.units - column, to + (p - at) * width);
  return to;
}

/* Whether packing a matrix would take longer than reading it where it lies. */
bool IsReadInPlace(int64_t rows, const Matrix& right) {
  return !right.is_transposed && rows <= (right.stride % kShared ? kFewRows : kFewestRows);
}

/* Units `first` to `last` of a product that was computed the other way round. */
void TurnBack(const Problem& problem, const float* made, int64_t first, int64_t last) {
  float turned[kFewRows * kUnitsAtOnce];
  blocked::Transpose(made + first * problem.rows, problem.rows, last - first, problem.rows, turned, kUnitsAtOnce);
  for (int64_t i = 0; i < problem.rows; ++i) {
    const float* from = turned + i * kUnitsAtOnce;
    float* to = problem.to + i * problem.to_stride + first;
    for (int64_t j = 0; j < last - first; ++j)
      to[j] = from[j] + (problem.bias ? problem.bias[first + j] : 0) + (problem.adds ? to[j] : 0);
  }
}

/* `body` in each of so many threads; one by itself makes no team, which would take as long as a small product. */
template <typename Body>
void InThreads(int threads, const Body& body) {
  if (threads == 1) return body();
#pragma omp parallel num_threads(threads)
  body();
}

/* `body(task)` of each, shared by those threads. */
template <typename Body>
void EachTask(int threads, int64_t tasks, const Body& body) {
  if (threads == 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
#pragma omp for schedule(dynamic, 1)
  for (int64_t task = 0; task < tasks; ++task) body(task);
}

/* Few rows times a matrix whose columns are adjacent numbers: these times the rows, as they then need no packing. */
void MultiplyTurned(const Problem& problem, int threads) {
  const int64_t rows = problem.rows, depth = problem.depth, units = problem.units;
  static thread_local std::vector<float> kept;
  float *packed = PackedRoom(depth, rows), *made = Aligned(&kept, units * rows);
  const Matrix right{problem.left.at, problem.left.stride, !problem.left.is_transposed};
  Plan plan = MakePlan(units, depth, rows, threads);
  plan.from_stride = problem.right.stride;
  plan.copies = false;
  const Operands operands{problem.right.at, packed, nullptr, made, kNone, false};
  InThreads(threads, [&] {
    EachTask(threads, PackTasks(right, depth, rows), [&](int64_t task) { PackTask(right, depth, rows, task, packed); });
    Copied copied;
    EachTask(threads, plan.tasks(), [&](int64_t task) { RunTask(plan, operands, task, &copied); });
    EachTask(threads, Ceil(units, kUnitsAtOnce), [&](int64_t task) {
      const int64_t first = task * kUnitsAtOnce;
      TurnBack(problem, made, first, std::min(units, first + kUnitsAtOnce));
    });
  });
}

}  // namespace

Plan MakePlan(int64_t rows, int64_t depth, int64_t units, int64_t threads) {
  Plan plan{rows, depth, units, depth, units};
  plan.panels = Ceil(units, kWidth);
  plan.strips = Ceil(rows, kRows);
  plan.chunks = Ceil(plan.strips, kChunk);
  const int64_t wanted = kTasksEach * threads;
  if (threads > 1 && plan.chunks * plan.panels < wanted)  // of fewer rows, where there are few panels
    plan.chunks = std::max(plan.chunks, std::min(plan.strips / kFewStrips, wanted));
  plan.chunk = Ceil(plan.strips, plan.chunks);
  plan.chunks = Ceil(plan.strips, plan.chunk);
  plan.teams = std::min(plan.panels, Ceil(wanted, plan.chunks));
  plan.team = Ceil(plan.panels, plan.teams);
  plan.teams = Ceil(plan.panels, plan.team);
  plan.copies = plan.panels > 1;  // which read them one after the other
  return plan;
}

void RunTask(const Plan& plan, const Operands& operands, int64_t task, Copied* copied) {
  const int64_t chunk = task / plan.teams, team = task % plan.teams;
  const int64_t panels = std::min(plan.panels, (team + 1) * plan.team);
  const int64_t first = chunk * plan.chunk, last = std::min(plan.strips, first + plan.chunk);
  const bool copies = plan.copies || plan.turns;
  const int64_t left_stride = copies ? kStride : plan.from_stride;
  for (int64_t part = 0, at = 0; at < plan.depth; ++part) {
    const float* left = copies ? CopiedRows(plan, operands, chunk, part, copied)
                               : operands.from + plan.RowOf(first) * plan.from_stride + at;
    const int64_t next = PartAt(plan.depth, part + 1), depth = next - at;
    const bool ends = next == plan.depth;
    for (int64_t panel = team * plan.team; panel < panels; ++panel) {
      const int64_t column = panel * kWidth, vectors = WidthOf(plan.units, panel) / kLanes;
      Tile tile;
      tile.left_stride = left_stride;
      tile.right_stride = vectors * kLanes;
      tile.packed = plan.right_stride ? RowsOfPanel(plan, operands, at, next, panel, &tile.right_stride)
                                      : operands.packed + at * WidthOf(plan.units) + column * depth;
      tile.depth = depth;
      tile.to_stride = plan.to_stride;
      tile.columns = std::min(kWidth, plan.units - column);
      tile.adds = part > 0 || operands.adds;
      tile.bias = ends && operands.bias ? operands.bias + column : nullptr;
      tile.activation = ends ? static_cast<Activation>(operands.activation) : kNone;
      for (int64_t strip = first; strip < last; ++strip) {
        const int64_t row = plan.RowOf(strip), rows = plan.RowOf(strip + 1) - row;
        tile.left = left + (row - plan.RowOf(first)) * left_stride;
        tile.to = operands.to + row * plan.to_stride + column;
        Pick(plan, strip == first, rows, vectors)(tile);
      }
    }
    at = next;
  }
}

int64_t PackTasks(const Matrix& matrix, int64_t depth, int64_t units) {
  return matrix.is_transposed ? Ceil(units, kWidth) : Ceil(depth, kRowsOfTask);
}

void PackTask(const Matrix& matrix, int64_t depth, int64_t units, int64_t task, float* packed) {
  for (int64_t part = 0, at = 0; at < depth; ++part) {
    const int64_t next = PartAt(depth, part + 1);
    if (matrix.is_transposed)
      TurnPanel(matrix, units, at, next, task, packed + (next - at) * task * kWidth);
    else
      CutRows(matrix, units, at, next, std::max(at, task * kRowsOfTask),
              std::min(next, (task + 1) * kRowsOfTask), packed);
    packed += (next - at) * WidthOf(units);
    at = next;
  }
}

int64_t PanelWidth() { return kWidth; }

int64_t PackedSize(int64_t depth, int64_t units) { return depth * WidthOf(units); }

void Pack(const float* weights, int64_t depth, int64_t units, float* packed) {
  PackMatrix({weights, depth, true}, depth, units, packed);
}

void PackMatrix(const Matrix& matrix, int64_t depth, int64_t units, float* packed) {
  for (int64_t task = 0; task < PackTasks(matrix, depth, units); ++task)
    PackTask(matrix, depth, units, task, packed);
}

void MultiplyPacked(int64_t rows, int64_t depth, int64_t units, const Matrix& left, const float* packed,
                    float* to, int64_t to_stride, bool adds) {
  Plan plan = MakePlan(rows, depth, units, 1);
  plan.to_stride = to_stride;
  plan.from_stride = left.stride;
  plan.turns = left.is_transposed;
  plan.team = plan.panels;  // rows are copied for one team after the other
  plan.teams = 1;
  Copied copied;
  for (int64_t task = 0; task < plan.tasks(); ++task)
    RunTask(plan, {left.at, packed, nullptr, to, kNone, adds}, task, &copied);
}

void Compute(const Problem& problem, int threads) {
  const int64_t rows = problem.rows, depth = problem.depth, units = problem.units;
  const Matrix &left = problem.left, &right = problem.right;
  if (right.is_transposed && rows <= kFewRows && problem.activation == kNone) return MultiplyTurned(problem, threads);
  const bool in_place = IsReadInPlace(rows, right);
  float* packed = in_place ? nullptr : PackedRoom(depth, units);
  Plan plan = MakePlan(rows, depth, units, threads);
  plan.from_stride = left.stride;
  plan.to_stride = problem.to_stride;
  plan.turns = left.is_transposed;
  plan.right_stride = in_place ? right.stride : 0;
  if (threads == 1) {  // rows are copied for one team after the other
    plan.team = plan.panels;
    plan.teams = 1;
  }
  const Operands operands{left.at, in_place ? right.at : packed, problem.bias, problem.to, problem.activation,
                          problem.adds};
  InThreads(threads, [&] {
    EachTask(threads, in_place ? 0 : PackTasks(right, depth, units),
             [&](int64_t task) { PackTask(right, depth, units, task, packed); });
    Copied copied;
    EachTask(threads, plan.tasks(), [&](int64_t task) { RunTask(plan, operands, task, &copied); });
  });
}

void Multiply(int64_t rows, int64_t depth, int64_t units, const Matrix& left, const Matrix& right,
              float* to, int64_t to_stride, bool adds) {
  Compute({rows, depth, units, left, right, nullptr, kNone, adds, to, to_stride}, 1);
}

float* PackedRoom(int64_t depth, int64_t units) {
  static thread_local std::vector<float> kept;
  return Aligned(&kept, PackedSize(depth, units));
}

}  // namespace graphopt::product
