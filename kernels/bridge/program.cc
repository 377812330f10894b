/*
 * Reads programs of recurrences, and finds out what is known from them alone.
 */
#include <algorithm>
#include <utility>

#include "matrix.h"
#include "recurrence.h"

namespace graphopt {

namespace {

bool Touches(const Step& step, const Spot& spot) {
  return std::any_of(step.spots.begin(), step.spots.end(), [&](const Spot& other) {
    return other.place == spot.place && other.index == spot.index;
  });
}

/* Marks products that have no part in the recurrence. */
void FindFree(Program* program) {
  std::vector<Step>& steps = program->steps;
  for (size_t n = 0; n < steps.size(); ++n) {
    if (steps[n].code != kProduct) continue;
    const Spot &to = steps[n].spots[0], &from = steps[n].spots[1];
    if (!program->backward) {
      bool is_first = !steps[n].adds && (to.place == kScratch || to.place == kStash);
      bool follows = n > 0 && steps[n].adds && steps[n - 1].early &&
                     to.index == steps[n - 1].spots[0].index &&
                     to.offset == steps[n - 1].spots[0].offset;
      // Not what an earlier step emits: that is not there before its turn.
      bool is_input = from.place == kSequence && !program->sequence_is_written[from.index];
      steps[n].early = is_input && (is_first || follows);
    } else if (to.place == kSequence && from.place == kRing && !steps[n].adds) {
      steps[n].late = std::count_if(steps.begin(), steps.end(), [&](const Step& step) {
                        return Touches(step, to);
                      }) == 1;
    }
  }
}

/* Counts products that are added to what the one before them wrote. */
void FindTogether(Program* program) {
  std::vector<Step>& steps = program->steps;
  for (size_t n = steps.size(); n-- > 1;) {
    const Step &one = steps[n], &before = steps[n - 1];
    if (one.code != kProduct || before.code != kProduct || !one.adds || one.width != before.width)
      continue;
    const Spot &to = one.spots[0], &same = before.spots[0], &from = one.spots[1];
    const bool is_read = from.place == to.place && from.index == to.index;
    if (to.place == same.place && to.index == same.index && to.offset == same.offset && !is_read)
      steps[n - 1].together = one.together < kMostFactors ? one.together + 1 : 1;
  }
}

/* Counts products, or outer products, whose left operand is that of the one before them. */
void FindAlike(Program* program) {
  std::vector<Step>& steps = program->steps;
  for (size_t n = steps.size(); n-- > 1;) {
    const Step &one = steps[n], &before = steps[n - 1];
    const bool are_products = one.code == kProduct && one.depth == before.depth &&
                              one.together == 1 && before.together == 1;
    const bool are_outer = one.code == kOuter && one.width == before.width;
    if (one.code != before.code || !(are_products || are_outer)) continue;
    const size_t left = are_products ? 1 : 0;
    const Spot &spot = one.spots[left], &same = before.spots[left], &to = before.spots[0];
    const bool is_written = are_products && to.place == spot.place && to.index == spot.index;
    if (spot.place == same.place && spot.index == same.index && spot.offset == same.offset && !is_written)
      steps[n - 1].alike = one.alike < kMostFactors ? one.alike + 1 : 1;
  }
}

}  // namespace

Program ReadProgram(const int64_t** numbers) {
  const int64_t*& at = *numbers;
  Program program;
  program.is_double = *at++;
  program.backward = *at++;
  program.stash_width = *at++;
  program.stash_unit = *at++;
  for (int64_t n = *at++; n > 0; --n) {
    program.sequence_widths.push_back(*at++);
    program.sequence_is_written.push_back(*at++);
  }
  for (int64_t n = *at++; n > 0; --n) {
    program.states.push_back({at[0], at[1], at[2], at[3]});
    at += 4;
  }
  for (int64_t n = *at++; n > 0; --n) {
    program.matrix_rows.push_back(*at++);
    program.matrix_columns.push_back(*at++);
  }
  for (int64_t n = *at++; n > 0; --n) program.vector_widths.push_back(*at++);
  for (int64_t n = *at++; n > 0; --n) program.scratch_widths.push_back(*at++);
  for (int64_t n = *at++; n > 0; --n) program.ring_widths.push_back(*at++);
  for (int64_t n = *at++; n > 0; --n) {
    program.packs.push_back({at[0], at[1] != 0, at[2], at[3], at[4], at[5], at[6]});
    at += 7;
  }
  for (int64_t n = *at++; n > 0; --n) {
    KernelOf kernel{reinterpret_cast<KernelFunction>(at[0]), at[1], at[2] != 0, {at[3], {}}};
    int64_t stages = at[4];
    for (at += 5; stages > 0; --stages, at += 2 + at[1])
      kernel.stages.all.push_back(
          {reinterpret_cast<KernelFunction>(at[0]), {at + 2, at + 2 + at[1]}});
    program.kernels.push_back(std::move(kernel));
  }
  for (int64_t n = *at++; n > 0; --n) {
    Step step{at[0], at[1], at[2], at[3], at[4] != 0, at[5], at[6], {}};
    int64_t spots = at[7];
    at += 8;
    for (; spots > 0; --spots, at += 3) step.spots.push_back({at[0], at[1], at[2]});
    program.steps.push_back(step);
  }
  FindFree(&program);
  FindTogether(&program);
  FindAlike(&program);
  return program;
}

bool ReadsFirst(const Program& program, int64_t read, int64_t written) {
  bool is_written = false;
  for (const Step& step : program.steps) {
    auto touches = [&](int64_t sequence) {
      return std::any_of(step.spots.begin(), step.spots.end(), [&](const Spot& spot) {
        if (spot.place == kSequence) return spot.index == sequence;
        if (spot.place != kNext) return false;
        const StateOf& state = program.states[spot.index];
        return state.home == kInSequence && state.index == sequence;
      });
    };
    is_written = is_written || touches(written);
    if (is_written && touches(read)) return false;
  }
  return true;
}

}  // namespace graphopt
