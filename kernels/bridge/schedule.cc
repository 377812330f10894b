#include "schedule.h"

#include <atomic>
#include <memory>

#include "schedule_walk.h"

namespace graphopt {
namespace schedules {
namespace {

constexpr int64_t kMaxShared = 1 << 20;  // elements of shared rows that each unit has sums of

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
}  // namespace schedules

void RunSchedule(const SchedulePlan& plan, const ScheduleCall& call, bool backward) {
  if (call.is_double)
    schedules::RunAs<double>(plan, call, backward);
  else
    schedules::RunAs<float>(plan, call, backward);
}

}  // namespace graphopt
