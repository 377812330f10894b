/*
 * A chunk's way through the steps of a schedule.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "rows.h"
#include "schedule_chunks.h"

namespace graphopt::schedules {

/* What all chunks of a call share. */
template <typename T>
struct Shared {
  const SchedulePlan& plan;
  const ScheduleCall& call;
  const Chunks& chunks;
  const SharedRows& rows;
  std::vector<std::unique_ptr<Prepared<T>>> programs;
  std::vector<int64_t> partial_at;  // of each program; behind them that of shared rows
  std::vector<int64_t> stash_at;    // of each chunk
  int64_t partial_size = 0;
  // Of the largest chunk: elements of values, of arguments of a step and of all, of gradients; and how
  // many rows all arguments have.
  int64_t values = 0, step_args = 0, all_args = 0, outputs = 0, arg_rows = 0;
  std::vector<int64_t> program_rows;  // of each program
};

/* One chunk on its way through the steps. */
template <typename T>
class ScheduleWalk {
 public:
  ScheduleWalk(const Shared<T>& shared, bool backward)
      : ScheduleWalk(shared, backward, Buffers<T>()) {}

  void Run(int64_t chunk, T* partial) {
    chunk_ = chunk;
    partial_ = partial;
    for (size_t i = 0; i < programs_.size(); ++i)
      programs_[i]->Begin(partial ? partial + s_.partial_at[i] : nullptr);
    used_args_ = used_index_ = 0;
    Place();
    const auto& steps = s_.plan.steps;
    if (!is_backward_) {
      for (size_t s = 0; s < steps.size(); ++s)
        if (Count(s)) Make(s);
      for (size_t k = 0; k < s_.plan.exports.size(); ++k) Export(k);
      return;
    }
    std::fill(ring_.begin(), ring_.end(), 0);
    for (size_t k = 0; k < s_.plan.exports.size(); ++k) Import(k);
    for (size_t s = steps.size(); s-- > 0;)
      if (Count(s)) Unmake(s);
    for (auto& program : programs_) program->Flush();
  }

 private:
  ScheduleWalk(const Shared<T>& shared, bool backward, Buffers<T> buffers)
      : s_(shared), is_backward_(backward), ring_(shared.programs.size(), 0) {
    static thread_local Arena arena;
    for (size_t i = 0; i < s_.programs.size(); ++i)
      programs_.emplace_back(
          new RowProgram<T>(*s_.programs[i], s_.program_rows[i], &buffers));
    if (!s_.call.stash) buffers.Want(&own_values_, s_.values);
    buffers.Want(&args_, is_backward_ ? s_.all_args : s_.step_args);
    buffers.Want(&arg_gradients_, is_backward_ ? s_.step_args : 0);
    buffers.Want(&gradients_, is_backward_ ? s_.outputs : 0);
    buffers.Take(&arena);
    index_.resize((is_backward_ ? 2 : 1) * s_.arg_rows);
    number_at_.resize(s_.plan.values.size());
    value_at_.resize(s_.plan.values.size());
    gradient_at_.resize(s_.plan.values.size());
    stash_at_.resize(s_.plan.steps.size());
  }

  int64_t Count(size_t step) const { return s_.chunks.Count(chunk_, step); }
  const int32_t* RowsOf(size_t step) const {
    return s_.chunks.rows.data() + s_.chunks.Begin(chunk_, step);
  }

  /* Finds places for what the steps make. */
  void Place() {
    made_ = own_values_;
    if (s_.call.stash) made_ = static_cast<T*>(s_.call.stash) + s_.stash_at[chunk_];
    T* at = made_;
    T* gradient = gradients_;
    for (size_t i = 0; i < s_.plan.externals; ++i)
      value_at_[i] = const_cast<T*>(static_cast<const T*>(s_.call.externals[i]));
    for (size_t s = 0; s < s_.plan.steps.size(); ++s) {
      const PlannedStep& step = s_.plan.steps[s];
      int64_t rows = Count(s);
      for (int64_t value : step.values) {
        const int64_t width = s_.plan.values[value].width, size = rows * width;
        value_at_[value] = at;
        number_at_[value] = (at - made_) % width ? -1 : (at - made_) / width;
        at += size;
        gradient_at_[value] = gradient;
        gradient += size;
      }
      stash_at_[s] = at;
      if (step.kind == kRowsStep)
        at += rows * s_.programs[step.program]->program.stash_width;
    }
    if (is_backward_) std::memset(gradients_, 0, (gradient - gradients_) * sizeof(T));
  }

  /* Which row of its value the row with a number is, as they lie. */
  int64_t PlaceOf(const PlannedValue& value, int32_t id) const {
    int64_t row = id - value.base;
    if (value.step >= 0) return s_.chunks.place[s_.plan.steps[value.step].first + row];
    return value.index >= 0 ? s_.call.indices[value.index].rows[row] : row;
  }

