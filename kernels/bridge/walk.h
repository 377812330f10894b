/*
 * A chunk's way through the steps of a recurrence.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "turns.h"

namespace graphopt::walks {

/* One chunk on its way through the steps; forward, all of its sequences are equally long (else see slots.h). */
template <typename T>
class Walk : public InTurns<T, Walk<T>> {
  using Base = Executor<T, Walk<T>>;
  using Turns = InTurns<T, Walk<T>>;
  using Turns::live_, Turns::p_, Base::partial_;
  friend Base;

 public:
  /* Before it runs, `buffers` have to be given a place. */
  Walk(const Shared<T>& shared, Buffers<T>* buffers)
      : Turns(shared.weights, buffers), s_(shared), c_(shared.call) {
    Want(buffers);
  }

  /* Rows `first` to `first + count` of the sorted batch; gradients are added to `partial`. */
  void Run(int64_t first, int64_t count, T* partial) {
    first_ = first;
    count_ = count;
    partial_ = partial;
    int64_t steps = s_.lengths[first];
    Begin();
    if (p_.backward) {
      for (step_ = steps; step_-- > 0;) {
        One();
        if (step_ == 0 || ++kept_ == s_.ring) Finish();
      }
    } else {
      for (step_ = 0; step_ < steps; ++step_) {
        if (s_.block > 1 && step_ % s_.block == 0) Early(std::min(step_ + s_.block, steps));
        One();
        if (++kept_ == s_.ring) kept_ = 0;
      }
    }
    End();
  }

  /* The same of a forward program in turns with another walk; see turns.h. */
  void Start(int64_t first, int64_t count) {
    first_ = first;
    count_ = count;
    step_ = 0;
    steps_ = s_.lengths[first];
    Begin();
    if (IsOver()) End();
  }

  bool IsOver() const { return step_ == steps_; }

  void BeginStep() {
    live_ = Live(step_);
    Ahead();
  }

  /* Brings a part of what the next step reads or writes near while products keep the processor busy. */
  void Fetch() {
    FetchRows();
    char* end = std::min(end_, ahead_ + part_);
    if (p_.backward)
      for (; ahead_ < end; ahead_ += kLine) AskFor<0, 2>(ahead_);
    else
      for (; ahead_ < end; ahead_ += kLine) AskFor<1, 2>(ahead_);
  }

  void EndStep() {
    ++step_;
    if (IsOver()) End();
  }

 private:
  void Want(Buffers<T>* buffers) {
    int64_t rows = s_.rows_per_chunk;
    auto want = [&](std::vector<T*>* group, size_t count) { group->assign(count, nullptr); };
    size_t n_states = p_.states.size();
    want(&initial_, n_states);
    want(&turns_[0], n_states);
    want(&turns_[1], n_states);
    want(&carry_[0], n_states);
    want(&carry_[1], n_states);
    want(&scratch_, p_.scratch_widths.size());
    want(&rings_, p_.ring_widths.size());
    for (size_t i = 0; i < n_states; ++i) {
      int64_t size = rows * p_.states[i].width;
      buffers->Want(&initial_[i], size);
      for (int turn = 0; turn < 2; ++turn) {
        if (p_.states[i].home == kPingPong && !p_.backward) buffers->Want(&turns_[turn][i], size);
        if (p_.backward) buffers->Want(&carry_[turn][i], size);
      }
    }
    for (size_t i = 0; i < scratch_.size(); ++i)
      buffers->Want(&scratch_[i], s_.block * rows * p_.scratch_widths[i]);
    for (size_t i = 0; i < rings_.size(); ++i)
      if (!s_.ring_is_whole[i]) buffers->Want(&rings_[i], s_.ring * rows * p_.ring_widths[i]);
    late_.resize(p_.steps.size());
    for (const Step& step : p_.steps)
      for (const Spot& spot : step.spots)
        reads_by_number_ |= c_.index && spot.place == kSequence && spot.index == 0;
  }

  int64_t Live(int64_t step) const {
    if (!c_.lengths) return step < c_.steps ? count_ : 0;
    int64_t live = count_;
    while (live > 0 && s_.lengths[first_ + live - 1] <= step) --live;
    return live;
  }

  int64_t Time(int64_t row, int64_t step) const {
    return c_.reverse ? s_.lengths[first_ + row] - 1 - step : step;
  }

