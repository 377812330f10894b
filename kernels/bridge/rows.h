/* Programs without states on rows that lie one behind the other. */
#pragma once

#include "ask.h"
#include "execute.h"

namespace graphopt {

/* Sequences from `begin` to `end` that are zero, as nothing reached them; nobody wants the gradients
 * of these, which are `gradients` further. */
struct Bare {
  int64_t begin = 0, end = 0, gradients = int64_t{1} << 32;

  bool Has(int64_t sequence) const { return sequence >= begin && sequence < end; }
  bool HasGradient(int64_t sequence) const { return Has(sequence - gradients); }
};

template <typename T>
class RowProgram : public Executor<T, RowProgram<T>> {
  using Base = Executor<T, RowProgram<T>>;
  using Base::live_, Base::p_, Base::partial_;
  friend Base;

 public:
  std::vector<Located<T>> sequences;  // of row 0
  Located<T> stash{nullptr, 0};       // of row 0

  /* At most `rows` rows, and as many in all until Flush(). */
  RowProgram(const Prepared<T>& prepared, int64_t rows, Buffers<T>* buffers)
      : Base(prepared, buffers),
        sequences(p_.sequence_widths.size(), Located<T>{nullptr, 0}),
        scratch_(p_.scratch_widths.size()),
        rings_(p_.ring_widths.size()),
        uses_(sequences.size(), false),
        is_skipped_(p_.steps.size(), false) {
    for (size_t i = 0; i < scratch_.size(); ++i)
      buffers->Want(&scratch_[i], rows * p_.scratch_widths[i]);
    for (size_t i = 0; i < rings_.size(); ++i)
      buffers->Want(&rings_[i], rows * p_.ring_widths[i]);
    for (int64_t width : p_.sequence_widths) widest_ = std::max(widest_, width);
    buffers->Want(&zeros_, widest_);
    for (const Step& step : p_.steps)
      for (const Spot& spot : step.spots)
        if (spot.place == kSequence) uses_[spot.index] = true;
  }

  /* Whether the program reads or writes a sequence. */
  bool Uses(size_t sequence) const { return uses_[sequence]; }

  /* If all that is done to a sequence is to copy another one to it: that one, and it is not copied any
   * more. Else -1. */
  int64_t SkipCopy(int64_t sequence) {
    const Step* copy = nullptr;
    for (const Step& step : p_.steps)
      for (size_t i = 0; i < step.spots.size(); ++i) {
        if (step.spots[i].place != kSequence || step.spots[i].index != sequence) continue;
        if (copy || step.code != kCopy || i != 0 || step.width != p_.sequence_widths[sequence])
          return -1;
        copy = &step;
      }
    if (!copy) return -1;
    const Spot& from = copy->spots[1];
    if (from.place != kSequence || from.offset != 0 || p_.sequence_is_written[from.index] ||
        p_.sequence_widths[from.index] != copy->width)
      return -1;
    is_skipped_[copy - p_.steps.data()] = true;
    return from.index;
  }

  /* Gradients are added to `partial` from now on. */
  void Begin(T* partial) {
    partial_ = partial;
    std::memset(zeros_, 0, widest_ * sizeof(T));
  }

  /* Rows `first` to `first + rows` of sequences and stash; `ring`: of what is kept for Flush(). */
  void Run(int64_t first, int64_t rows, int64_t ring, const Bare& bare = {}) {
    first_ = first;
    ring_ = ring;
    live_ = rows;
    bare_ = bare;
    for (size_t n = 0; n < p_.steps.size(); ++n) {
      const Step& step = p_.steps[n];
      if (is_skipped_[n]) continue;
      if (bare.begin == bare.end || !SkipBare(step)) Base::Execute(step, n);
    }
  }

 private:
  Located<T> Locate(const Spot& spot) {
    int64_t i = spot.index;
    switch (spot.place) {
      case kSequence:
        if (bare_.Has(i)) return {zeros_ + spot.offset, 0};
        if (bare_.HasGradient(i)) return {nullptr, 0};
        return At(sequences[i], first_, spot.offset);
      case kStash: return At(stash, first_, spot.offset);
      case kScratch: return {scratch_[i] + spot.offset, p_.scratch_widths[i]};
      case kRing: return At({rings_[i], p_.ring_widths[i]}, ring_, spot.offset);
      default: return Base::VectorAt(spot);
    }
  }

  static Located<T> At(const Located<T>& base, int64_t row, int64_t offset) {
    if (!base.at) return base;
    if (base.index) return {base.at + offset, base.stride, base.index + row};
    return {base.at + row * base.stride + offset, base.stride};
  }

  bool IsBare(const Spot& spot) const { return spot.place == kSequence && bare_.Has(spot.index); }

  /* Products with zeros. */
  bool SkipBare(const Step& step) {
    if (step.code == kOuter) return IsBare(step.spots[0]) || IsBare(step.spots[1]);
    if (step.code != kProduct || !IsBare(step.spots[1])) return false;
    if (!step.adds) {
      Located<T> to = Locate(step.spots[0]);
      for (int64_t r = 0; r < live_; ++r) std::memset(to.Row(r), 0, step.width * sizeof(T));
    }
    return true;
  }

  std::vector<T*> scratch_, rings_;
  std::vector<bool> uses_, is_skipped_;
  T* zeros_ = nullptr;
  int64_t widest_ = 1, first_ = 0, ring_ = 0;
  Bare bare_;
};

template <typename T>
void CopyRow(T* to, const T* from, int64_t width) {
  std::memcpy(to, from, width * sizeof(T));
}

template <typename T>
void AddRow(T* to, const T* from, int64_t width) {
  for (int64_t j = 0; j < width; ++j) to[j] += from[j];
}

/* The largest of two, as MXNet's maximum: what is not a number wins. */
template <typename T>
void MaxRow(T* to, const T* from, int64_t width) {
  for (int64_t j = 0; j < width; ++j) to[j] = to[j] >= from[j] || to[j] != to[j] ? to[j] : from[j];
}

}  // namespace graphopt
