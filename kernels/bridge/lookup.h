/*
 * Rows of a table that the steps of a recurrence read by number.
 *
 * What a step multiplies with its row is computed once for each row in use: that is the projected
 * table, which the recurrence reads instead. Backward sums the gradients of all steps by row, and
 * makes of these sums those of the table and of the matrices. Sums have one order, so that they do not
 * depend on the number of threads.
 */
#pragma once

#include <cstdint>
#include <vector>

#include "recurrence.h"

namespace graphopt {

/* A product that makes some columns of the projected table; see graphopt/kernels/recurrence/lookup.py. */
struct Factor {
  int64_t column;        // the first of them
  bool adds;             // to what the factor before made
  int64_t from, depth;   // columns of the table
  int64_t width;         // how many columns it makes
  int64_t matrix, row, matrix_column;
  bool transposed;       // the part of the matrix is width x depth, not depth x width
};

struct Projection {
  int64_t width = 0;  // columns of the projected table
  std::vector<Factor> factors;
};

/* Reads what Python wrote, and moves on behind it. */
Projection ReadProjection(const int64_t** numbers);

/* Which rows steps read. */
struct RowsInUse {
  std::vector<int32_t> rows;   // their numbers, ascending
  std::vector<int32_t> index;  // of each step and sequence, which of them; -1 behind an end

  int64_t count() const { return rows.size(); }
};

/* Counts rows in use; `numbers` (steps, batch) of rows of the table, -1 behind an end. */
RowsInUse FindRows(const std::vector<int32_t>& numbers, int64_t table_rows);

/* A table and what is learned of it. */
struct Table {
  const Projection& projection;
  const Learned& learned;
  const std::vector<int64_t>&matrix_columns;
  const void* data;
  int64_t columns;
  bool is_double;
  int threads;
};

/* projected[n] = the product with row rows[n], n < rows.count(). */
void Project(const Table& table, const RowsInUse& rows, void* projected);

/* Adds to the gradients of the table (null: not wanted) and of its matrices what `gradients`, a row of
 * the projected table's columns for each step and sequence, make of them; `sums` has room for a row for
 * each row in use. */
void AddGradients(const Table& table, const RowsInUse& rows, const void* gradients, void* sums,
                  void* table_gradient);

}  // namespace graphopt
