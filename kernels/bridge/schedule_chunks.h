/*
 * How the rows of a schedule are cut into chunks, and which rows from outside several chunks read.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "schedule.h"

namespace graphopt::schedules {

constexpr double kMinChunkWork = 4e6;  // multiplications; less is not worth a chunk of its own
constexpr double kMaxChunkWork = 1e8;  // what is gathered for more does not stay in the cache
constexpr double kRowWork = 100;       // of a row, besides products

inline double WorkOf(const Program& program) {
  double work = kRowWork;
  for (const PackOf& pack : program.packs) work += static_cast<double>(pack.depth) * pack.width;
  return work;
}

/* Which rows of which step a chunk has, in their order. */
struct Chunks {
  int64_t count = 0, steps = 0;
  std::vector<int32_t> chunk_of;  // of every row of every step
  std::vector<int32_t> rows;      // numbers of rows within their step, by chunk and step
  std::vector<int64_t> begin;     // chunk c, step s: rows[begin[c * steps + s]] to the next
  std::vector<int32_t> place;     // of every row of every step, among those of its chunk and step

  int64_t Begin(int64_t chunk, int64_t step) const { return begin[chunk * steps + step]; }
  int64_t Count(int64_t chunk, int64_t step) const {
    return begin[chunk * steps + step + 1] - begin[chunk * steps + step];
  }
};

/* Calls `each` with the row of the step that reads it, for all entries of an argument. */
template <typename Each>
void ForEntries(const PlannedStep& step, const PlannedArg& arg, const Each& each) {
  int64_t row = 0, left = step.lengths ? step.lengths[0] : 1;
  for (int64_t e = 0; e < arg.entries; ++e) {
    while (left == 0) left = step.lengths ? step.lengths[++row] : (++row, 1);
    --left;
    each(row, e);
  }
}

/* The first row of what every row hangs together with. */
inline std::vector<int32_t> Parts(const SchedulePlan& plan) {
  std::vector<int32_t> first(plan.step_rows);
  std::iota(first.begin(), first.end(), 0);
  auto find = [&](int32_t row) {
    while (first[row] != row) row = first[row] = first[first[row]];
    return row;
  };
  for (const PlannedStep& step : plan.steps)
    for (const PlannedArg& arg : step.args)
      ForEntries(step, arg, [&](int64_t row, int64_t e) {
        const PlannedValue& source = plan.values[plan.value_of[arg.ids[e]]];
        if (source.step < 0) return;
        int32_t a = find(step.first + row);
        int32_t b = find(plan.steps[source.step].first + arg.ids[e] - source.base);
        if (a != b) first[std::max(a, b)] = std::min(a, b);
      });
  for (int64_t row = 0; row < plan.step_rows; ++row) first[row] = find(row);
  return first;
}

inline Chunks Divide(const SchedulePlan& plan, const std::vector<double>& work_of_program) {
  std::vector<int32_t> parts = Parts(plan);
  std::vector<double> work(plan.step_rows, 0);
  double total = 0;
  for (const PlannedStep& step : plan.steps) {
    double each = step.kind == kRowsStep ? work_of_program[step.program] : kRowWork;
    for (int64_t r = 0; r < step.rows; ++r) work[parts[step.first + r]] += each;
    total += each * step.rows;
  }
  double wanted = std::min(std::max(total / 16, kMinChunkWork), kMaxChunkWork);
  Chunks made;
  made.steps = plan.steps.size();
  made.chunk_of.resize(plan.step_rows);
  double filled = 0;
  for (int64_t row = 0; row < plan.step_rows; ++row) {
    if (parts[row] != row) continue;
    if (made.count == 0 || filled + work[row] / 2 > wanted) {
      ++made.count;
      filled = 0;
    }
    filled += work[row];
    made.chunk_of[row] = made.count - 1;
  }
  for (int64_t row = 0; row < plan.step_rows; ++row) made.chunk_of[row] = made.chunk_of[parts[row]];
  made.begin.assign(made.count * made.steps + 1, 0);
  for (int64_t s = 0; s < made.steps; ++s)
    for (int64_t r = 0; r < plan.steps[s].rows; ++r)
      ++made.begin[made.chunk_of[plan.steps[s].first + r] * made.steps + s + 1];
  std::partial_sum(made.begin.begin(), made.begin.end(), made.begin.begin());
  made.rows.resize(plan.step_rows);
  made.place.resize(plan.step_rows);
  std::vector<int64_t> at(made.begin.begin(), made.begin.end() - 1);
  for (int64_t s = 0; s < made.steps; ++s)
    for (int64_t r = 0; r < plan.steps[s].rows; ++r) {
      int64_t row = plan.steps[s].first + r, cell = made.chunk_of[row] * made.steps + s;
      made.place[row] = at[cell] - made.begin[cell];
      made.rows[at[cell]++] = r;
    }
  return made;
}

/* Rows from outside that several chunks read: their gradients are summed up apart. */
struct SharedRows {
  std::vector<int64_t> at;  // of every row from outside: where in a unit's sums, or -1
  int64_t size = 0;
  // Of every array from outside: programs read each row once, in full. Its gradient is no sum.
  std::vector<bool> is_once;
};

/* Finds arrays from outside whose gradients are no sums. */
inline std::vector<bool> FindOnce(const SchedulePlan& plan) {
  std::vector<int64_t> reads(plan.externals, 0);
  std::vector<bool> is_once(plan.externals, true), is_read;
  int64_t count = 0;
  for (size_t i = 0; i < plan.externals; ++i) count += plan.values[i].rows;
  is_read.assign(count, false);
  for (const PlannedStep& step : plan.steps)
    for (const PlannedArg& arg : step.args)
      for (int64_t e = 0; e < arg.entries; ++e) {
        const int64_t id = arg.ids[e];
        if (id >= count) continue;
        const int64_t value = plan.value_of[id];
        if (is_read[id] || arg.value < 0 || arg.width != plan.values[value].width ||
            step.kind != kRowsStep)
          is_once[value] = false;
        is_read[id] = true;
        ++reads[value];
      }
  for (size_t i = 0; i < plan.externals; ++i)
    if (reads[i] != plan.values[i].rows) is_once[i] = false;
  return is_once;
}

inline SharedRows FindShared(const SchedulePlan& plan, const Chunks& chunks, const ScheduleCall& call) {
  int64_t count = 0;
  for (size_t i = 0; i < plan.externals; ++i) count += plan.values[i].rows;
  std::vector<int32_t> owner(count, -1);
  SharedRows found;
  found.at.assign(count, -1);
  found.is_once = FindOnce(plan);
  for (const PlannedStep& step : plan.steps)
    for (const PlannedArg& arg : step.args)
      ForEntries(step, arg, [&](int64_t row, int64_t e) {
        int64_t id = arg.ids[e];
        if (id >= count || !call.external_gradients[plan.value_of[id]]) return;
        int32_t chunk = chunks.chunk_of[step.first + row];
        if (owner[id] == -1) owner[id] = chunk;
        if (owner[id] == chunk || found.at[id] >= 0) return;
        found.at[id] = found.size;
        found.size += plan.values[plan.value_of[id]].width;
      });
  return found;
}

}  // namespace graphopt::schedules
