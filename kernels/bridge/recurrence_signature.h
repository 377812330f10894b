/*
 * What Python tells of recurrences: their signatures and programs.
 */
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "fused_plan.h"
#include "lookup.h"
#include "recurrence.h"

namespace graphopt {

/* What Python tells of a spec: modes of the describe callback, plus 4 with lengths, plus 8 if the first
 * sequence is read by number, plus 16 if products are by vectors even where there is a matrix unit. */
enum Mode {
  kSignature = 0,
  kInference = 1,
  kTraining = 2,
  kBackwardPass = 3,
  kWithLengths = 4,
  kIndexed = 8,
  kByVectors = 16
};

struct Signature {
  int dtype = 0;
  std::vector<int64_t> sequences, states, matrix_rows, matrix_columns, vectors, emitted;
  int64_t stash_width = 0;
  bool reads_outputs = false, has_lengths = false, zero_states = false, is_indexed = false;
  Projection projection;  // if the first sequence is read by number
  size_t directions = 1;

  size_t given_states() const { return zero_states ? 0 : states.size(); }

  size_t inputs() const {
    return sequences.size() +
           directions * (given_states() + matrix_rows.size() + vectors.size()) + is_indexed +
           has_lengths;
  }
  /* The first input that may have another dtype: numbers of rows, lengths. */
  size_t integers() const { return inputs() - has_lengths - is_indexed; }
  size_t results() const { return emitted.size() + directions * states.size(); }
  size_t backward_inputs() const {
    return results() + inputs() + (reads_outputs ? emitted.size() : 0) + 1;
  }
};

std::mutex recurrences_mutex;
std::unordered_map<std::string, std::unique_ptr<Signature>> signatures[32];
std::unordered_map<std::string, std::unique_ptr<Program>> programs[32];

std::vector<int64_t> Told(const std::string& spec, int mode) {
  std::vector<int64_t> numbers(1 << 16);
  numbers.resize(Answer(describe, spec.c_str(), mode, numbers.data(), numbers.size()));
  return numbers;
}

const std::string& SpecOf(const NodeAttrs& attrs) { return AttributeOf(attrs, "spec"); }

/* Finds what Python told before, or asks; not under the lock, as Python may run other threads. */
template <typename Kept, typename Make>
const Kept& FindOrMake(std::unordered_map<std::string, std::unique_ptr<Kept>>* known,
                       const std::string& spec, const Make& make) {
  {
    std::lock_guard<std::mutex> lock(recurrences_mutex);
    auto found = known->find(spec);
    if (found != known->end()) return *found->second;
  }
  auto made = make();
  std::lock_guard<std::mutex> lock(recurrences_mutex);
  return *known->emplace(spec, std::move(made)).first->second;
}

/* Those of a node that are added to a mode. */
int FlagsOf(const NodeAttrs& attrs) {
  return (Flag(attrs, "lengths") ? kWithLengths : 0) + (Flag(attrs, "indexed") ? kIndexed : 0) +
         (Flag(attrs, "by_vectors") ? kByVectors : 0);
}

const Signature& SignatureBy(const std::string& spec, int flags, bool zero_states, bool bidirectional) {
  const int key = flags / kWithLengths + 8 * zero_states + 16 * bidirectional;
  return FindOrMake(&signatures[key], spec, [&] {
    std::vector<int64_t> numbers = Told(spec, kSignature + flags);
    const int64_t* at = numbers.data();
    auto made = std::make_unique<Signature>();
    made->has_lengths = flags & kWithLengths;
    made->zero_states = zero_states;
    made->directions = bidirectional ? 2 : 1;
    made->is_indexed = flags & kIndexed;
    made->dtype = *at++;
    made->stash_width = *at++;
    made->reads_outputs = *at++;
    for (auto table : {&made->sequences, &made->states, &made->matrix_rows, &made->matrix_columns,
                       &made->vectors, &made->emitted})
      for (int64_t n = *at++; n > 0; --n) table->push_back(*at++);
    if (made->is_indexed) made->projection = ReadProjection(&at);
    return made;
  });
}

const Signature& SignatureOf(const NodeAttrs& attrs) {
  return SignatureBy(SpecOf(attrs), FlagsOf(attrs), Flag(attrs, "zero_states"),
                     Flag(attrs, "bidirectional"));
}

const Program& ProgramBy(const std::string& spec, int key) {
  return FindOrMake(&programs[key], spec, [&] {
    std::vector<int64_t> numbers = Told(spec, key);
    const int64_t* at = numbers.data();
    auto made = std::make_unique<Program>(ReadProgram(&at));
    made->by_vectors = key & kByVectors;
    return made;
  });
}

const Program& ProgramOf(const NodeAttrs& attrs, Mode mode) {
  return ProgramBy(SpecOf(attrs), mode + FlagsOf(attrs));
}

}  // namespace graphopt
