/* Products of product.h by themselves, one task after the other, for tests to call. */
#include <vector>

#include "product.h"

using namespace graphopt::product;

/* Tasks that were run; -1 where one would wait for another that is begun no sooner. */
extern "C" int64_t run(const float* from, const float* weights, const float* bias, float* to,
                       int64_t rows, int64_t depth, int64_t units, int64_t threads,
                       int64_t activation) {
  std::vector<float> packed(PackedSize(depth, units));
  Pack(weights, depth, units, packed.data());
  const Plan plan = MakePlan(rows, depth, units, threads);
  for (int64_t task = 0; task < plan.tasks(); ++task) {
    if (plan.before(task) >= task) return -1;
    RunTask(plan, {from, packed.data(), bias, to, activation}, task);
  }
  return plan.tasks();
}
