#include "schedule.h"

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>

#include "rows.h"

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

namespace {

constexpr double kMinChunkWork = 4e6;  // multiplications; less is not worth a chunk of its own
constexpr double kMaxChunkWork = 1e8;  // what is gathered for more does not stay in the cache
constexpr double kRowWork = 100;       // of a row, besides products
constexpr int64_t kMaxShared = 1 << 20;

double WorkOf(const Program& program) {
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

/* The first row of what every row hangs together with. */
std::vector<int32_t> Parts(const SchedulePlan& plan) {
  std::vector<int32_t> first(plan.step_rows);
  std::iota(first.begin(), first.end(), 0);
  auto find = [&](int32_t row) {
    while (first[row] != row) row = first[row] = first[first[row]];
    return row;
  };
  for (const PlannedStep& step : plan.steps)
    for (const PlannedArg& arg : step.args) {
      int64_t row = 0, left = step.lengths ? step.lengths[0] : 1;
      for (int64_t e = 0; e < arg.entries; ++e) {
        while (left == 0) left = step.lengths ? step.lengths[++row] : (++row, 1);
        --left;
        const PlannedValue& source = plan.values[plan.value_of[arg.ids[e]]];
        if (source.step < 0) continue;
        int32_t a = find(step.first + row);
        int32_t b = find(plan.steps[source.step].first + arg.ids[e] - source.base);
        if (a != b) first[std::max(a, b)] = std::min(a, b);
      }
    }
  for (int64_t row = 0; row < plan.step_rows; ++row) first[row] = find(row);
  return first;
}

Chunks Divide(const SchedulePlan& plan, const std::vector<double>& work_of_program) {
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
std::vector<bool> FindOnce(const SchedulePlan& plan) {
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

SharedRows FindShared(const SchedulePlan& plan, const Chunks& chunks, const ScheduleCall& call) {
  int64_t count = 0;
  for (size_t i = 0; i < plan.externals; ++i) count += plan.values[i].rows;
  std::vector<int32_t> owner(count, -1);
  SharedRows found;
  found.at.assign(count, -1);
  found.is_once = FindOnce(plan);
  for (const PlannedStep& step : plan.steps)
    for (const PlannedArg& arg : step.args) {
      int64_t row = 0, left = step.lengths ? step.lengths[0] : 1;
      for (int64_t e = 0; e < arg.entries; ++e) {
        while (left == 0) left = step.lengths ? step.lengths[++row] : (++row, 1);
        --left;
        int64_t id = arg.ids[e];
        if (id >= count || !call.external_gradients[plan.value_of[id]]) continue;
        int32_t chunk = chunks.chunk_of[step.first + row];
        if (owner[id] == -1) owner[id] = chunk;
        if (owner[id] == chunk || found.at[id] >= 0) continue;
        found.at[id] = found.size;
        found.size += plan.values[plan.value_of[id]].width;
      }
    }
  return found;
}

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

/* Sizes of the largest chunk, and where each one's part of the stash begins. */
template <typename T>
void Measure(Shared<T>* shared) {
  const SchedulePlan& plan = shared->plan;
  shared->program_rows.assign(shared->programs.size(), 0);
  int64_t stash = 0;
  for (int64_t c = 0; c < shared->chunks.count; ++c) {
    int64_t values = 0, all_args = 0, outputs = 0, arg_rows = 0;
    std::vector<int64_t> rows_of(shared->programs.size(), 0);
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const PlannedStep& step = plan.steps[s];
      int64_t rows = shared->chunks.Count(c, s), args = 0;
      for (const PlannedArg& arg : step.args) args += arg.width;
      for (int64_t value : step.values) outputs += rows * plan.values[value].width;
      if (step.kind == kRowsStep) {
        rows_of[step.program] += rows;
        values += rows * shared->programs[step.program]->program.stash_width;
        all_args += rows * args;
        arg_rows += rows * step.args.size();
        args *= rows;
      }
      shared->step_args = std::max(shared->step_args, args);
    }
    values += outputs;
    shared->stash_at.push_back(stash);
    stash += values;
    shared->values = std::max(shared->values, values);
    shared->all_args = std::max(shared->all_args, all_args);
    shared->outputs = std::max(shared->outputs, outputs);
    shared->arg_rows = std::max(shared->arg_rows, arg_rows);
    for (size_t i = 0; i < rows_of.size(); ++i)
      shared->program_rows[i] = std::max(shared->program_rows[i], rows_of[i]);
  }
}

/* Adds up gradients of rows that several chunks read. */
template <typename T>
void CollectRows(const Shared<T>& shared, const T* partials, int64_t units) {
  const SchedulePlan& plan = shared.plan;
  for (size_t id = 0; id < shared.rows.at.size(); ++id) {
    if (shared.rows.at[id] < 0) continue;
    const PlannedValue& value = plan.values[plan.value_of[id]];
    T* to = static_cast<T*>(shared.call.external_gradients[plan.value_of[id]]) +
            (id - value.base) * value.width;
    for (int64_t u = 0; u < units; ++u)
      AddRow(to, partials + u * shared.partial_size + shared.partial_at.back() + shared.rows.at[id],
             value.width);
  }
}

template <typename T>
void RunAs(const SchedulePlan& plan, const ScheduleCall& call, bool backward) {
  std::vector<double> work;
  for (const Program* program : call.programs) work.push_back(WorkOf(*program));
  const Chunks chunks = Divide(plan, work);
  SharedRows rows;
  if (backward) rows = FindShared(plan, chunks, call);
  Shared<T> shared{plan, call, chunks, rows};
  for (size_t i = 0; i < call.programs.size(); ++i) {
    // Steps of a chunk have few rows.
    shared.programs.emplace_back(new Prepared<T>(*call.programs[i], call.learned[i],
                                                 ProductsOfFew<T>(), call.threads));
    shared.partial_at.push_back(shared.partial_size);
    shared.partial_size += shared.programs.back()->partial_size;
  }
  shared.partial_at.push_back(shared.partial_size);
  shared.partial_size += RoundUp(rows.size, kLine);
  Measure(&shared);
  int64_t units = std::min(chunks.count, rows.size > kMaxShared ? 1 : kUnits);
  std::unique_ptr<T[]> partials;
  if (backward) {
    partials.reset(new T[std::max<int64_t>(1, units * shared.partial_size)]);
    for (size_t i = 0; i < plan.externals; ++i)
      if (call.external_gradients[i] && !rows.is_once[i])
        std::memset(call.external_gradients[i], 0,
                    plan.values[i].rows * plan.values[i].width * sizeof(T));
  }
  std::atomic<int64_t> next{0};
  int threads = static_cast<int>(std::min<int64_t>(call.threads, units));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const Flushing flushing(backward);
    ScheduleWalk<T> walk(shared, backward);
    for (int64_t unit; (unit = next.fetch_add(1)) < units;) {
      T* partial = backward ? partials.get() + unit * shared.partial_size : nullptr;
      if (partial) std::memset(partial, 0, shared.partial_size * sizeof(T));
      for (int64_t chunk = unit; chunk < chunks.count; chunk += units) walk.Run(chunk, partial);
    }
  }
  if (!backward) return;
  for (size_t i = 0; i < shared.programs.size(); ++i)
    shared.programs[i]->Collect(partials.get() + shared.partial_at[i], shared.partial_size, units,
                                call.threads);
  CollectRows(shared, partials.get(), units);
}

}  // namespace

void RunSchedule(const SchedulePlan& plan, const ScheduleCall& call, bool backward) {
  if (call.is_double)
    RunAs<double>(plan, call, backward);
  else
    RunAs<float>(plan, call, backward);
}

}  // namespace graphopt
