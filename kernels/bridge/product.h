/*
 * Products of rows with a constant matrix, as dense layers compute them.
 *
 * The matrix is packed once, into panels as wide as a tile (see matrix.cc). So that the part of it that
 * is in use stays in the second-level cache, a product is cut along its depth and its columns, and
 * all rows go by before the next part comes. What follows the product (a bias, an activation) is
 * computed on the tile while it is in registers.
 */
#pragma once

#include <cstdint>

namespace graphopt::product {

enum Activation : int64_t { kNone = 0, kRelu = 1, kGelu = 2 };

/* to = activation(from times the matrix + bias); rows are adjacent. */
struct Operands {
  const float* from;    // rows x depth
  const float* packed;  // see Pack
  const float* bias;    // of each unit, or null
  float* to;            // rows x units
  int64_t activation;
};

/*
 * How a product is shared among threads: by teams of panels, parts of its depth, and chunks of rows.
 * Tasks are to be begun in their order. A task adds to what the task `before` it wrote, which must be
 * done by then: the same rows and columns, the part of the depth before.
 */
struct Plan {
  int64_t rows, depth, units;
  int64_t panels, team, teams;    // panels of a team
  int64_t part, parts;            // depth of a part
  int64_t strips, chunk, chunks;  // strips of a chunk; a strip is the rows of a tile

  int64_t tasks() const { return teams * parts * chunks; }
  int64_t before(int64_t task) const {
    return task / chunks % parts == 0 ? -1 : task - chunks;
  }
};

Plan MakePlan(int64_t rows, int64_t depth, int64_t units, int64_t threads);
void RunTask(const Plan& plan, const Operands& operands, int64_t task);

/* Floats of a packed matrix, and packing it from (units, depth). */
int64_t PackedSize(int64_t depth, int64_t units);
void Pack(const float* weights, int64_t depth, int64_t units, float* packed);

}  // namespace graphopt::product