  /* Where the row with a number lies. */
  T* RowAt(int32_t id, const std::vector<T*>& where) const {
    const PlannedValue& value = s_.plan.values[s_.plan.value_of[id]];
    return where[s_.plan.value_of[id]] + PlaceOf(value, id) * value.width;
  }

  T* EntryAt(const PlannedArg& arg, int64_t entry, const std::vector<T*>& where) const {
    return RowAt(arg.ids[entry], where) + (arg.offsets ? arg.offsets[entry] : 0);
  }

  void Make(size_t step) {
    switch (s_.plan.steps[step].kind) {
      case kRowsStep: return Forward(step);
      case kConcatStep: return Join(step);
      default: return Reduce(step);
    }
  }

  void Unmake(size_t step) {
    switch (s_.plan.steps[step].kind) {
      case kRowsStep: return Backward(step);
      case kConcatStep: return Part(step);
      default: return Spread(step);
    }
  }

  /* Columns of all arguments side by side. */
  void Join(size_t number) {
    const PlannedStep& step = s_.plan.steps[number];
    int64_t width = s_.plan.values[step.values[0]].width, at = 0;
    for (const PlannedArg& arg : step.args) {
      for (int64_t p = 0; p < Count(number); ++p)
        CopyRow(value_at_[step.values[0]] + p * width + at,
                EntryAt(arg, RowsOf(number)[p], value_at_), arg.width);
      at += arg.width;
    }
  }

  void Part(size_t number) {
    const PlannedStep& step = s_.plan.steps[number];
    int64_t width = s_.plan.values[step.values[0]].width, at = 0;
    for (const PlannedArg& arg : step.args) {
      for (int64_t p = 0; p < Count(number); ++p)
        Contribute(arg, RowsOf(number)[p], gradient_at_[step.values[0]] + p * width + at);
      at += arg.width;
    }
  }

  /* Room for the numbers of a step's rows, until the chunk is through. */
  int32_t* Numbers(size_t step) {
    int32_t* room = index_.data() + used_index_;
    used_index_ += Count(step);
    return room;
  }

  /* Rows of an argument where they lie. Their numbers are told only if they do not adjoin. */
  Located<T> ByNumber(const PlannedArg& arg, size_t step) {
    const int32_t *rows = RowsOf(step), *offsets = arg.offsets;
    const PlannedValue& value = s_.plan.values[arg.value];
    const int64_t count = Count(step);
    T* at = value_at_[arg.value] + (offsets ? offsets[rows[0]] : 0);
    int32_t* numbers = Numbers(step);
    bool adjoin = true;
    for (int64_t r = 0; r < count; ++r) {
      numbers[r] = PlaceOf(value, arg.ids[rows[r]]);
      adjoin = adjoin && numbers[r] == numbers[0] + r;
    }
    if (!adjoin) return {at, value.width, numbers};
    used_index_ -= count;
    return {at + numbers[0] * value.width, value.width};
  }

  /* Rows that steps made, of one width: these can be numbered from the first that the chunk makes,
   * whichever step made them. Null if they cannot. */
  Located<T> AmongMade(const PlannedArg& arg, size_t step) {
    const int32_t* rows = RowsOf(step);
    int32_t* numbers = Numbers(step);
    for (int64_t r = 0; r < Count(step); ++r) {
      const int32_t id = arg.ids[rows[r]];
      const int64_t number = s_.plan.value_of[id];
      const PlannedValue& value = s_.plan.values[number];
      const int64_t at = value.step < 0 || value.width != arg.width ? -1 : number_at_[number];
      const int64_t place = at + PlaceOf(value, id);
      if (at < 0 || place > INT32_MAX) {
        used_index_ -= Count(step);
        return {nullptr, 0};
      }
      numbers[r] = place;
    }
    return {made_, arg.width, numbers};
  }

  bool HasOneOffset(const PlannedArg& arg, size_t step) const {
    const int32_t* rows = RowsOf(step);
    for (int64_t r = 1; arg.offsets && r < Count(step); ++r)
      if (arg.offsets[rows[r]] != arg.offsets[rows[0]]) return false;
    return true;
  }

  /* Rows of an argument: where they lie, or copied to `to` where they cannot be numbered. */
  Located<T> Find(const PlannedArg& arg, size_t step, T* to) {
    if (arg.value >= 0 && HasOneOffset(arg, step)) return ByNumber(arg, step);
    if (!arg.offsets) {
      Located<T> found = AmongMade(arg, step);
      if (found.at) return found;
    }
    for (int64_t r = 0; r < Count(step); ++r)
      CopyRow(to + r * arg.width, EntryAt(arg, RowsOf(step)[r], value_at_), arg.width);
    return {to, arg.width};
  }

