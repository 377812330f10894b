/*
 * What a thread computes while its matrix unit is busy: the kernel of other rows, some columns at a time.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace graphopt {

using KernelFunction = int (*)(void* result, void** exception, const int64_t* pointers,
                               const int64_t* strides, int64_t rows, int64_t length,
                               int64_t scratch);

/* A part of a kernel for some columns of a row, from `length` on; see graphopt/kernels/stages.py. */
struct Stage {
  KernelFunction function;
  std::vector<int64_t> operands;  // which of the kernel's; behind these, rows that values wait in
};

struct Stages {
  int64_t rows = 0;        // that values wait in
  std::vector<Stage> all;  // one after the other; none: it does not come apart
};

/* Something else that wants memory rather than vectors, a little at a time. */
class Errand {
 public:
  virtual void Do() = 0;

 protected:
  ~Errand() = default;
};

/* One call of a kernel in pieces. A piece is kPiece columns of a row; the last one of a row begins where
 * it ends with the row, so columns may be computed twice.
 *
 * What is to be called is written down before. Between multiplications each branch that is foreseen wrongly
 * and each instruction that is not theirs delays the next of them. */
class Meanwhile {
 public:
  static constexpr int64_t kPiece = 16;  // TOGETHER in graphopt/kernels/emit/cpu.py

  /* Operands as kernels over numbered rows have them: row r of operand i is at pointers[i] +
   * (index ? index[r] : r) * strides[i] * sizeof(float), the address of index at pointers[count + i].
   * `width` is at least kPiece; `waiting` has room for rows of it. */
  void Take(const Stages& stages, const std::vector<int64_t>& pointers,
            const std::vector<int64_t>& strides, float* waiting, int64_t rows, int64_t width,
            Errand* errand) {
    errand_ = errand;
    if (&stages != stages_ || width != width_ || rows > rows_) Write(stages, rows, width);
    Locate(pointers, strides, waiting, rows);
    next_ = script_.data();
    end_ = next_ + rows * calls_per_row_;
  }

  /* The next stage of a piece, if there is one. */
  void Do() {
    if (next_ == end_) return;
    char result[16];
    void* exception = nullptr;
    next_->function(result, &exception, operands_.data() + next_->operands, nullptr, 1, next_->column,
                    0);
    ++next_;
  }

  /* Between blocks of products. */
  void RunErrand() { errand_->Do(); }

  /* Ends the row that was begun, and with it the pieces; how many rows are done. */
  int64_t Settle() {
    while ((next_ - script_.data()) % calls_per_row_ != 0) Do();
    const int64_t done = (next_ - script_.data()) / calls_per_row_;
    next_ = end_;
    return done;
  }

 private:
  /* A stage of a piece: where its operands begin among all, and its first column. */
  struct Call {
    KernelFunction function;
    int32_t operands, column;
  };

  void Write(const Stages& stages, int64_t rows, int64_t width) {
    stages_ = &stages;
    rows_ = rows;
    width_ = width;
    script_.clear();
    places_.clear();
    for (const Stage& stage : stages.all)
      places_.insert(places_.end(), stage.operands.begin(), stage.operands.end());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t piece = 0; piece < width; piece += kPiece) {
        int64_t operands = row * places_.size();
        for (const Stage& stage : stages.all) {
          script_.push_back({stage.function, static_cast<int32_t>(operands),
                             static_cast<int32_t>(std::min(piece, width - kPiece))});
          operands += stage.operands.size();
        }
      }
    calls_per_row_ = (width + kPiece - 1) / kPiece * stages.all.size();
  }

  /* Finds the parts of all rows, as each stage wants them. */
  void Locate(const std::vector<int64_t>& pointers, const std::vector<int64_t>& strides,
              float* waiting, int64_t rows) {
    const int64_t count = pointers.size() / 2, size = places_.size();
    auto bytes = [&](int64_t place) { return strides[place] * static_cast<int64_t>(sizeof(float)); };
    auto index = [&](int64_t place) {
      return reinterpret_cast<const int32_t*>(pointers[count + place]);
    };
    operands_.resize(std::max<int64_t>(rows, 1) * size);
    steps_.resize(size);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = places_[i];
      const bool is_kept = place >= count;
      steps_[i] = is_kept ? 0 : bytes(place);
      operands_[i] = is_kept ? reinterpret_cast<int64_t>(waiting + (place - count) * width_)
                             : pointers[place];
    }
    int64_t* to = operands_.data();
    for (int64_t row = 1; row < rows; ++row, to += size)
      for (int64_t i = 0; i < size; ++i) to[size + i] = to[i] + steps_[i];
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = places_[i];
      if (place >= count || !index(place)) continue;
      for (int64_t row = 0; row < rows; ++row)
        operands_[row * size + i] = pointers[place] + index(place)[row] * steps_[i];
    }
  }

  const Stages* stages_ = nullptr;
  Errand* errand_ = nullptr;
  int64_t rows_ = 0, width_ = 0, calls_per_row_ = 1;
  std::vector<Call> script_;
  // Of all stages: which of the kernel's; bytes between their rows. Of all rows: where they are.
  std::vector<int64_t> places_, steps_, operands_;
  const Call *next_ = nullptr, *end_ = nullptr;
};

}  // namespace graphopt
