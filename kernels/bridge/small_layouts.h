/*
 * Nodes of small graphs that compute nothing: joining arrays along an axis, cutting them, looking up rows.
 */
#pragma once

#include <algorithm>
#include <cstring>

#include "arrays.h"

namespace graphopt {

/* Parts of an array along an axis: of each of `outer` pieces some elements from `begin` on. */
struct Parts {
  int64_t outer = 1, begin = 0;

  /* `kToWhole`: from the parts to the whole, else from there. */
  template <bool kToWhole, typename Whole, typename Part>
  void Copy(const Whole& whole, const Part* parts, int64_t count) const {
    const int64_t item = ItemSize(whole.type_flag_), row = Bytes(whole) / outer;
    int64_t at = begin * item;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bytes = Bytes(parts[i]) / outer;
      for (int64_t piece = 0; piece < outer; ++piece) {
        char* there = static_cast<char*>(whole.dptr_) + piece * row + at;
        char* here = static_cast<char*>(parts[i].dptr_) + piece * bytes;
        std::memcpy(kToWhole ? there : here, kToWhole ? here : there, bytes);
      }
      at += bytes;
    }
  }
};

/* to += from, some numbers of a dtype that gradients have. */
inline void AddNumbers(int dtype, const char* from, int64_t count, char* to) {
  auto add = [count](auto* sum, auto* term) {
    for (int64_t i = 0; i < count; ++i) sum[i] += term[i];
  };
  if (dtype == mshadow::kFloat64)
    add(reinterpret_cast<double*>(to), reinterpret_cast<const double*>(from));
  else
    add(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from));
}

/* Row number `i` of what is looked up in `rows` rows; as in MXNet's Embedding the nearest one that there is. */
inline int64_t RowAt(const TBlob& numbers, int64_t i, int64_t rows) {
  int64_t row;
  switch (numbers.type_flag_) {
    case mshadow::kInt32: row = static_cast<const int32_t*>(numbers.dptr_)[i]; break;
    case mshadow::kInt64: row = static_cast<const int64_t*>(numbers.dptr_)[i]; break;
    default: {
      const double number = Read(static_cast<const char*>(numbers.dptr_), numbers.type_flag_, i);
      row = number >= 0 ? static_cast<int64_t>(std::min(number, static_cast<double>(rows))) : 0;
    }
  }
  return std::clamp<int64_t>(row, 0, rows - 1);
}

inline void LookUp(const TBlob& numbers, const TBlob& table, const TBlob& to) {
  const int64_t rows = table.shape_[0], bytes = Bytes(table) / rows, count = numbers.shape_.Size();
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(static_cast<char*>(to.dptr_) + i * bytes,
                static_cast<const char*>(table.dptr_) + RowAt(numbers, i, rows) * bytes, bytes);
}

/* Adds rows of a gradient to those of the table that were looked up. */
inline void AddLookedUp(const TBlob& numbers, const TBlob& gradient, const TBlob& table) {
  const int64_t rows = table.shape_[0], columns = table.shape_.Size() / rows, count = numbers.shape_.Size();
  const int64_t bytes = columns * ItemSize(table.type_flag_);
  for (int64_t i = 0; i < count; ++i)
    AddNumbers(table.type_flag_, static_cast<const char*>(gradient.dptr_) + i * bytes, columns,
               static_cast<char*>(table.dptr_) + RowAt(numbers, i, rows) * bytes);
}

}  // namespace graphopt
