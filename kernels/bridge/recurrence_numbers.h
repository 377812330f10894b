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

template <typename T>
void ReadLengths(const TBlob& blob, const std::string& node, int64_t steps,
                 std::vector<int64_t>* lengths) {
  auto data = static_cast<const T*>(blob.dptr_);
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
  switch (blob.type_flag_) {
    case mshadow::kFloat32: ReadLengths<float>(blob, node, extents.steps, &lengths); break;
    case mshadow::kFloat64: ReadLengths<double>(blob, node, extents.steps, &lengths); break;
    case mshadow::kInt32: ReadLengths<int32_t>(blob, node, extents.steps, &lengths); break;
    case mshadow::kInt64: ReadLengths<int64_t>(blob, node, extents.steps, &lengths); break;
    default: Fail("node " + node + ": lengths are float32, float64, int32 or int64");
  }
  return lengths;
}

/* Numbers of rows, (steps, batch), clipped to the table; -1 behind the end of a sequence. */
template <typename T>
void ReadNumbers(const TBlob& blob, bool batch_major, const Extents& extents,
                 const std::vector<int64_t>& lengths, std::vector<int32_t>* numbers) {
  auto data = static_cast<const T*>(blob.dptr_);
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
  switch (blob.type_flag_) {
    case mshadow::kFloat32:
      ReadNumbers<float>(blob, batch_major, extents, lengths, &numbers);
      break;
    case mshadow::kFloat64:
      ReadNumbers<double>(blob, batch_major, extents, lengths, &numbers);
      break;
    case mshadow::kInt32:
      ReadNumbers<int32_t>(blob, batch_major, extents, lengths, &numbers);
      break;
    case mshadow::kInt64:
      ReadNumbers<int64_t>(blob, batch_major, extents, lengths, &numbers);
      break;
    default:
      Fail("node " + attrs.name + ": numbers of rows are float32, float64, int32 or int64");
  }
  return FindRows(numbers, extents.table_rows);
}

}  // namespace graphopt
