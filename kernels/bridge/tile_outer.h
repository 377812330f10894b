/*
 * Sums of outer products by a processor's matrix unit (AMX); see tiles.h.
 */
#pragma once

#include "tile_rows.h"

#if GRAPHOPT_TILES

namespace graphopt::tiles {

/* Rows of `columns` numbers, as columns of outer products' operands; whether they could be split. */
template <typename F, bool kAreLeft>
bool SplitOuter(const float* const* rows, int64_t columns, const Depth<F>& depth, Panels* panels) {
  const int64_t count = Ceil(columns, kBlock);
  panels->at = Aligned(&panels->kept, count * depth.Size());
  panels->factors.resize(count * kBlock);
  panels->are_scaled.assign(count, false);
  constexpr float kEvery = kAreLeft ? 1 : kUnscale<F>;
  bool is_fault = false;
  for (int64_t block = 0; block < count; ++block) {
    const int64_t j = block * kBlock;
    const Scales scales = SplitPanel<F, kAreLeft>([&](int64_t p) { return rows[p] + j; }, depth,
                                                  std::min(kBlock, columns - j),
                                                  panels->at + block * depth.Size());
    for (int64_t i = 0; i < kBlock; ++i) panels->factors[j + i] = kEvery * scales.factors[i];
    panels->are_scaled[block] = !scales.are_usual || kEvery != 1;
    is_fault = is_fault || scales.is_fault;
  }
  if (kAreLeft && !is_fault) TurnTiles(panels->at, count * depth.Size() / kTile);
  return !is_fault;
}

/* Adds the outer products of some rows; left operands are split once for all sums. */
template <typename F>
void AddOuter(Scratch* scratch, const OuterSum<float>* sums, int64_t count, int64_t m) {
  const Depth<F> depth(scratch->count);
  Panels &left = scratch->outer[0], &right = scratch->outer[1];
  const bool is_split = SplitOuter<F, true>(scratch->left_rows[0], m, depth, &left);
  for (int64_t sum = 0; sum < count; ++sum) {
    const auto [segments, n, c, c_stride] = sums[sum];
    if (!is_split || !SplitOuter<F, false>(scratch->right_rows[sum], n, depth, &right)) {
      for (int64_t p = 0; p < depth.numbers; ++p) {
        const Segment<float> one{scratch->left_rows[0][p], scratch->right_rows[sum][p], 0, 0, 1};
        const OuterSum<float> alone{&one, n, c, c_stride};
        plain->outer(&alone, 1, 1, m);
      }
      continue;
    }
    scratch->to_outer.clear();
    for (int64_t r = 0; r < m; ++r) scratch->to_outer.push_back(c + r * c_stride);
    Pending pending;
    for (int64_t j = 0; j < n; j += kBlock)
      for (int64_t i = 0; i < m; i += kBlock) {
        const Operands<F> operands{left.at + i / kBlock * depth.Size(), right.at + j / kBlock * depth.Size(),
                                   depth};
        Target target{scratch->to_outer.data() + i, j, std::min(kBlock, m - i), std::min(kBlock, n - j),
                      true};
        if (left.are_scaled[i / kBlock]) target.of_rows = left.factors.data() + i;
        if (right.are_scaled[j / kBlock]) target.of_columns = right.factors.data() + j;
        MultiplyBlock(&operands, 1, target, &pending);
      }
    pending.HandOut(kBlock);
  }
  scratch->count = 0;
}

template <typename F>
void Outer(const OuterSum<float>* sums, int64_t count, int64_t segments, int64_t m) {
  Scratch& scratch = EmptyScratch();
  const Configured configured;
  int64_t total = 0;
  for (int64_t at = 0; at < segments; ++at) total += sums->segments[at].rows;
  const int64_t parts = std::max<int64_t>(Ceil(total, kMostRows), 1);
  const int64_t part = Ceil(Ceil(total, parts), kStep) * kStep;
  for (int64_t at = 0; at < segments; ++at) {
    const Segment<float>& first = sums->segments[at];
    for (int64_t r = 0; r < first.rows; ++r) {
      scratch.left_rows[0][scratch.count] =
          first.left + RowOf(first.left_index, r) * first.left_stride;
      for (int64_t sum = 0; sum < count; ++sum) {
        const Segment<float>& segment = sums[sum].segments[at];
        scratch.right_rows[sum][scratch.count] =
            segment.right + RowOf(segment.right_index, r) * segment.right_stride;
      }
      if (++scratch.count == part) AddOuter<F>(&scratch, sums, count, m);
    }
  }
  if (scratch.count > 0) AddOuter<F>(&scratch, sums, count, m);
}

}  // namespace graphopt::tiles

#endif
