/*
 * The iteration space of a fused kernel, and how it is cut into tiles.
 */
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "fused_plan.h"

namespace graphopt {

constexpr int64_t kTileElements = 16384;  // a few times the level-1 cache
constexpr int64_t kMostColumns = 1024;    // of a tile: what is read in one go before memory jumps
constexpr int64_t kFewestColumns = 64;    // of a tile that is one for the sake of threads
constexpr int64_t kKeptElements = 1 << 18;  // of a tile, in scratch rows: about a level-2 cache
constexpr int64_t kColumnTiles = 8;       // at least, so that threads share them
constexpr int64_t kSlots = 32;            // partial sums; fixed, so that threads change no bit
constexpr int64_t kSummedRows = 1024;     // in a slot: of more, too much would be rounded away

/* What a call works on: sizes, and where each operand lies. */
struct Space {
  Plan* plan;
  std::vector<int64_t> extents;                // of groups
  std::vector<const TBlob*> operands;          // inputs, then outputs
  std::vector<std::vector<int64_t>> strides;   // [operand][group], in elements
  int64_t rows = 1, length = 1, inner_rows = 1;

  const Operand& Describe(size_t i) const {
    size_t n = plan->inputs.size();
    return i < n ? plan->inputs[i] : plan->outputs[i - n];
  }

  /* Where an element of a row lies in an operand, in elements. */
  int64_t Offset(size_t operand, int64_t row, int64_t element) const {
    const std::vector<int64_t>& step = strides[operand];
    const size_t last = extents.size() - 1;
    int64_t offset = element * step[last];
    for (size_t g = last; g-- > 0;) {
      offset += row % extents[g] * step[g];
      row /= extents[g];
    }
    return offset;
  }
};

/* Notes the extents of axes by the shape of an operand, of which `Whose` tells in errors. */
template <typename Whose>
void Fit(const Operand& operand, const mxnet::TShape& shape, const Whose& whose,
         std::vector<int64_t>* axes) {
  if (shape.ndim() != static_cast<int>(operand.axes.size()))
    Fail(whose() + " has " + std::to_string(shape.ndim()) + " axes; its kernel was made for " +
         std::to_string(operand.axes.size()));
  for (int d = 0; d < shape.ndim(); ++d) {
    int axis = operand.axes[d];
    bool fits = axis < 0 ? shape[d] == 1 : (*axes)[axis] < 0 || (*axes)[axis] == shape[d];
    if (!fits)
      Fail(whose() + " has extent " + std::to_string(shape[d]) + " on axis " + std::to_string(d) +
           ", which does not fit the other operands of its kernel");
    if (axis >= 0) (*axes)[axis] = shape[d];
  }
}

/* Fails if an axis of a kernel has an extent that no operand tells: 1 would be a wrong guess. */
void CheckTold(const Plan& plan, const std::vector<int64_t>& axes) {
  for (size_t axis = 0; axis < axes.size(); ++axis)
    if (axes[axis] < 0)
      Fail("no operand tells the extent of axis " + std::to_string(axis) + " of kernel " + plan.spec);
}

/* The space of axes whose extents are known. */
Space SpaceOf(Plan* plan, const std::vector<int64_t>& axes) {
  Space space;
  space.plan = plan;
  space.extents.assign(std::max(plan->groups, 1), 1);
  for (int axis = 0; axis < plan->rank; ++axis)
    space.extents[plan->group[axis]] *= axes[axis];
  size_t groups = space.extents.size();
  space.length = space.extents[groups - 1];
  for (size_t g = 0; g + 1 < groups; ++g) space.rows *= space.extents[g];
  space.inner_rows = groups >= 2 ? space.extents[groups - 2] : 1;
  return space;
}

/* Which groups of axes an operand runs along. */
std::vector<bool> Covered(const Space& space, const Operand& operand) {
  std::vector<bool> covered(space.extents.size(), false);
  for (int axis : operand.axes)
    if (axis >= 0) covered[space.plan->group[axis]] = true;
  return covered;
}

Space Measure(Plan* plan, const std::vector<const TBlob*>& inputs,
              const std::vector<const TBlob*>& outputs) {
  std::vector<int64_t> axes(plan->rank, -1);
  std::vector<const TBlob*> operands = inputs;
  operands.insert(operands.end(), outputs.begin(), outputs.end());
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand =
        i < inputs.size() ? plan->inputs[i] : plan->outputs[i - inputs.size()];
    auto whose = [&] { return "operand " + std::to_string(i) + " of kernel " + plan->spec; };
    Fit(operand, operands[i]->shape_, whose, &axes);
  }
  CheckTold(*plan, axes);
  Space space = SpaceOf(plan, axes);
  space.operands = std::move(operands);
  size_t groups = space.extents.size();
  for (size_t i = 0; i < space.operands.size(); ++i) {
    std::vector<bool> covered = Covered(space, space.Describe(i));
    std::vector<int64_t> strides(groups, 0);
    int64_t step = 1;
    for (size_t at = groups; at-- > 0;) {
      // Rows are the last group, columns the one before, which lies behind them in memory.
      const size_t g = plan->by_columns && at + 2 >= groups ? 2 * groups - 3 - at : at;
      if (covered[g]) { strides[g] = step; step *= space.extents[g]; }
    }
    space.strides.push_back(strides);
  }
  return space;
}

