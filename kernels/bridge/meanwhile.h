/*
 * What a thread computes while its matrix unit is busy, the kernel of other rows, some columns at a time;
 * or while its vectors are, an errand that wants memory.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace graphopt {

using KernelFunction = void (*)(const int64_t* pointers, const int64_t* strides, int64_t rows,
                                int64_t length, int64_t scratch);

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

  /* No kernel, but an errand. */
  void TakeNone(Errand* errand) { errand_ = errand; }

  /* The next stage of a piece, if there is one. */
  void Do() {
    if (next_ == end_) return;
    next_->function(operands_.data() + next_->operands, nullptr, 1, next_->column, 0);
    ++next_;
  }

  /* How often the product that begins will call Do. */
  void Expect(int64_t times) { are_many_ = end_ - next_ > times; }

  /* The same, where that is less than there are stages. */
  void DoMore() {
    if (are_many_) Do();
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
    const int64_t size = RowSize();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t piece = 0; piece < width; piece += kPiece) {
        int64_t operands = row * size;
        for (const Stage& stage : stages.all) {
          script_.push_back({stage.function, static_cast<int32_t>(operands),
                             static_cast<int32_t>(std::min(piece, width - kPiece))});
          operands += stage.operands.size();
        }
      }
    calls_per_row_ = (width + kPiece - 1) / kPiece * stages.all.size();
  }

  using Four = int64_t __attribute__((vector_size(32), aligned(8)));

  /* Operands of a row; a few more than there are, to be written four at a time. */
  int64_t RowSize() const { return (static_cast<int64_t>(places_.size()) + 3) / 4 * 4; }

  /* Finds the parts of all rows, as each stage wants them. */
  void Locate(const std::vector<int64_t>& pointers, const std::vector<int64_t>& strides,
              float* waiting, int64_t rows) {
    const int64_t count = pointers.size() / 2, size = RowSize();
    operands_.resize(std::max<int64_t>(rows, 1) * size);
    first_.assign(size, 0);
    steps_.assign(size, 0);
    for (size_t i = 0; i < places_.size(); ++i) {
      const int64_t place = places_[i];
      const bool is_kept = place >= count;
      steps_[i] = is_kept ? 0 : strides[place] * static_cast<int64_t>(sizeof(float));
      first_[i] = is_kept ? reinterpret_cast<int64_t>(waiting + (place - count) * width_)
                          : pointers[place];
    }
    for (int64_t i = 0; i < size; i += 4) {
      Four at, step;
      std::memcpy(&at, &first_[i], sizeof(at));
      std::memcpy(&step, &steps_[i], sizeof(step));
      for (int64_t row = 0; row < rows; ++row, at += step)
        std::memcpy(&operands_[row * size + i], &at, sizeof(at));
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i] >= count || !pointers[count + places_[i]]) continue;
      const auto index = reinterpret_cast<const int32_t*>(pointers[count + places_[i]]);
      for (int64_t row = 0; row < rows; ++row)
        operands_[row * size + i] = first_[i] + index[row] * steps_[i];
    }
  }

  const Stages* stages_ = nullptr;
  Errand* errand_ = nullptr;
  int64_t rows_ = 0, width_ = 0, calls_per_row_ = 1;
  std::vector<Call> script_;
  // Of all stages: which of the kernel's, where their first rows are, bytes between rows. Of all rows:
  // where they are.
  std::vector<int64_t> places_, first_, steps_, operands_;
  const Call *next_ = nullptr, *end_ = nullptr;
  bool are_many_ = false;
};

}  // namespace graphopt
