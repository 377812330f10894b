/* Products of product.h by themselves, one task after the other, for tests to call. */
#include <vector>

#include "product.h"

using namespace graphopt::product;

/* Runs tasks last to first, as none may depend on another; returns how many there were. */
extern "C" int64_t run(const float* from, const float* weights, const float* bias, float* to,
                       int64_t rows, int64_t depth, int64_t units, int64_t threads,
                       int64_t activation) {
  std::vector<float> packed(PackedSize(depth, units));
  Pack(weights, depth, units, packed.data());
  const Plan plan = MakePlan(rows, depth, units, threads);
  Copied copied;
  for (int64_t task = plan.tasks() - 1; task >= 0; --task)
    RunTask(plan, {from, packed.data(), bias, to, activation}, task, &copied);
  return plan.tasks();
}

/* Rows of all three matrices lie `apart` floats farther from each other than they need to. */
extern "C" void multiply(const float* left, int64_t left_transposed, const float* right,
                         int64_t right_transposed, float* to, int64_t rows, int64_t depth,
                         int64_t units, int64_t apart, int64_t adds) {
  const Matrix first{left, (left_transposed ? rows : depth) + apart, left_transposed != 0};
  const Matrix second{right, (right_transposed ? depth : units) + apart, right_transposed != 0};
  Multiply(rows, depth, units, first, second, to, units + apart, adds != 0);
}
