/*
 * Gradients of matrices that are one product over the whole batch.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "chunks.h"
#include "flush.h"

namespace graphopt::walks {

/* Whether two outer products are added to the same elements. */
inline bool Overlap(const Step& a, const Step& b) {
  return a.which == b.which && a.row < b.row + b.width && b.row < a.row + a.width &&
         a.column < b.column + b.depth && b.column < a.column + a.depth;
}

/* Whether all rows of an operand may lie there once there was a single step; a ring of very many rows
 * would be more memory than partial gradients are. */
inline bool Stays(const Program& program, const Spot& spot, int64_t rows) {
  if (spot.place == kSequence) return !program.sequence_is_written[spot.index];
  if (spot.place != kRing) return false;
  const int64_t item = program.is_double ? sizeof(double) : sizeof(float);
  return rows * program.ring_widths[spot.index] * item <= kMostKept;
}

/* Matrices whose gradient is one product over the whole batch: there is one step, and its operands are
 * rows of sequences, or of rings that get a row for each of the batch. Partial gradients of chunks
 * would have to be cleared and summed. */
inline std::vector<bool> FindWhole(const Program& program, const RecurrenceCall& call) {
  std::vector<bool> whole(program.matrix_rows.size(),
                          program.backward && call.steps == 1 && !call.lengths);
  for (size_t n = 0; n < program.steps.size(); ++n) {
    const Step& step = program.steps[n];
    if (step.code != kOuter) continue;
    for (const Spot& spot : step.spots)
      if (!Stays(program, spot, call.batch)) whole[step.which] = false;
    // Threads that take different products must not meet.
    for (size_t other = 0; other < n; ++other)
      if (program.steps[other].code == kOuter && Overlap(step, program.steps[other]))
        whole[step.which] = false;
  }
  return whole;
}

/* Rings that such products read. */
inline std::vector<bool> FindWholeRings(const Program& program, const std::vector<bool>& whole) {
  std::vector<bool> found(program.ring_widths.size(), false);
  for (const Step& step : program.steps) {
    if (step.code != kOuter || !whole[step.which]) continue;
    for (const Spot& spot : step.spots)
      if (spot.place == kRing) found[spot.index] = true;
  }
  return found;
}

/* Some columns of a left operand, which are rows of a matrix's gradient. */
struct Slice {
  const Step* step;
  int64_t begin, end;
};

constexpr int64_t kSlice = 128;  // more would leave threads idle, fewer copy the right operand often

inline std::vector<Slice> SlicesOf(const Program& program, const Learned& learned,
                            const std::vector<bool>& whole) {
  std::vector<Slice> slices;
  for (const Step& step : program.steps) {
    if (step.code != kOuter || !whole[step.which] || !learned.matrix_gradients[step.which])
      continue;
    const int64_t parts = (step.width + kSlice - 1) / kSlice;
    const int64_t size = RoundUp((step.width + parts - 1) / parts, kMultiple);
    for (int64_t begin = 0; begin < step.width; begin += size)
      slices.push_back({&step, begin, std::min(begin + size, step.width)});
  }
  return slices;
}

template <typename T>
void AddSlice(const Slice& slice, const Shared<T>& shared) {
  const Step& step = *slice.step;
  const Prepared<T>& weights = shared.weights;
  const RecurrenceCall& call = shared.call;
  auto rows_of = [&](const Spot& spot) {
    if (spot.place == kRing)
      return Located<T>{shared.whole_rings[spot.index] + spot.offset,
                        weights.program.ring_widths[spot.index]};
    const SequenceArray& array = call.sequences[spot.index];
    const bool is_by_number = spot.index == 0 && call.index;
    return Located<T>{static_cast<T*>(array.data) + spot.offset, array.row_stride,
                      is_by_number ? shared.index.data() : nullptr};
  };
  const Located<T> left = rows_of(step.spots[0]), right = rows_of(step.spots[1]);
  const int64_t columns = weights.program.matrix_columns[step.which];
  const Segment<T> all{left.at + slice.begin, right.at,   left.stride, right.stride,
                       call.batch,            left.index, right.index};
  T* const to = static_cast<T*>(call.matrix_gradients[step.which]) +
                (step.row + slice.begin) * columns + step.column;
  const OuterSum<T> sum{&all, step.depth, to, columns};
  weights.products.outer(&sum, 1, 1, slice.end - slice.begin);
}

/* Gradients of matrices that FindWhole found; the numbers do not depend on the number of threads. */
template <typename T>
void RunWhole(const std::vector<bool>& whole, const Shared<T>& shared) {
  const Program& program = shared.weights.program;
  const RecurrenceCall& call = shared.call;
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i] && call.matrix_gradients[i])
      std::memset(call.matrix_gradients[i], 0,
                  program.matrix_rows[i] * program.matrix_columns[i] * sizeof(T));
  const std::vector<Slice> slices = SlicesOf(program, call, whole);
  const int64_t count = slices.size();
#pragma omp parallel for num_threads(call.threads) if (call.threads > 1) schedule(dynamic, 1)
  for (int64_t n = 0; n < count; ++n) {
    const Flushing flushing(true);
    AddSlice(slices[n], shared);
  }
}

/* The rings that have a row for each of the batch, to be given a place. */
template <typename T>
Buffers<T> WholeRings(Shared<T>* shared) {
  Buffers<T> wanted;
  for (size_t i = 0; i < shared->whole_rings.size(); ++i)
    if (shared->ring_is_whole[i])
      wanted.Want(&shared->whole_rings[i],
                  shared->call.batch * shared->weights.program.ring_widths[i]);
  return wanted;
}

}  // namespace graphopt::walks
