/*
 * How the rows of a recurrence's call are cut into chunks, and what all of these share.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "execute.h"
#include "recurrence.h"

namespace graphopt::walks {

constexpr int64_t kCacheBytes = 512 << 10;  // weights below this stay in the level-2 cache
constexpr int64_t kSmallChunk = 32;         // rows; enough for full register tiles
constexpr int64_t kMiddleChunk = 64;        // rows; the matrix unit starts and stops less often
constexpr int64_t kLargeChunk = 128;        // rows; enough for weights that come from far
constexpr int64_t kMultiple = 8;
constexpr int64_t kRingRows = 512;          // summed at once for the gradients of matrices
constexpr int64_t kMaxRing = 32;
constexpr int64_t kMaxBlock = 16;
constexpr int64_t kEarlyRows = 256;         // of products that are computed early
constexpr int64_t kEarlyShare = 4;          // what these take is this part of the weights at most

/* What all chunks of a call share. */
template <typename T>
struct Shared {
  const RecurrenceCall& call;
  const Prepared<T>& weights;
  int64_t rows_per_chunk = 0, ring = 1;
  int64_t block = 1;      // steps whose early products are computed together
  bool is_large = false;  // weights do not stay near the processor
  bool adds_up = false;   // products that are added to others are computed with them
  bool in_turns = false;  // a thread computes one chunk's kernels during another's products
  bool in_slots = false;  // a sequence that has ended makes room for another; see slots.h
  std::vector<bool> ring_is_whole;  // it has a row for each of the batch; see FindWhole
  std::vector<T*> whole_rings;
  std::vector<int64_t> order, lengths;  // of the sorted batch
  std::vector<int32_t> index;           // the call's, in the order in which steps are walked
  // Of sequences of different lengths, the number of each row in arrays that have steps first, and in
  // those that have the batch first, in the order in which they are walked; empty: there are none.
  std::vector<int32_t> steps_first, batch_first;

  bool HasStepsFirst(const SequenceArray& array) const {
    return array.step_stride == call.batch * array.row_stride;
  }
};

/* How many products a program begins with; all of its products, or 0 if there are others. */
inline size_t LeadingProducts(const Program& program) {
  size_t count = 0;
  while (count < program.steps.size() && program.steps[count].code == kProduct) ++count;
  for (size_t n = count; n < program.steps.size(); ++n)
    if (program.steps[n].code == kProduct) return 0;
  return count;
}

/* Steps whose early products are computed together. What they take is bounded by the weights: those
 * come from far, and a step's part of them is what is saved. */
template <typename T>
int64_t Block(const Shared<T>& shared) {
  const std::vector<int64_t>& widths = shared.weights.program.scratch_widths;
  const int64_t columns = std::accumulate(widths.begin(), widths.end(), int64_t{1});
  const int64_t bytes = shared.rows_per_chunk * columns * sizeof(T);
  const int64_t most = std::min(kEarlyRows / shared.rows_per_chunk,
                                shared.weights.read_bytes / kEarlyShare / bytes);
  return std::max<int64_t>(1, std::min(kMaxBlock, most));
}