  void CopyRows(const void* from, T* to, int64_t width) {
    for (int64_t r = 0; r < count_; ++r)
      if (from)
        std::memcpy(to + r * width, static_cast<const T*>(from) + s_.order[first_ + r] * width,
                    width * sizeof(T));
      else
        std::memset(to + r * width, 0, width * sizeof(T));
  }

  void Begin() {
    kept_ = 0;
    for (size_t i = 0; i < p_.states.size(); ++i) {
      int64_t width = p_.states[i].width;
      if (!p_.backward) {
        CopyRows(c_.first[i], initial_[i], width);
        continue;
      }
      CopyRows(c_.initial[i], initial_[i], width);
      for (auto& carry : carry_) CopyRows(c_.first[i], carry[i], width);
    }
  }

  void End() {
    for (size_t i = 0; i < p_.states.size(); ++i) {
      if (!c_.last[i]) continue;
      const int64_t width = p_.states[i].width;
      Located<T> from{initial_[i], width};
      if (p_.backward)
        from.at = carry_[0][i];
      else if (c_.steps > 0)
        from = StateAfter(i, c_.steps - 1, 0);
      for (int64_t r = 0; r < count_; ++r)
        std::memcpy(static_cast<T*>(c_.last[i]) + s_.order[first_ + r] * width, from.Row(r),
                    width * sizeof(T));
    }
  }

  T* RingSlot(T* base, int64_t width) { return base + kept_ * s_.rows_per_chunk * width; }

  bool IsByNumber(size_t i) const { return i == 0 && c_.index; }

  Located<T> SequenceAt(int64_t i, int64_t step, int64_t offset) {
    const SequenceArray& array = c_.sequences[i];
    if (!array.data) return {nullptr, 0};
    if (IsByNumber(i))
      return {static_cast<T*>(array.data) + offset, array.row_stride,
              s_.index.data() + step * c_.batch + first_};
    if (c_.lengths) {
      const bool steps_first = s_.HasStepsFirst(array);
      const auto& numbers = steps_first ? s_.steps_first : s_.batch_first;
      return {static_cast<T*>(array.data) + offset,
              steps_first ? array.row_stride : array.step_stride,
              numbers.data() + step * c_.batch + first_};
    }
    return {static_cast<T*>(array.data) + Time(0, step) * array.step_stride +
                first_ * array.row_stride + offset,
            array.row_stride};
  }

  Located<T> StashAt(int64_t step, int64_t offset) {
    const int64_t unit = StashUnit(), before = offset / unit * unit;
    return {static_cast<T*>(c_.stash) + step * c_.batch * p_.stash_width + before * c_.batch + first_ * unit +
                offset - before,
            unit};
  }

  /* Slots have their own idea of where values lie, and long rows are read faster where those of a step are
   * one stream. */
  int64_t StashUnit() const {
    return c_.lengths || p_.stash_unit >= kShortRow ? p_.stash_width : p_.stash_unit;
  }

  Located<T> StateAfter(int64_t i, int64_t step, int64_t offset) {
    const StateOf& state = p_.states[i];
    if (state.home == kFixed) return {initial_[i] + offset, state.width};
    if (state.home == kInStash) return StashAt(step, state.offset + offset);
    if (state.home == kInSequence) return SequenceAt(state.index, step, state.offset + offset);
    return {turns_[step & 1][i] + offset, state.width};
  }

  Located<T> NextState(int64_t i, int64_t offset) { return StateAfter(i, step_, offset); }

  Located<T> Locate(const Spot& spot) {
    int64_t i = spot.index, offset = spot.offset;
    switch (spot.place) {
      case kSequence: return SequenceAt(i, step_, offset);
      case kPrevious:
        if (step_ == 0) return {initial_[i] + offset, p_.states[i].width};
        return StateAfter(i, step_ - 1, offset);
      case kNext: return NextState(i, offset);
      case kStash: return StashAt(step_, offset);
      case kScratch: {
        int64_t width = p_.scratch_widths[i], slot = s_.block > 1 ? step_ % s_.block : 0;
        return {scratch_[i] + slot * s_.rows_per_chunk * width + offset, width};
      }
      case kRing: {
        const int64_t width = p_.ring_widths[i];
        if (s_.ring_is_whole[i]) return {s_.whole_rings[i] + first_ * width + offset, width};
        return {RingSlot(rings_[i], width) + offset, width};
      }
      case kVector:
      case kVectorSum: return Base::VectorAt(spot);
      case kCarryIn: return {carry_[(step_ + 1) & 1][i] + offset, p_.states[i].width};
      default: return {carry_[step_ & 1][i] + offset, p_.states[i].width};
    }
  }

