/*
 * What a thread computes while its matrix unit is busy: the kernel of other rows, some columns at a time.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace graphopt {

/* One call of a kernel in pieces. A piece is kPiece columns of a row; the last one of a row begins where
 * it ends with the row, so columns may be computed twice. */
class Meanwhile {
 public:
  static constexpr int64_t kPiece = 16;  // TOGETHER in graphopt/kernels/emit/cpu.py

  /* Computes columns from `first` on of the row whose parts are at `pointers`. */
  using Function = int (*)(void* result, void** exception, const int64_t* pointers,
                           const int64_t* strides, int64_t rows, int64_t first, int64_t scratch);

  /* Operands as kernels over numbered rows have them, where they stay until it is settled: row r of
   * operand i is at pointers[i] + (index ? index[r] : r) * strides[i] * sizeof(float), the address of
   * index at pointers[count + i]. `width` is at least kPiece. */
  void Take(Function function, const std::vector<int64_t>& pointers,
            const std::vector<int64_t>& strides, int64_t rows, int64_t width) {
    function_ = function;
    pointers_ = pointers.data();
    strides_ = strides.data();
    at_.resize(pointers.size() / 2);
    rows_ = rows;
    width_ = width;
    row_ = column_ = 0;
    if (rows_ > 0) Locate();
  }

  /* The next piece, if there is one. */
  void Do() {
    if (row_ == rows_) return;
    char result[16];
    void* exception = nullptr;
    function_(result, &exception, at_.data(), nullptr, 1, column_, 0);
    if (column_ + kPiece < width_) {
      column_ = std::min(column_ + kPiece, width_ - kPiece);
      return;
    }
    column_ = 0;
    if (++row_ < rows_) Locate();
  }

  /* Ends the row that was begun, and with it the pieces; how many rows are done. */
  int64_t Settle() {
    while (column_ > 0) Do();
    const int64_t done = row_;
    row_ = rows_;
    return done;
  }

 private:
  void Locate() {
    const size_t count = at_.size();
    for (size_t i = 0; i < count; ++i) {
      auto index = reinterpret_cast<const int32_t*>(pointers_[count + i]);
      const int64_t row = index ? index[row_] : row_;
      at_[i] = pointers_[i] + row * strides_[i] * static_cast<int64_t>(sizeof(float));
    }
  }

  Function function_ = nullptr;
  const int64_t *pointers_ = nullptr, *strides_ = nullptr;
  std::vector<int64_t> at_;
  int64_t rows_ = 0, width_ = 0, row_ = 0, column_ = 0;
};

}  // namespace graphopt
