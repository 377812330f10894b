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
 * it ends with the row, so columns may be computed twice. */
class Meanwhile {
 public:
  static constexpr int64_t kPiece = 16;  // TOGETHER in graphopt/kernels/emit/cpu.py

  /* Operands as kernels over numbered rows have them, where they stay until it is settled: row r of
   * operand i is at pointers[i] + (index ? index[r] : r) * strides[i] * sizeof(float), the address of
   * index at pointers[count + i]. `width` is at least kPiece; `waiting` has room for rows of it. The
   * errand has a turn with every row. */
  void Take(const Stages& stages, const std::vector<int64_t>& pointers,
            const std::vector<int64_t>& strides, float* waiting, int64_t rows, int64_t width,
            Errand* errand) {
    stages_ = &stages;
    errand_ = errand;
    pointers_ = pointers.data();
    strides_ = strides.data();
    count_ = pointers.size() / 2;
    rows_ = rows;
    width_ = width;
    row_ = column_ = 0;
    places_.resize(count_ + stages.rows);
    for (int64_t i = 0; i < stages.rows; ++i)
      places_[count_ + i] = reinterpret_cast<int64_t>(waiting + i * width);
    Arrange();
    if (rows_ > 0) Locate();
  }

  /* The next stage of a piece, if there is one. */
  void Do() {
    if (row_ == rows_) return;
    char result[16];
    void* exception = nullptr;
    next_->function(result, &exception, next_->operands, nullptr, 1, column_, 0);
    if (++next_ == end_) Advance();
  }

  /* Ends the row that was begun, and with it the pieces; how many rows are done. */
  int64_t Settle() {
    while (row_ < rows_ && (column_ > 0 || next_ != parts_.data())) Do();
    const int64_t done = row_;
    row_ = rows_;
    return done;
  }

 private:
  /* A stage of the row that is computed. */
  struct Part {
    KernelFunction function;
    const int64_t* operands;
  };

  void Arrange() {
    size_t size = 0;
    for (const Stage& stage : stages_->all) size += stage.operands.size();
    operands_.resize(size);
    parts_.clear();
    const int64_t* at = operands_.data();
    for (const Stage& stage : stages_->all) {
      parts_.push_back({stage.function, at});
      at += stage.operands.size();
    }
    next_ = parts_.data();
    end_ = next_ + parts_.size();
  }

  /* To the next piece. */
  __attribute__((noinline)) void Advance() {
    next_ = parts_.data();
    if (column_ + kPiece < width_) {
      column_ = std::min(column_ + kPiece, width_ - kPiece);
      Ask();
      return;
    }
    column_ = 0;
    errand_->Do();
    if (++row_ < rows_) Locate();
  }

  /* For the columns behind the piece: while the unit reads matrices, a load from the level-2 cache takes
   * long. */
  void Ask() {
    const int64_t next = (column_ + kPiece) * static_cast<int64_t>(sizeof(float));
    for (int64_t at : operands_) __builtin_prefetch(reinterpret_cast<const char*>(at + next), 0, 3);
  }

  /* Finds the parts of a row, as each stage wants them. */
  void Locate() {
    for (size_t i = 0; i < count_; ++i) {
      auto index = reinterpret_cast<const int32_t*>(pointers_[count_ + i]);
      const int64_t row = index ? index[row_] : row_;
      places_[i] = pointers_[i] + row * strides_[i] * static_cast<int64_t>(sizeof(float));
    }
    int64_t* to = operands_.data();
    for (const Stage& stage : stages_->all)
      for (int64_t operand : stage.operands) *to++ = places_[operand];
  }

  const Stages* stages_ = nullptr;
  Errand* errand_ = nullptr;
  const int64_t *pointers_ = nullptr, *strides_ = nullptr;
  size_t count_ = 0;
  std::vector<int64_t> places_, operands_;  // of the kernel; of all stages
  std::vector<Part> parts_;
  const Part *next_ = nullptr, *end_ = nullptr;
  int64_t rows_ = 0, width_ = 0, row_ = 0, column_ = 0;
};

}  // namespace graphopt