  /* Products with sequences for the steps up to `end`: weights are read once for all of them. */
  void Early(int64_t end) {
    int64_t now = step_;
    for (const Step& step : p_.steps) {
      if (!step.early) continue;
      blocks_.clear();
      for (step_ = now; step_ < end; ++step_) {
        Located<T> to = Locate(step.spots[0]), from = Locate(step.spots[1]);
        blocks_.push_back(
            {from.at, from.stride, to.at, to.stride, Live(step_), from.index, to.index});
      }
      Multiply(blocks_, step, step.adds);
    }
    step_ = now;
  }

  void One() {
    live_ = Live(step_);
    Ahead();
    for (size_t n = 0; n < p_.steps.size();) {
      const Step& step = p_.steps[n];
      int64_t count = 1;
      if (step.late && s_.is_large && !c_.lengths)
        Postpone(step, n);
      else if (step.code == kProduct && step.alike > 1 && (!s_.is_large || c_.lengths))
        Base::MultiplyAlike(n, count = step.alike);
      else if (!step.early || s_.block == 1)
        Base::Execute(step, n, count = s_.adds_up ? step.together : 1);
      for (n += count; count > 0; --count) Fetch();
    }
  }

  /* Finds out which rows by number and what of the stash the next step reads or writes. */
  void Ahead() {
    int64_t next = p_.backward ? step_ - 1 : step_ + 1;
    numbers_ = end_of_numbers_ = nullptr;
    if (reads_by_number_ && next >= 0 && next < s_.lengths[first_]) {
      rows_ = SequenceAt(0, next, 0);
      numbers_ = rows_.index;
      end_of_numbers_ = numbers_ ? numbers_ + Live(next) : nullptr;
    }
    if (next < 0 || next >= s_.lengths[first_] || !c_.stash || !p_.stash_width) {
      ahead_ = end_ = nullptr;
      return;
    }
    ahead_ = reinterpret_cast<char*>(StashAt(next, 0).at);
    end_ = ahead_ + Live(next) * StashUnit() * sizeof(T);
    part_ = (end_ - ahead_) / p_.steps.size() + kLine;
  }

  /* Rows by number, which are in no stream. */
  void FetchRows() {
    if (numbers_ == end_of_numbers_) return;
    const int64_t steps = p_.steps.size(), part = (live_ + steps - 1) / steps;
    const int32_t* end = std::min(end_of_numbers_, numbers_ + part);
    for (; numbers_ < end; ++numbers_)
      AskForRow<0, 2>(rows_.at + *numbers_ * rows_.stride, p_.sequence_widths[0]);
  }

  void Multiply(const std::vector<Rows<T>>& blocks, const Step& step, bool adds) {
    const PackedMatrix<T> packed{s_.weights.packs[step.which], step.depth};
    s_.weights.products.multiply(blocks.data(), blocks.size(), &packed, 1, step.width, adds, nullptr);
  }

  void Postpone(const Step& step, size_t number) {
    Located<T> to = Locate(step.spots[0]), from = Locate(step.spots[1]);
    if (to.at) late_[number].push_back(
        {from.at, from.stride, to.at, to.stride, live_, from.index, to.index});
  }

  /* What was put off until enough steps are there. */
  void Finish() {
    Base::Flush();
    for (size_t n = 0; n < p_.steps.size(); ++n) {
      if (late_[n].empty()) continue;
      Multiply(late_[n], p_.steps[n], false);
      late_[n].clear();
    }
    kept_ = 0;
  }

  const Shared<T>& s_;
  const RecurrenceCall& c_;
  std::vector<T*> initial_, turns_[2], carry_[2], scratch_, rings_;
  std::vector<std::vector<Rows<T>>> late_;
  std::vector<Rows<T>> blocks_;
  int64_t first_ = 0, count_ = 0, step_ = 0, steps_ = 0, kept_ = 0;
  char *ahead_ = nullptr, *end_ = nullptr;
  bool reads_by_number_ = false;
  const int32_t *numbers_ = nullptr, *end_of_numbers_ = nullptr;
  Located<T> rows_{};
  int64_t part_ = 0;
};

}  // namespace graphopt::walks
