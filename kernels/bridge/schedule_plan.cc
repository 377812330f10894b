/*
 * Reads and checks plans of graphopt.batch.
 */
#include <stdexcept>
#include <string>

#include "schedule.h"

namespace graphopt {
namespace {

[[noreturn]] void Refuse(const char* what) {
  throw std::invalid_argument(std::string("a plan of graphopt.batch ") + what);
}

/* Reads numbers one after the other. */
class Numbers {
 public:
  Numbers(const int32_t* at, int64_t count) : at_(at), end_(at + count) {}

  int64_t Next() { return *Many(1); }

  const int32_t* Many(int64_t count) {
    if (count < 0 || count > end_ - at_) Refuse("ends too early");
    at_ += count;
    return at_ - count;
  }

 private:
  const int32_t *at_, *end_;
};

void CheckArg(const SchedulePlan& plan, int64_t known, PlannedArg* arg) {
  for (int64_t e = 0; e < arg->entries; ++e) {
    if (arg->ids[e] < 0 || arg->ids[e] >= known) Refuse("reads a row that is not there");
    int64_t offset = arg->offsets ? arg->offsets[e] : 0, value = plan.value_of[arg->ids[e]];
    if (offset < 0 || offset + arg->width > plan.values[value].width)
      Refuse("reads columns that are not there");
    if (e == 0) arg->value = value;
    if (arg->value != value) arg->value = -1;
  }
}

int64_t AddValue(SchedulePlan* plan, int64_t step, int64_t rows, int64_t width,
                 int64_t index = -1) {
  if (rows < 0 || width < 1) Refuse("has a value without extent");
  int64_t number = plan->values.size(), base = plan->value_of.size();
  plan->values.push_back({step, rows, width, base, index});
  plan->value_of.insert(plan->value_of.end(), rows, number);
  return number;
}

/* An array of `size` elements from outside, which numbers are looked up in if it has an index. */
void AddExternal(SchedulePlan* plan, Numbers* from, int64_t size,
                 const std::vector<RowIndex>& indices) {
  int64_t rows = from->Next(), width = from->Next(), number = from->Next();
  if (width < 1 || rows < 0) Refuse("has a value without extent");
  if (number == -1) {
    if (rows * width != size) Refuse("does not fit its arrays");
  } else {
    if (number < 0 || number >= static_cast<int64_t>(indices.size()) || indices[number].count != rows ||
        size % width)
      Refuse("does not fit its indices");
    const int32_t* index = indices[number].rows;
    for (int64_t r = 0; r < rows; ++r)
      if (index[r] < 0 || index[r] >= size / width) Refuse("looks up a row that is not there");
  }
  AddValue(plan, -1, rows, width, number);
}

}  // namespace

SchedulePlan ReadPlan(const int32_t* numbers, int64_t count, const std::vector<int64_t>& sizes,
                      const std::vector<RowIndex>& indices) {
  Numbers from(numbers, count);
  SchedulePlan plan;
  plan.externals = from.Next();
  if (plan.externals != sizes.size()) Refuse("does not fit its node");
  for (int64_t size : sizes) AddExternal(&plan, &from, size, indices);
  int64_t steps = from.Next();
  for (int64_t s = 0; s < steps; ++s) {
    PlannedStep step;
    step.kind = from.Next();
    step.program = from.Next();
    step.rows = from.Next();
    step.first = plan.step_rows;
    plan.step_rows += step.rows;
    int64_t n_args = from.Next(), n_outs = from.Next(), known = plan.value_of.size();
    if (step.rows < 0 || step.rows > count || n_args < 1) Refuse("has rows that nothing makes");
    const bool reduces = step.kind != kRowsStep && step.kind != kConcatStep;
    if (step.kind < kRowsStep || step.kind > kConcatStep || (reduces && n_args != 1) ||
        (step.kind != kRowsStep && n_outs != 1))
      Refuse("has a step of unknown kind");
    for (int64_t o = 0; o < n_outs; ++o)
      step.values.push_back(AddValue(&plan, s, step.rows, from.Next()));
    int64_t width = 0;
    for (int64_t a = 0; a < n_args; ++a) {
      PlannedArg arg;
      arg.width = from.Next();
      arg.entries = from.Next();
      bool has_offsets = from.Next();
      arg.ids = from.Many(arg.entries);
      if (has_offsets) arg.offsets = from.Many(arg.entries);
      if (!reduces && arg.entries != step.rows) Refuse("has too few or too many rows");
      CheckArg(plan, known, &arg);
      step.args.push_back(arg);
      width += arg.width;
    }
    if (step.kind == kConcatStep && width != plan.values[step.values[0]].width)
      Refuse("puts together too few or too many columns");
    if (reduces) {
      step.lengths = from.Many(step.rows);
      int64_t total = 0;
      for (int64_t r = 0; r < step.rows; ++r) {
        if (step.lengths[r] < 1) Refuse("reduces nothing");
        total += step.lengths[r];
      }
      if (total != step.args[0].entries || step.args[0].width != plan.values[step.values[0]].width)
        Refuse("reduces too few or too many rows");
    }
    plan.steps.push_back(step);
  }
  for (int64_t n = from.Next(); n > 0; --n) {
    int64_t s = from.Next(), o = from.Next();
    if (s < 0 || s >= steps || o < 0 || o >= static_cast<int64_t>(plan.steps[s].values.size()))
      Refuse("hands out a value that is not there");
    plan.exports.push_back(plan.steps[s].values[o]);
  }
  return plan;
}

int64_t StashSize(const SchedulePlan& plan, const std::vector<int64_t>& stash_widths) {
  int64_t size = 0;
  for (const PlannedStep& step : plan.steps) {
    int64_t width = step.kind == kRowsStep ? stash_widths[step.program] : 0;
    for (int64_t value : step.values) width += plan.values[value].width;
    size += step.rows * width;
  }
  return size;
}

}  // namespace graphopt
