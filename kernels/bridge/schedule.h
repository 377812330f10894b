/*
 * Runs the groups that graphopt.batch recorded: step after step, programs on rows that lie anywhere in
 * what earlier steps made.
 *
 * Rows of different samples do not depend on each other. What hangs together is found again from the
 * plan; a chunk of it goes through all steps before the next one does, so that threads never wait for
 * each other.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "recurrence.h"

namespace graphopt {

/* What a step does; graphopt/batching/native/block.py has the same list. */
enum StepKind { kRowsStep = 0, kSumStep = 1, kMeanStep = 2, kMaxStep = 3, kConcatStep = 4 };

/* Rows that a step reads: columns `offsets[e]` and on of the row with number `ids[e]`. */
struct PlannedArg {
  int64_t width = 0, entries = 0;
  const int32_t* ids = nullptr;
  const int32_t* offsets = nullptr;  // null: all are 0
  int64_t value = -1;                // all rows are of this one; -1: of several
};

struct PlannedStep {
  int64_t kind = 0, program = 0, rows = 0;
  int64_t first = 0;  // the number of its row 0 among the rows of all steps
  std::vector<PlannedArg> args;
  std::vector<int64_t> values;  // what it makes
  const int32_t* lengths = nullptr;  // reductions: how many entries each row takes
};

/* An array from outside, or an output of a step; its row r has number base + r. Where an index is
 * given, that is the array's row index[r]: many numbers may stand for one row. */
struct PlannedValue {
  int64_t step = -1, rows = 0, width = 0, base = 0, index = -1;
};

struct SchedulePlan {
  size_t externals = 0;  // that many values come from outside
  std::vector<PlannedValue> values;
  std::vector<PlannedStep> steps;
  std::vector<int64_t> exports;  // values
  std::vector<int32_t> value_of;  // of every row number
  int64_t step_rows = 0;
};

/* An index from outside: which row of an array a number stands for. */
struct RowIndex {
  const int32_t* rows = nullptr;
  int64_t count = 0;
};

/* Reads what graphopt/batching/native/block.py wrote, for arrays of so many elements from outside.
 * Throws std::invalid_argument if it makes no sense. */
SchedulePlan ReadPlan(const int32_t* numbers, int64_t count, const std::vector<int64_t>& sizes,
                      const std::vector<RowIndex>& indices);

struct ScheduleCall {
  std::vector<const void*> externals, heads;  // heads: null where there is no gradient
  std::vector<RowIndex> indices;
  // Null: not wanted. Gradients of arrays with an index have a row for each number, not for each row.
  std::vector<void*> exports, external_gradients;
  void* stash = nullptr;  // null: there is no backward
  std::vector<const Program*> programs;
  std::vector<Learned> learned;  // of each program
  bool is_double = false;
  int threads = 1;
};

/* Elements of the stash of a call. */
int64_t StashSize(const SchedulePlan& plan, const std::vector<int64_t>& stash_widths);

void RunSchedule(const SchedulePlan& plan, const ScheduleCall& call, bool backward);

}  // namespace graphopt