/* How the space is cut into tiles, blocks of a long row, several short rows or some columns, and what they
 * are computed in: sums of each slot and scratch rows of each thread. */
struct Tiling {
  int64_t block, blocks, tile_rows, tiles, slots;
  int64_t runs;  // tiles of rows that lie together: all, or one set of columns
  bool any_sums = false;
  std::vector<int64_t> sum_at;  // of an output in the sums of a slot, -1 of those not summed up
  int64_t sum_bytes = 0;        // of a slot
  int64_t row_bytes = 0;        // of a thread
  int threads = 1;

  int64_t partial_bytes() const { return any_sums ? slots * sum_bytes : 0; }
  int64_t bytes() const { return partial_bytes() + threads * row_bytes; }
};

/* Columns of a tile, of so many that lie side by side: nearly as many in each, and whole vectors. */
int64_t TileColumns(const Space& space, int64_t columns) {
  constexpr int64_t kWhole = 16;
  const int64_t length = std::max<int64_t>(space.length, 1);
  int64_t wanted = kMostColumns;
  if (space.plan->scratch_rows > 0) wanted = std::min(wanted, kKeptElements / length);
  wanted = std::max({wanted, kTileElements / length, kWhole});
  const int64_t sets = columns ? std::max<int64_t>(space.rows / columns, 1) : 1;
  const int64_t shared = std::min(kColumnTiles / sets, columns / kFewestColumns);
  const int64_t pieces = std::max({columns / wanted, shared, int64_t{1}});
  return std::max<int64_t>((columns + pieces * kWhole - 1) / (pieces * kWhole) * kWhole, 1);
}

/* Asks neither for requests nor for addresses: memory is planned before there are any. */
Tiling TilingOf(const Space& space) {
  const Plan& plan = *space.plan;
  const int64_t length = space.length, rows = space.rows;
  Tiling made;
  made.block = plan.whole_rows || length <= 2 * kTileElements ? std::max<int64_t>(length, 1)
                                                              : kTileElements;
  made.blocks = length == 0 ? 1 : (length + made.block - 1) / made.block;
  made.tile_rows = std::max<int64_t>(1, kTileElements / made.block);
  made.any_sums = std::any_of(plan.outputs.begin(), plan.outputs.end(),
                              [](const Operand& output) { return output.adds; });
  if (made.any_sums) made.tile_rows = std::min(made.tile_rows, kSummedRows);
  const int64_t together = plan.by_columns ? space.inner_rows : rows;
  if (plan.by_columns) made.tile_rows = TileColumns(space, together);
  made.runs = (together + made.tile_rows - 1) / made.tile_rows;
  made.tiles = made.runs * (together ? rows / together : 0) * made.blocks;
  int64_t sum_elements = 0;
  for (const Operand& output : plan.outputs) {
    made.sum_at.push_back(output.adds ? made.sum_bytes : -1);
    if (!output.adds) continue;
    int64_t size = 1;
    std::vector<bool> covered = Covered(space, output);
    for (size_t g = 0; g < covered.size(); ++g)
      if (covered[g]) size *= space.extents[g];
    made.sum_bytes += Align(size * plan.item_size);
    sum_elements += size;
  }
  made.slots = made.tiles;
  if (made.any_sums) {
    int64_t worth = rows * length / (4 * std::max<int64_t>(sum_elements, 1));
    // Of many numbers that few rows are added up to, more slots would take a lot of memory for nothing.
    const int64_t exact = std::min((rows + kSummedRows - 1) / kSummedRows, worth / 16);
    made.slots = std::max<int64_t>(1, std::min({std::max(kSlots, exact), made.tiles, worth}));
  }
  const int64_t columns = plan.by_columns ? made.tile_rows : 1;
  made.row_bytes =
      Align((plan.scratch_rows * made.block + plan.waiting) * columns * plan.item_size);
  made.threads = Threads(plan.cost * rows * length, made.slots);
  return made;
}

}  // namespace graphopt