/* Whether no place is named twice: pieces of a kernel may overlap, so what it reads has to stay. */
inline bool AreApart(const std::vector<Spot>& spots) {
  for (size_t i = 0; i < spots.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (spots[i].place == spots[j].place && spots[i].index == spots[j].index &&
          spots[i].offset == spots[j].offset)
        return false;
  return true;
}

/* Whether a thread gains from two chunks in turns: its matrix unit and its vectors are busy at once. */
template <typename T>
bool GainsFromTurns(const Shared<T>& shared, int64_t share) {
  const Program& program = shared.weights.program;
  const size_t count = LeadingProducts(program);
  if (!shared.weights.products.are_tiled || program.backward || shared.is_large || count == 0)
    return false;
  if (count == program.steps.size() || share < 2 * kSmallChunk) return false;
  const Step& next = program.steps[count];
  if (next.code != kKernel || program.kernels[next.which].stages.all.empty()) return false;
  return next.width >= Meanwhile::kPiece && AreApart(next.spots);
}

template <typename T>
void Divide(Shared<T>* shared) {
  const RecurrenceCall& call = shared->call;
  int64_t share = RoundUp((call.batch + call.threads - 1) / call.threads, kMultiple);
  bool are_far = shared->weights.read_bytes > kCacheBytes;
  shared->is_large = are_far && call.steps > 1;
  // Early products are written in between, and how many steps have theirs early depends on threads,
  // of which results must not.
  shared->adds_up = !shared->is_large || call.lengths || shared->weights.program.backward;
  // Chunks of different lengths are taken by whoever has time, so there have to be some.
  const bool are_tiled = shared->weights.products.are_tiled;
  shared->in_turns = GainsFromTurns(*shared, share);
  shared->in_slots = call.lengths && !shared->weights.program.backward;
  int64_t most = kSmallChunk;
  if (are_far || (are_tiled && !call.lengths && !shared->in_turns))
    most = kLargeChunk;
  else if (are_tiled && !shared->in_turns)
    most = kMiddleChunk;
  else if (shared->weights.products.are_paired && shared->in_slots && share >= 2 * kMiddleChunk)
    most = kMiddleChunk;  // what a step takes besides products is shared by more rows
  shared->rows_per_chunk = share;
  if (!shared->is_large && share > most)
    shared->rows_per_chunk = RoundUp(share / ((share + most - 1) / most), kMultiple);
  // Buffers have no rows that no sequence has.
  shared->rows_per_chunk = std::max<int64_t>(std::min(shared->rows_per_chunk, call.batch), 1);
  if (!shared->weights.program.backward) {
    if (shared->is_large && !call.lengths) shared->block = Block(*shared);
    return;
  }
  shared->ring = std::min(kMaxRing, std::max<int64_t>(1, kRingRows / shared->rows_per_chunk));
}

template <typename T>
void Sort(Shared<T>* shared) {
  const RecurrenceCall& call = shared->call;
  shared->order.resize(call.batch);
  std::iota(shared->order.begin(), shared->order.end(), 0);
  if (call.lengths)
    std::stable_sort(shared->order.begin(), shared->order.end(), [&](int64_t a, int64_t b) {
      return call.lengths[a] > call.lengths[b];
    });
  for (int64_t row : shared->order)
    shared->lengths.push_back(call.lengths ? call.lengths[row] : call.steps);
}

/* Numbers of rows in the order in which sequences and steps are walked: number(time, row of the batch);
 * none behind the end of a sequence. */
template <typename T, typename Number>
std::vector<int32_t> Walked(const Shared<T>& shared, const Number& number) {
  const RecurrenceCall& call = shared.call;
  std::vector<int32_t> found(call.steps * call.batch);
  for (int64_t step = 0; step < call.steps; ++step)
    for (int64_t row = 0; row < call.batch && shared.lengths[row] > step; ++row) {
      const int64_t time = call.reverse ? shared.lengths[row] - 1 - step : step;
      found[step * call.batch + row] = static_cast<int32_t>(number(time, shared.order[row]));
    }
  return found;
}

/* Numbers of the rows that are read by number, and of all rows of sequences of different lengths. Slots
 * count theirs themselves. */
template <typename T>
void NumberRows(Shared<T>* shared) {
  const RecurrenceCall& call = shared->call;
  if (shared->in_slots) return;
  if (call.index)
    shared->index = Walked(*shared, [&](int64_t time, int64_t row) {
      return call.index[time * call.batch + row];
    });
  if (!call.lengths) return;
  for (size_t i = call.index ? 1 : 0; i < call.sequences.size(); ++i) {
    const SequenceArray& array = call.sequences[i];
    if (!array.data) continue;
    const bool steps_first = shared->HasStepsFirst(array);
    std::vector<int32_t>* numbers = steps_first ? &shared->steps_first : &shared->batch_first;
    if (numbers->empty())
      *numbers = Walked(*shared, [&](int64_t time, int64_t row) {
        return steps_first ? time * call.batch + row : row * call.steps + time;
      });
  }
}

}  // namespace graphopt::walks