  /* Whether an argument is one row of zeros from outside, whose gradient nobody wants. */
  bool IsZero(const PlannedArg& arg, size_t step) const {
    const int32_t* rows = RowsOf(step);
    int32_t id = arg.ids[rows[0]];
    int64_t value = s_.plan.value_of[id];
    if (s_.plan.values[value].step >= 0 || arg.offsets) return false;
    if (is_backward_ && s_.call.external_gradients[value]) return false;
    for (int64_t r = 1; r < Count(step); ++r)
      if (arg.ids[rows[r]] != id) return false;
    const T* row = RowAt(id, value_at_);
    return std::all_of(row, row + arg.width, [](T element) { return element == T(0); });
  }

  /* Arguments side by side that are zero: what has no children is given such states. */
  Bare FindBare(size_t number) const {
    const auto& args = s_.plan.steps[number].args;
    Bare bare;
    while (bare.begin < static_cast<int64_t>(args.size()) && !IsZero(args[bare.begin], number))
      ++bare.begin;
    bare.end = bare.begin;
    while (bare.end < static_cast<int64_t>(args.size()) && IsZero(args[bare.end], number))
      ++bare.end;
    if (is_backward_)
      bare.gradients = args.size() + 2 * s_.plan.steps[number].values.size();
    return bare;
  }

  void Forward(size_t number) {
    const PlannedStep& step = s_.plan.steps[number];
    RowProgram<T>& program = *programs_[step.program];
    int64_t rows = Count(number);
    T* free = args_;
    size_t at = 0;
    for (const PlannedArg& arg : step.args) {
      if (program.Uses(at)) {
        program.sequences[at] = Find(arg, number, free);
        free += rows * arg.width;
      }
      ++at;
    }
    for (int64_t value : step.values)
      program.sequences[at++] = {value_at_[value], s_.plan.values[value].width};
    program.stash = {stash_at_[number], s_.programs[step.program]->program.stash_width};
    program.Run(0, rows, 0, FindBare(number));
  }

  /* Calls `each` with the place of a row of the step, and the numbers of its first and last entry. */
  template <typename Each>
  void Segments(size_t number, const Each& each) const {
    const PlannedStep& step = s_.plan.steps[number];
    const int32_t* rows = RowsOf(number);
    int64_t row = 0, entry = 0;
    for (int64_t p = 0; p < Count(number); ++p) {
      for (; row < rows[p]; ++row) entry += step.lengths[row];
      each(p, entry, entry + step.lengths[row]);
    }
  }

  void Reduce(size_t number) {
    const PlannedStep& step = s_.plan.steps[number];
    const PlannedArg& arg = step.args[0];
    int64_t width = arg.width;
    Segments(number, [&](int64_t p, int64_t begin, int64_t end) {
      T* to = value_at_[step.values[0]] + p * width;
      CopyRow(to, EntryAt(arg, begin, value_at_), width);
      for (int64_t e = begin + 1; e < end; ++e)
        if (step.kind == kMaxStep)
          MaxRow(to, EntryAt(arg, e, value_at_), width);
        else
          AddRow(to, EntryAt(arg, e, value_at_), width);
      if (step.kind == kMeanStep)
        for (int64_t j = 0; j < width; ++j) to[j] /= static_cast<T>(end - begin);
    });
  }

  void Export(size_t k) const {
    int64_t value = s_.plan.exports[k], width = s_.plan.values[value].width;
    size_t step = s_.plan.values[value].step;
    if (!s_.call.exports[k]) return;
    for (int64_t p = 0; p < Count(step); ++p)
      CopyRow(static_cast<T*>(s_.call.exports[k]) + RowsOf(step)[p] * width,
              value_at_[value] + p * width, width);
  }

  void Import(size_t k) const {
    int64_t value = s_.plan.exports[k], width = s_.plan.values[value].width;
    size_t step = s_.plan.values[value].step;
    if (!s_.call.heads[k]) return;
    for (int64_t p = 0; p < Count(step); ++p)
      AddRow(gradient_at_[value] + p * width,
             static_cast<const T*>(s_.call.heads[k]) + RowsOf(step)[p] * width, width);
  }

