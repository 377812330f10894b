/*
 * Many products that need nothing of each other, shared among threads.
 */
#pragma once

#include <algorithm>
#include <atomic>

#include "arrays.h"
#include "product.h"
#include "slim.h"

namespace graphopt {

/* By the faster way for its extents. */
inline void MultiplyOne(int64_t rows, int64_t depth, int64_t units, const product::Matrix& left,
                        const product::Matrix& right, float* to, int64_t to_stride, bool adds) {
  (slim::Fits(rows, units) ? slim::Multiply : product::Multiply)(rows, depth, units, left, right, to,
                                                                        to_stride, adds);
}

/* `body(product)` for each, by threads that take some at once: to take one can last as long as a small one. */
template <class Body>
void EachProduct(double nanoseconds, int64_t products, const Body& body) {
  constexpr double kNanosecondsAtOnce = 5000;
  const int threads = Threads(nanoseconds * products, products);
  const int64_t most = std::max<int64_t>(products / (8 * threads), 1);
  const int64_t at_once = std::clamp<int64_t>(kNanosecondsAtOnce / std::max(nanoseconds, 1.0), 1, most);
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t i; (i = next.fetch_add(at_once, std::memory_order_relaxed)) < products;)
    for (int64_t last = std::min(i + at_once, products); i < last; ++i) body(i);
}

}  // namespace graphopt
