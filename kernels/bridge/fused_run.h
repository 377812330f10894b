/*
 * Runs a fused kernel over its iteration space, on all threads and as MXNet requests it.
 */
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "fused_space.h"
#include "shares.h"

namespace graphopt {

/* Where to write: an output itself, memory to add up in, or a row nobody reads. */
struct Target {
  char* base;
  bool is_dummy;
  bool is_tile = false;  // of columns, and nothing else
};

/* Walk rows [first, last) and elements [begin, begin + length) of each. */
void Walk(const Space& space, Function function, const std::vector<Target>& targets, int64_t first,
          int64_t last, int64_t begin, int64_t length, char* scratch) {
  size_t n_inputs = space.plan->inputs.size(), count = space.operands.size();
  size_t groups = space.extents.size();
  constexpr size_t kFew = 32;
  int64_t few_pointers[kFew], few_strides[kFew];
  std::vector<int64_t> many;
  int64_t *pointers = few_pointers, *strides = few_strides;
  if (count > kFew) {
    many.resize(2 * count);
    pointers = many.data();
    strides = many.data() + count;
  }
  for (int64_t row = first; row < last;) {
    int64_t within = row % space.inner_rows;
    int64_t rows = std::min(last - row, space.inner_rows - within);
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int64_t>& step = space.strides[i];
      bool dummy = i >= n_inputs && targets[i - n_inputs].is_dummy;
      const bool is_tile = i >= n_inputs && targets[i - n_inputs].is_tile;
      const int64_t offset = dummy || is_tile ? 0 : space.Offset(i, row, begin);
      const Operand& operand = space.Describe(i);
      const char* base = i < n_inputs ? static_cast<const char*>(space.operands[i]->dptr_)
                                      : targets[i - n_inputs].base;
      bool is_partial = operand.adds && !dummy;
      int size = is_partial ? space.plan->item_size : ItemSize(operand.dtype);
      pointers[i] = reinterpret_cast<int64_t>(base) + offset * size;
      if (space.plan->by_columns)
        strides[i] = dummy ? 0 : is_tile ? (step[groups - 1] ? last - first : 0) : step[groups - 1];
      else
        strides[i] = dummy || groups < 2 ? 0 : step[groups - 2];
    }
    function(pointers, strides, rows, length, reinterpret_cast<int64_t>(scratch));
    row += rows;
  }
}

/* Add terms to sums in double. */
template <typename Term>
void AddTerms(const char* terms, int64_t begin, int64_t count, double* sums) {
  const Term* term = reinterpret_cast<const Term*>(terms) + begin;
  for (int64_t i = 0; i < count; ++i) sums[i] += term[i];
}

/* Write or add what was summed up in `slots` partial results. */
void Combine(const TBlob& out, OpReqType request, const char* partial, int64_t stride,
             int64_t slots, int item_size) {
  constexpr int64_t kTogether = 512;
  const int64_t size = out.shape_.Size();
  const int dtype = out.type_flag_;
  const auto add = item_size == 4 ? AddTerms<float> : AddTerms<double>;
  char* to = static_cast<char*>(out.dptr_);
  for (int64_t begin = 0; begin < size; begin += kTogether) {
    const int64_t count = std::min(kTogether, size - begin);
    double sums[kTogether] = {};
    if (request == mxnet::kAddTo)
      for (int64_t i = 0; i < count; ++i) sums[i] = Read(to, dtype, begin + i);
    for (int64_t slot = 0; slot < slots; ++slot) add(partial + slot * stride, begin, count, sums);
    if (dtype == mshadow::kFloat32)
      std::copy(sums, sums + count, reinterpret_cast<float*>(to) + begin);
    else
      for (int64_t i = 0; i < count; ++i) Write(to, dtype, begin + i, sums[i]);
  }
}

int64_t PlannedBytes(const TBlob& given) {
  return given.shape_.Size() * ItemSize(given.type_flag_) - kLineBytes;  // aligning
}

/* Elements to ask MXNet for. */
int64_t PlannedElements(const Tiling& tiling, int item_size) {
  return (tiling.bytes() + kLineBytes) / item_size;
}