  void Backward(size_t number) {
    const PlannedStep& step = s_.plan.steps[number];
    RowProgram<T>& program = *programs_[step.program];
    int64_t rows = Count(number);
    const size_t n_in = step.args.size(), n_out = step.values.size();
    for (size_t a = 0; a < n_in; ++a) {
      const PlannedArg& arg = step.args[a];
      if (!program.Uses(a)) continue;
      T* to = args_ + used_args_;
      program.sequences[a] = Find(arg, number, to);
      if (program.sequences[a].at == to) used_args_ += rows * arg.width;
    }
    for (size_t o = 0; o < n_out; ++o)
      program.sequences[n_in + n_out + o] = {gradient_at_[step.values[o]],
                                             s_.plan.values[step.values[o]].width};
    T* free = arg_gradients_;
    for (size_t a = 0; a < n_in; ++a) {
      const PlannedArg& arg = step.args[a];
      program.sequences[n_in + 2 * n_out + a] =
          IsOnce(arg) ? Alone(arg, number) : Located<T>{Wants(arg) ? free : nullptr, arg.width};
      free += rows * arg.width;
    }
    program.stash = {stash_at_[number], s_.programs[step.program]->program.stash_width};
    program.Run(0, rows, ring_[step.program], FindBare(number));
    ring_[step.program] += rows;
    for (size_t a = 0; a < n_in; ++a) {
      const PlannedArg& arg = step.args[a];
      const T* from = IsOnce(arg) ? nullptr : program.sequences[n_in + 2 * n_out + a].at;
      for (int64_t p = 0; from && p < rows; ++p)
        Contribute(arg, RowsOf(number)[p], from + p * arg.width);
    }
  }

  /* Whether an argument is of rows from outside whose gradients are no sums. */
  bool IsOnce(const PlannedArg& arg) const {
    return arg.value >= 0 && arg.value < static_cast<int64_t>(s_.plan.externals) &&
           s_.rows.is_once[arg.value];
  }

  /* Where the gradients of such rows belong. */
  Located<T> Alone(const PlannedArg& arg, size_t step) {
    T* gradients = static_cast<T*>(s_.call.external_gradients[arg.value]);
    if (!gradients) return {nullptr, arg.width};
    int32_t* numbers = Numbers(step);
    for (int64_t r = 0; r < Count(step); ++r)
      numbers[r] = arg.ids[RowsOf(step)[r]] - s_.plan.values[arg.value].base;
    return {gradients, arg.width, numbers};
  }

  /* Whether anybody asks for the gradient of an argument. */
  bool Wants(const PlannedArg& arg) const {
    for (int64_t e = 0; e < arg.entries; ++e) {
      int64_t value = s_.plan.value_of[arg.ids[e]];
      if (s_.plan.values[value].step >= 0 || s_.call.external_gradients[value]) return true;
    }
    return false;
  }

  /* Adds to the gradient of an entry's row. */
  void Contribute(const PlannedArg& arg, int64_t entry, const T* from) const {
    T* to = GradientAt(arg.ids[entry]);
    if (to) AddRow(to + (arg.offsets ? arg.offsets[entry] : 0), from, arg.width);
  }

  T* GradientAt(int32_t id) const {
    int64_t number = s_.plan.value_of[id];
    const PlannedValue& value = s_.plan.values[number];
    if (value.step >= 0) return RowAt(id, gradient_at_);
    if (!s_.call.external_gradients[number]) return nullptr;
    if (s_.rows.at[id] >= 0) return partial_ + s_.partial_at.back() + s_.rows.at[id];
    return static_cast<T*>(s_.call.external_gradients[number]) + (id - value.base) * value.width;
  }

  void Spread(size_t number) {
    const PlannedStep& step = s_.plan.steps[number];
    const PlannedArg& arg = step.args[0];
    const int64_t width = arg.width;
    T* row = arg_gradients_;
    Segments(number, [&](int64_t p, int64_t begin, int64_t end) {
      const T* gradient = gradient_at_[step.values[0]] + p * width;
      const T* made = value_at_[step.values[0]] + p * width;
      for (int64_t e = begin; e < end; ++e) {
        if (step.kind == kSumStep) {
          Contribute(arg, e, gradient);
          continue;
        }
        const T* source = EntryAt(arg, e, value_at_);
        for (int64_t j = 0; j < width; ++j)
          row[j] = step.kind == kMeanStep ? gradient[j] / static_cast<T>(end - begin)
                   : source[j] == made[j] ? gradient[j]
                                          : T(0);
        Contribute(arg, e, row);
      }
    });
  }

  const Shared<T>& s_;
  bool is_backward_;
  std::vector<std::unique_ptr<RowProgram<T>>> programs_;
  std::vector<T*> value_at_, gradient_at_, stash_at_;
  std::vector<int64_t> ring_;
  std::vector<int32_t> index_;
  std::vector<int64_t> number_at_;  // of values that steps make: of row 0 among rows as wide; or -1
  T* made_ = nullptr;               // where what steps make begins
  T *own_values_ = nullptr, *args_ = nullptr, *arg_gradients_ = nullptr, *gradients_ = nullptr;
  T* partial_ = nullptr;
  int64_t chunk_ = 0, used_args_ = 0, used_index_ = 0;
};

}  // namespace graphopt::schedules
