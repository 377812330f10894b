/*
 * Zeros behind the ends of sequences.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "ask.h"
#include "chunks.h"

namespace graphopt::walks {

/* Zeros behind the ends of sequences. Rows are cleared nearly in the order of memory: those that have ended
 * lie side by side in the end, but not those of a chunk. Threads take parts of the arrays. Rows are asked
 * for a while before they are cleared, or what is stored behind them waits for memory. */
template <typename T>
class Ends : public Errand {
 public:
  Ends(const Shared<T>& shared, std::atomic<int64_t>* parts) : s_(shared), c_(shared.call), parts_(parts) {
    if (c_.lengths && c_.steps > 0 && c_.batch > 0) array_ = c_.sequences.size();
  }

  /* Clears a row and asks for another, if there are any. */
  void Do() override {
    if (count_ == kAhead || (array_ < 0 && count_ > 0)) Clear();
    if (array_ >= 0) Look();
  }

  /* All that are left. */
  void Finish() {
    while (array_ >= 0 || count_ > 0) Do();
  }

 private:
  static constexpr int64_t kParts = 128;  // of each array
  static constexpr int64_t kAhead = 16;   // rows

  struct Row {
    T* at;
    int64_t width;
  };

  void Clear() {
    const Row row = asked_[(first_ + kAhead - count_) % kAhead];
    --count_;
    std::memset(row.at, 0, row.width * sizeof(T));
  }

  void Ask(const SequenceArray& array, int64_t time, int64_t row) {
    const Row found{static_cast<T*>(array.data) + time * array.step_stride + row * array.row_stride,
                    s_.weights.program.sequence_widths[array_]};
    AskForRow<1, 2>(found.at, found.width);
    asked_[first_++ % kAhead] = found;
    ++count_;
  }

  /* Asks for the next row, unless it is in another step, sequence or part: one of these. */
  void Look() {
    if (outer_ == end_ && !Take()) return;
    const SequenceArray& array = c_.sequences[array_];
    if (steps_first_ && inner_ > 0 && s_.lengths[inner_ - 1] <= outer_)
      return Ask(array, outer_, s_.order[--inner_]);
    if (!steps_first_ && inner_ < c_.steps) return Ask(array, inner_++, outer_);
    ++outer_;
    Begin();
  }

  /* The first row of a step, of the shortest sequence; or the first behind the end of a sequence. */
  void Begin() {
    if (outer_ < end_) inner_ = steps_first_ ? c_.batch : c_.lengths[outer_];
  }

  /* The next part; none of what is not written. */
  bool Take() {
    const int64_t arrays = c_.sequences.size(), part = parts_->fetch_add(1);
    array_ = part / kParts;
    if (array_ >= arrays) {
      array_ = -1;
      return false;
    }
    const SequenceArray& array = c_.sequences[array_];
    if (!array.data || !s_.weights.program.sequence_is_written[array_]) return false;
    steps_first_ = s_.HasStepsFirst(array);
    const int64_t all = steps_first_ ? c_.steps : c_.batch, number = part % kParts;
    outer_ = all * number / kParts;
    end_ = all * (number + 1) / kParts;
    Begin();
    return outer_ < end_;
  }

  const Shared<T>& s_;
  const RecurrenceCall& c_;
  std::atomic<int64_t>* parts_;
  Row asked_[kAhead];
  int64_t first_ = 0, count_ = 0;
  int64_t array_ = -1;  // that it is at; none: it is done
  int64_t outer_ = 0, end_ = 0, inner_ = 0;
  bool steps_first_ = false;
};

}  // namespace graphopt::walks