/* MXNet may have been given more threads since memory was planned. */
void FitThreads(int64_t bytes, Tiling* tiling) {
  if (tiling->bytes() <= bytes) return;
  const int64_t threads = tiling->row_bytes > 0
                              ? (bytes - tiling->partial_bytes()) / tiling->row_bytes
                              : 0;
  if (threads < 1) Fail("a kernel was given less memory than it needs");
  tiling->threads = static_cast<int>(threads);
}

/* Adds elements of a tile to an output from `begin` on. */
void AddTile(const TBlob& out, const char* tile, int64_t begin, int64_t count) {
  const int dtype = out.type_flag_;
  char* to = static_cast<char*>(out.dptr_) + begin * ItemSize(dtype);
  if (dtype == mshadow::kFloat32) {
    auto sum = reinterpret_cast<float*>(to);
    auto terms = reinterpret_cast<const float*>(tile);
    for (int64_t i = 0; i < count; ++i) sum[i] += terms[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) Write(to, dtype, i, Read(to, dtype, i) + Read(tile, dtype, i));
}

/* What is asked of outputs shows only in a call: results to be added, and rows that nobody reads. Each
 * thread computes these in some kilobytes of its own: a row, and a tile of what is added. */
struct Asked {
  std::vector<int64_t> add_at;  // of an output in a thread's memory; -1: it is not added
  int64_t thread_bytes = 0;
};

Asked AskedOf(const Plan& plan, const Tiling& tiling, const std::vector<OpReqType>& requests) {
  Asked made;
  made.add_at.assign(requests.size(), -1);
  for (size_t i = 0; i < requests.size(); ++i)
    if (tiling.sum_at[i] < 0 && requests[i] == mxnet::kNullOp)
      made.thread_bytes = Align((plan.by_columns ? tiling.tile_rows : tiling.block) * 8);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (tiling.sum_at[i] >= 0 || requests[i] != mxnet::kAddTo) continue;
    made.add_at[i] = made.thread_bytes;
    made.thread_bytes +=
        Align(tiling.tile_rows * tiling.block * ItemSize(plan.outputs[i].dtype));
  }
  return made;
}

/* A thread of a call: `beside` is its memory for what is asked of it, `scratch` that of its kernel;
 * `partial` has the sums of all slots. */
