/*
 * Zeros behind the ends of sequences.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "chunks.h"

namespace graphopt::walks {

/* Zeros behind the ends of sequences. Rows are cleared in the order of memory: those that have ended lie
 * side by side in the end, but not those of a chunk. Threads take parts of the arrays. */
template <typename T>
class Ends : public Errand {
 public:
  Ends(const Shared<T>& shared, std::atomic<int64_t>* parts) : s_(shared), c_(shared.call), parts_(parts) {
    if (c_.lengths && c_.steps > 0 && c_.batch > 0) array_ = c_.sequences.size();
  }

  /* Clears a row, if one is near and there is one. */
  void Do() override {
    for (int64_t looked_at = 0; array_ >= 0 && looked_at < kLook; ++looked_at)
      if (Look()) return;
  }

  /* All that are left. */
  void Finish() {
    while (array_ >= 0) Look();
  }

 private:
  static constexpr int64_t kParts = 128;  // of each array
  static constexpr int64_t kLook = 32;    // rows

  /* Goes on to the next row; whether it was cleared. */
  bool Look() {
    if (outer_ == end_ && !Take()) return false;
    const SequenceArray& array = c_.sequences[array_];
    const int64_t time = steps_first_ ? outer_ : inner_, row = steps_first_ ? inner_ : outer_;
    if (++inner_ == (steps_first_ ? c_.batch : c_.steps)) {
      inner_ = 0;
      ++outer_;
    }
    if (time < c_.lengths[row]) return false;
    std::memset(static_cast<T*>(array.data) + time * array.step_stride + row * array.row_stride, 0,
                s_.weights.program.sequence_widths[array_] * sizeof(T));
    return true;
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
    return outer_ < end_;
  }

  const Shared<T>& s_;
  const RecurrenceCall& c_;
  std::atomic<int64_t>* parts_;
  int64_t array_ = -1;  // that it is at; none: it is done
  int64_t outer_ = 0, end_ = 0, inner_ = 0;
  bool steps_first_ = false;
};

}  // namespace graphopt::walks
