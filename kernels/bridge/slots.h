/*
 * Sequences of different lengths on their way forward through a recurrence.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ask.h"
#include "turns.h"

namespace graphopt::walks {

/* Places for sequences, each of which is at a step of its own. Where one has ended the next takes its place, so
 * a processor's tiles and vectors have full blocks of rows until none is left. Then the last one moves
 * up to where one has ended. */
template <typename T>
class Slots : public InTurns<T, Slots<T>> {
  using Turns = InTurns<T, Slots<T>>;
  using Turns::live_, Turns::p_;
  friend Executor<T, Slots<T>>;

 public:
  /* Before it is started, `buffers` have to be given a place; `next` is the first sequence that has none. */
  Slots(const Shared<T>& shared, std::atomic<int64_t>* next, Buffers<T>* buffers)
      : Turns(shared.weights, buffers), s_(shared), c_(shared.call), next_(next) {
    const size_t rows = s_.rows_per_chunk;
    sequence_.resize(rows);
    left_.resize(rows);
    for (int kind = 0; kind < kKinds; ++kind) {
      numbers_[kind].now.resize(rows);
      numbers_[kind].before.resize(rows);
    }
    const int32_t batch = static_cast<int32_t>(c_.batch), way = c_.reverse ? -1 : 1;
    numbers_[kStepsFirst].stride = way * batch;
    numbers_[kBatchFirst].stride = way;
    numbers_[kStashed].stride = batch;
    initial_.resize(p_.states.size());
    for (auto& turn : turns_) turn.resize(p_.states.size());
    scratch_.resize(p_.scratch_widths.size());
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const int64_t size = rows * p_.states[i].width;
      buffers->Want(&initial_[i], size);
      if (p_.states[i].home == kPingPong)
        for (auto& turn : turns_) buffers->Want(&turn[i], size);
    }
    for (size_t i = 0; i < scratch_.size(); ++i)
      buffers->Want(&scratch_[i], rows * p_.scratch_widths[i]);
  }

  /* The sequences of a chunk. So many chunks, one for each thread, share the longest sequences, and so on. */
  void Start(int64_t chunk, int64_t threads) {
    step_ = 0;
    const int64_t rows = s_.rows_per_chunk, first = chunk / threads * threads * rows + chunk % threads;
    for (int64_t row = 0, at = first; row < rows && at < c_.batch; ++row, at += threads)
      if (!IsEmpty(at)) Enter(count_++, at);
    if (count_ == 0 && EnterNext(0)) ++count_;  // none, as those that wait are not longer
  }

  /* Through all steps of its sequences and of those that take their places, with an errand besides. */
  void Run(Errand* errand) {
    Meanwhile besides;
    besides.TakeNone(errand);
    // A matrix unit does its errands in turns only, with pieces of a kernel.
    if (!s_.weights.products.are_tiled) this->meanwhile_ = &besides;
    while (!IsOver()) {
      BeginStep();
      for (size_t n = 0; n < p_.steps.size();) {
        const Step& step = p_.steps[n];
        const bool are_alike = step.code == kProduct && step.alike > 1;
        const int64_t count = are_alike ? step.alike : step.together;
        if (are_alike)
          this->MultiplyAlike(n, count);
        else
          this->Execute(step, n, count);
        for (const size_t end = n + count; n < end; ++n) Fetch();
      }
      EndStep();
    }
    this->meanwhile_ = nullptr;
  }

  bool IsOver() const { return count_ == 0; }

  void BeginStep() {
    live_ = count_;
    if (c_.index)
      for (int64_t row = 0; row < live_; ++row)
        numbers_[kByNumber].now[row] = c_.index[numbers_[kStepsFirst].now[row]];
    if (is_entered_) Gather();
    asked_ = 0;
    const int64_t steps = std::max<int64_t>(p_.steps.size(), 1);  // none, if states stay as they are
    part_ = (live_ + steps - 1) / steps;
  }

  /* Asks for some rows that the next step reads or writes, while products keep the processor busy. */
  void Fetch() {
    for (const int64_t end = std::min(live_, asked_ + part_); asked_ < end; ++asked_)
      if (left_[asked_] > 1) Ask(asked_, 1);  // who takes its place asks for its own
  }

  /* Sequences that have ended hand over their states and make room. */
  void EndStep() {
    is_entered_ = false;
    for (int64_t row = 0; row < count_; ++row)
      if (--left_[row] == 0) HandOver(row);
    ++step_;
    for (Numbers& numbers : numbers_)
      for (int64_t row = 0; row < count_; ++row) {
        numbers.before[row] = numbers.now[row];
        // Behind an end it may be none; nobody reads it then.
        numbers.now[row] = static_cast<int32_t>(numbers.now[row] + int64_t{numbers.stride});
      }
    for (int64_t row = count_; row-- > 0;)
      if (left_[row] == 0 && !EnterNext(row)) MoveLast(row);
  }

 private:
  enum Kind { kStepsFirst, kBatchFirst, kByNumber, kStashed, kKinds };
  static constexpr int64_t kMostAsked = (4 << 10) / sizeof(T);  // of a row

  /* Which rows of an array the sequences are at, and which they were at a step before. */
  struct Numbers {
    std::vector<int32_t> now, before;
    int32_t stride = 0;  // from a step to the next
  };

  Kind KindOf(size_t i) const {
    if (i == 0 && c_.index) return kByNumber;
    return s_.HasStepsFirst(c_.sequences[i]) ? kStepsFirst : kBatchFirst;
  }

  int32_t NumberAt(int kind, int64_t sequence, int64_t step) const {
    const int64_t row = s_.order[sequence], time = c_.reverse ? s_.lengths[sequence] - 1 - step : step;
    switch (kind) {
      case kStashed: return static_cast<int32_t>(step * c_.batch + sequence);
      case kBatchFirst: return static_cast<int32_t>(row * c_.steps + time);
      default: return static_cast<int32_t>(time * c_.batch + row);
    }
  }

  static int64_t StrideOf(Kind kind, const SequenceArray& array) {
    return kind == kBatchFirst ? array.step_stride : array.row_stride;
  }

  Located<T> SequenceAt(int64_t i, int64_t offset, bool is_before = false) {
    const SequenceArray& array = c_.sequences[i];
    if (!array.data) return {nullptr, 0};
    const Kind kind = KindOf(i);
    const Numbers& numbers = numbers_[kind];
    return {static_cast<T*>(array.data) + offset,
            StrideOf(kind, array),
            (is_before ? numbers.before : numbers.now).data()};
  }

  Located<T> StashAt(int64_t offset, bool is_before = false) {
    const Numbers& numbers = numbers_[kStashed];
    return {static_cast<T*>(c_.stash) + offset, p_.stash_width,
            (is_before ? numbers.before : numbers.now).data()};
  }

  Located<T> StateAt(int64_t i, int64_t offset, bool is_before) {
    const StateOf& state = p_.states[i];
    switch (state.home) {
      case kFixed: return {initial_[i] + offset, state.width};
      case kInStash: return StashAt(state.offset + offset, is_before);
      case kInSequence: return SequenceAt(state.index, state.offset + offset, is_before);
      default: return {turns_[(step_ - is_before) & 1][i] + offset, state.width};
    }
  }

  Located<T> Locate(const Spot& spot) {
    const int64_t i = spot.index, offset = spot.offset;
    switch (spot.place) {
      case kSequence: return SequenceAt(i, offset);
      case kPrevious:
        if (is_entered_ && IsByNumber(i)) return {initial_[i] + offset, p_.states[i].width};
        return StateAt(i, offset, true);
      case kNext: return StateAt(i, offset, false);
      case kStash: return StashAt(offset);
      case kScratch: return {scratch_[i] + offset, p_.scratch_widths[i]};
      default: return this->VectorAt(spot);
    }
  }

  /* Whether a state's rows are found by number, so that an initial one cannot be among them. */
  bool IsByNumber(size_t i) const {
    return p_.states[i].home == kInStash || p_.states[i].home == kInSequence;
  }

  void CopyInitial(size_t i, int64_t sequence, T* to) const {
    const int64_t width = p_.states[i].width;
    if (c_.first[i])
      std::memcpy(to, static_cast<const T*>(c_.first[i]) + s_.order[sequence] * width, width * sizeof(T));
    else
      std::memset(to, 0, width * sizeof(T));
  }

  T* LastOf(size_t i, int64_t sequence) const {
    if (!c_.last[i]) return nullptr;
    return static_cast<T*>(c_.last[i]) + s_.order[sequence] * p_.states[i].width;
  }

  /* Whether a sequence has no step; its states are final then. */
  bool IsEmpty(int64_t sequence) const {
    if (s_.lengths[sequence] > 0) return false;
    for (size_t i = 0; i < p_.states.size(); ++i)
      if (T* to = LastOf(i, sequence)) CopyInitial(i, sequence, to);
    return true;
  }

  void Enter(int64_t row, int64_t sequence) {
    is_entered_ = true;
    sequence_[row] = sequence;
    left_[row] = s_.lengths[sequence];
    for (int kind = 0; kind < kKinds; ++kind) numbers_[kind].now[row] = NumberAt(kind, sequence, 0);
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const StateOf& state = p_.states[i];
      if (!IsByNumber(i)) CopyInitial(i, sequence, StateAt(i, 0, true).Row(row));
    }
    Ask(row, 0);
  }

  bool EnterNext(int64_t row) {
    for (int64_t sequence; (sequence = next_->fetch_add(1)) < c_.batch;)
      if (!IsEmpty(sequence)) {
        Enter(row, sequence);
        return true;
      }
    return false;
  }

  void MoveLast(int64_t row) {
    if (row == --count_) return;
    sequence_[row] = sequence_[count_];
    left_[row] = left_[count_];
    for (Numbers& numbers : numbers_) {
      numbers.now[row] = numbers.now[count_];
      numbers.before[row] = numbers.before[count_];
    }
    for (size_t i = 0; i < p_.states.size(); ++i) {
      if (IsByNumber(i)) continue;
      const Located<T> all = StateAt(i, 0, true);
      std::memcpy(all.Row(row), all.Row(count_), p_.states[i].width * sizeof(T));
    }
  }

  void HandOver(int64_t row) {
    for (size_t i = 0; i < p_.states.size(); ++i)
      if (T* to = LastOf(i, sequence_[row]))
        std::memcpy(to, StateAt(i, 0, false).Row(row), p_.states[i].width * sizeof(T));
  }

  /* States before the step, initial ones among them. */
  void Gather() {
    for (size_t i = 0; i < p_.states.size(); ++i) {
      if (!IsByNumber(i)) continue;
      const int64_t width = p_.states[i].width;
      const Located<T> before = StateAt(i, 0, true);
      for (int64_t row = 0; row < live_; ++row) {
        T* to = initial_[i] + row * width;
        if (left_[row] == s_.lengths[sequence_[row]])
          CopyInitial(i, sequence_[row], to);
        else
          std::memcpy(to, before.Row(row), width * sizeof(T));
      }
    }
  }

  /* Asks for what a row reads or writes so many steps from now that is in no stream. */
  void Ask(int64_t row, int64_t steps) const {
    auto number = [&](const Numbers& numbers) { return numbers.now[row] + steps * numbers.stride; };
    if (!c_.sequences.empty() && c_.sequences[0].data) {
      const SequenceArray& array = c_.sequences[0];
      const Kind kind = KindOf(0);
      const int64_t at = c_.index ? c_.index[number(numbers_[kStepsFirst])] : number(numbers_[kind]);
      AskForRow<0, 2>(static_cast<T*>(array.data) + at * StrideOf(kind, array),
                      std::min(p_.sequence_widths[0], kMostAsked));
    }
    if (c_.stash && p_.stash_width)
      AskForRow<1, 2>(static_cast<T*>(c_.stash) + number(numbers_[kStashed]) * p_.stash_width,
                      std::min(p_.stash_width, kMostAsked));
  }


  const Shared<T>& s_;
  const RecurrenceCall& c_;
  std::atomic<int64_t>* next_;
  Numbers numbers_[kKinds];
  std::vector<int64_t> sequence_, left_;  // of each row: its number among the sorted ones, steps to go
  std::vector<T*> initial_, turns_[2], scratch_;
  int64_t count_ = 0, step_ = 0;
  bool is_entered_ = false;  // a sequence, since the last step
  int64_t asked_ = 0, part_ = 0;
};

}  // namespace graphopt::walks