class Worker {
 public:
  Worker(const Space& space, const Tiling& tiling, const Asked& asked, Function function,
         const std::vector<const TBlob*>& outputs, const std::vector<OpReqType>& requests,
         char* beside, char* partial, char* scratch)
      : space_(space), tiling_(tiling), asked_(asked), function_(function), outputs_(outputs),
        beside_(beside), partial_(partial), scratch_(scratch) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool is_dummy = tiling.sum_at[i] < 0 && requests[i] == mxnet::kNullOp;
      targets_.push_back({is_dummy ? beside : static_cast<char*>(outputs[i]->dptr_), is_dummy});
    }
  }

  /* Some tiles in their order if there are sums, else one. */
  void Do(int64_t slot) {
    if (!tiling_.any_sums) return DoTile(slot);
    char* sums = partial_ + slot * tiling_.sum_bytes;
    std::memset(sums, 0, tiling_.sum_bytes);
    for (size_t i = 0; i < targets_.size(); ++i)
      if (tiling_.sum_at[i] >= 0) targets_[i].base = sums + tiling_.sum_at[i];
    const int64_t last = tiling_.tiles * (slot + 1) / tiling_.slots;
    for (int64_t tile = tiling_.tiles * slot / tiling_.slots; tile < last; ++tile) DoTile(tile);
  }

 private:
  /* Some columns of rows that lie together; where results are to be added, in memory beside them. */
  void DoColumns(int64_t tile) {
    const int64_t together = tile / tiling_.runs * space_.inner_rows;
    const int64_t from = tile % tiling_.runs * tiling_.tile_rows, row = together + from;
    const int64_t width = std::min(tiling_.tile_rows, space_.inner_rows - from);
    for (size_t i = 0; i < targets_.size(); ++i)
      if (asked_.add_at[i] >= 0) targets_[i] = {beside_ + asked_.add_at[i], false, true};
    Walk(space_, function_, targets_, row, row + width, 0, space_.length, scratch_);
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (asked_.add_at[i] < 0 || outputs_[i]->shape_.Size() == 0) continue;
      const auto& step = space_.strides[space_.plan->inputs.size() + i];
      const size_t groups = step.size();
      const int64_t lines = step[groups - 1] ? space_.length : 1;
      const int64_t count = step[groups - 2] ? width : 1;
      for (int64_t line = 0; line < lines; ++line)
        AddTile(*outputs_[i], targets_[i].base + line * width * ItemSize(space_.plan->outputs[i].dtype),
                OffsetOf(i, row, line), count);
    }
  }

  void DoTile(int64_t tile) {
    if (space_.plan->by_columns) return DoColumns(tile);
    const int64_t row = tile / tiling_.blocks * tiling_.tile_rows;
    const int64_t begin = tile % tiling_.blocks * tiling_.block;
    const int64_t end = std::min(row + tiling_.tile_rows, space_.rows);
    const int64_t length = std::min(tiling_.block, space_.length - begin);
    // A tile is several whole rows or a part of one, and of what is not summed up one piece.
    for (size_t i = 0; i < targets_.size(); ++i)
      if (asked_.add_at[i] >= 0)
        targets_[i].base = beside_ + asked_.add_at[i] -
                           OffsetOf(i, row, begin) * ItemSize(space_.plan->outputs[i].dtype);
    Walk(space_, function_, targets_, row, end, begin, length, scratch_);
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (asked_.add_at[i] < 0 || outputs_[i]->shape_.Size() == 0) continue;
      const int64_t from = OffsetOf(i, row, begin);
      const int64_t to = OffsetOf(i, end - 1, begin + std::max<int64_t>(length, 1) - 1);
      AddTile(*outputs_[i], beside_ + asked_.add_at[i], from, to + 1 - from);
    }
  }

  int64_t OffsetOf(size_t output, int64_t row, int64_t element) const {
    return space_.Offset(space_.plan->inputs.size() + output, row, element);
  }

  const Space& space_;
  const Tiling& tiling_;
  const Asked& asked_;
  const Function function_;
  const std::vector<const TBlob*>& outputs_;
  char *beside_, *partial_, *scratch_;
  std::vector<Target> targets_;
};

/* `given`, if it is not null, is what the kernel computes in, as planned. */
void Run(Plan* plan, const std::vector<const TBlob*>& inputs,
         const std::vector<const TBlob*>& outputs, const std::vector<OpReqType>& requests,
         const TBlob* given, int most_threads = std::numeric_limits<int>::max()) {
  if (std::all_of(requests.begin(), requests.end(),
                  [](OpReqType r) { return r == mxnet::kNullOp; }))
    return;
  Function function = Ready(plan);
  const Space space = Measure(plan, inputs, outputs);
  Tiling tiling = TilingOf(space);
  if (given) FitThreads(PlannedBytes(*given), &tiling);
  tiling.threads = std::min(tiling.threads, most_threads);
  const Asked asked = AskedOf(*plan, tiling, requests);
  const int64_t asked_bytes = tiling.threads * asked.thread_bytes;
  char* own = Arena(asked_bytes + (given ? 0 : tiling.bytes()));
  char* partial = given ? Aligned<char>(given->dptr_) : own + asked_bytes;
  char* scratch_rows = partial + tiling.partial_bytes();
  Shares slots(tiling.slots, tiling.threads);
#pragma omp parallel num_threads(tiling.threads) if (tiling.threads > 1)
  {
    const int thread = omp_get_thread_num();
    Worker worker(space, tiling, asked, function, outputs, requests,
                  own + thread * asked.thread_bytes, partial,
                  scratch_rows + thread * tiling.row_bytes);
    // Waking a thread can take as long as its share of work: whoever is awake takes of it.
    for (int64_t slot; (slot = slots.Take(thread)) >= 0;) worker.Do(slot);
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (tiling.sum_at[i] >= 0 && requests[i] != mxnet::kNullOp)
      Combine(*outputs[i], requests[i], partial + tiling.sum_at[i], tiling.sum_bytes, tiling.slots,
              plan->item_size);
}

}  // namespace graphopt
