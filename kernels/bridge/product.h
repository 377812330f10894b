/*
 * Products of rows with a constant matrix, as dense layers compute them.
 *
 * The matrix is packed once, into parts of its depth and in these into panels as wide as a tile. A
 * task copies a part of some rows, which then stays in the second-level cache, as does the panel
 * that is in use. What follows the product (a bias, an activation) is computed on the tile while it
 * is near.
 */
#pragma once

#include <cstdint>

namespace graphopt::product {

enum Activation : int64_t { kNone = 0, kRelu = 1, kGelu = 2 };

/* to = activation(from times the matrix + bias), added to what is there if so. */
struct Operands {
  const float* from;    // rows x depth
  const float* packed;  // see Pack; a matrix that is read where it lies, if the plan has a stride for it
  const float* bias;    // of each unit, or null
  float* to;            // rows x units
  int64_t activation;
  bool adds = false;
};

/* How a product is shared among threads: by teams of panels and chunks of rows, in any order. */
struct Plan {
  int64_t rows, depth, units;
  int64_t from_stride, to_stride;  // floats from row to row; MakePlan has them adjoin
  int64_t panels, team, teams;    // panels of a team
  int64_t strips, chunk, chunks;  // strips of a chunk; a strip is the rows of a tile
  bool turns = false;             // what it multiplies has a row for each number of the depth
  bool copies = true;             // rows, before they are multiplied
  int64_t right_stride = 0;       // floats from row to row of a matrix that is read where it lies

  int64_t tasks() const { return teams * chunks; }
  int64_t RowOf(int64_t strip) const { return rows * strip / strips; }
};

/* Rows that a thread has copied for a product: parts of a chunk's depth. One for each product. */
struct Copied {
  int64_t chunk = -1, parts = 0;
};

Plan MakePlan(int64_t rows, int64_t depth, int64_t units, int64_t threads);
void RunTask(const Plan& plan, const Operands& operands, int64_t task, Copied* copied);

/* Units of a panel; what has no more is packed row by row, in whole vectors. */
int64_t PanelWidth();

/* Floats of a packed matrix, and packing it from (units, depth). */
int64_t PackedSize(int64_t depth, int64_t units);
void Pack(const float* weights, int64_t depth, int64_t units, float* packed);

/* A matrix whose rows are adjacent numbers, or its columns if it is transposed. */
struct Matrix {
  const float* at;
  int64_t stride;  // floats from one of them to the next
  bool is_transposed;
};

/* Packing a matrix by tasks, in any order. */
int64_t PackTasks(const Matrix& matrix, int64_t depth, int64_t units);
void PackTask(const Matrix& matrix, int64_t depth, int64_t units, int64_t task, float* packed);

/* Memory of this thread for a packed matrix, until it asks again. */
float* PackedRoom(int64_t depth, int64_t units);

/* All of a matrix, and a product with it as it was packed. */
void PackMatrix(const Matrix& matrix, int64_t depth, int64_t units, float* packed);
void MultiplyPacked(int64_t rows, int64_t depth, int64_t units, const Matrix& left, const float* packed,
                    float* to, int64_t to_stride, bool adds);

/* to = activation(left times right + bias), or is added to it; neither is packed yet. */
struct Problem {
  int64_t rows, depth, units;
  Matrix left, right;
  const float* bias;  // of each unit, or null
  Activation activation;
  bool adds;
  float* to;
  int64_t to_stride;
};

/* Packs what is worth it. The same sums by any number of threads. */
void Compute(const Problem& problem, int threads);

/* to = left (rows x depth) times right (depth x units), or is added to it; by this thread alone. */
void Multiply(int64_t rows, int64_t depth, int64_t units, const Matrix& left, const Matrix& right,
              float* to, int64_t to_stride, bool adds);

}  // namespace graphopt::product
