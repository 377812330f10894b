/*
 * Lengths of sequences and numbers of rows, as a recurrence's inputs have them.
 */
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lookup.h"
#include "recurrence_shapes.h"

namespace graphopt {

/* Calls `read` with the elements of an array of whole numbers, whatever their type. */
template <typename Read>
void WithNumbers(const TBlob& blob, const std::string& node, const char* what, const Read& read) {
  switch (blob.type_flag_) {
    case mshadow::kFloat32: return read(static_cast<const float*>(blob.dptr_));
    case mshadow::kFloat64: return read(static_cast<const double*>(blob.dptr_));
    case mshadow::kInt32: return read(static_cast<const int32_t*>(blob.dptr_));
    case mshadow::kInt64: return read(static_cast<const int64_t*>(blob.dptr_));
    default: Fail("node " + node + ": " + what + " are float32, float64, int32 or int64");
  }
}

template <typename T>
void ReadLengths(const T* data, const std::string& node, int64_t steps,
                 std::vector<int64_t>* lengths) {
  for (size_t i = 0; i < lengths->size(); ++i) {
    double length = static_cast<double>(data[i]);
    if (!(length >= 0 && length <= steps) || length != std::floor(length))
      Fail((node.empty() ? std::string("recurrence") : "node " + node) + ": sequence " +
           std::to_string(i) + " has length " + std::to_string(length) +
           "; lengths are whole numbers from 0 to the number of steps, " + std::to_string(steps));
    (*lengths)[i] = static_cast<int64_t>(length);
  }
}

std::vector<int64_t> Lengths(const TBlob& blob, const std::string& node, const Extents& extents) {
  if (extents.steps * extents.batch > std::numeric_limits<int32_t>::max())
    Fail("node " + node + ": steps times sequences of different lengths are at most 2^31 - 1");
  std::vector<int64_t> lengths(extents.batch);
  WithNumbers(blob, node, "lengths",
              [&](auto data) { ReadLengths(data, node, extents.steps, &lengths); });
  return lengths;
}

/* Numbers of rows, (steps, batch), clipped to the table; -1 behind the end of a sequence. */
template <typename T>
void ReadNumbers(const T* data, bool batch_major, const Extents& extents,
                 const std::vector<int64_t>& lengths, std::vector<int32_t>* numbers) {
  for (int64_t t = 0; t < extents.steps; ++t)
    for (int64_t b = 0; b < extents.batch; ++b) {
      // As a double, which has every number of a row: float32 has none of some beyond 2^24.
      const double found = batch_major ? data[b * extents.steps + t] : data[t * extents.batch + b];
      const bool is_behind = !lengths.empty() && t >= lengths[b];
      // What is not a number is below 0 too.
      const int64_t number = !(found > 0)                    ? 0
                             : found >= extents.table_rows ? extents.table_rows - 1
                                                           : static_cast<int64_t>(found);
      numbers->push_back(static_cast<int32_t>(is_behind ? -1 : number));
    }
}

RowsInUse ReadRows(const NodeAttrs& attrs, const TBlob& blob, const Extents& extents,
                   const std::vector<int64_t>& lengths) {
  if (extents.table_rows < 1 || extents.table_rows > std::numeric_limits<int32_t>::max())
    Fail("node " + attrs.name + ": its table has " + std::to_string(extents.table_rows) +
         " rows; it needs 1 to 2147483647");
  const bool batch_major = Flag(attrs, "batch_major");
  std::vector<int32_t> numbers;
  numbers.reserve(extents.steps * extents.batch);
  WithNumbers(blob, attrs.name, "numbers of rows", [&](auto data) {
    ReadNumbers(data, batch_major, extents, lengths, &numbers);
  });
  return FindRows(numbers, extents.table_rows);
}

}  // namespace graphopt
