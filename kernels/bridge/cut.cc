/* Columns of a convolution; see cut.h. Compiled for the processor at hand. */
#include "cut.h"

#include <cstring>

#include "lanes.h"

namespace graphopt::cut {
namespace {

using blocked::kLanes;
using blocked::Lanes;
using blocked::LoadLanes;
using blocked::StoreLanes;

static_assert(kLanes <= kSlack);

/* Adds so many numbers as are a vector, or less where there are no more. What is beside them is not touched: a load that
 * meets half of a store waits for it. */
template <int kBytes>
void AddVector(const float*& from, float*& to, int64_t& left) {
  typedef float Vector __attribute__((vector_size(kBytes)));
  constexpr int64_t kCount = kBytes / sizeof(float);
  for (; left >= kCount; left -= kCount, from += kCount, to += kCount) {
    Vector sum, added;
    std::memcpy(&sum, to, sizeof(sum));
    std::memcpy(&added, from, sizeof(added));
    sum += added;
    std::memcpy(to, &sum, sizeof(sum));
  }
}

}  // namespace

void Copy(const float* planes, const float* end, const Run* runs, int64_t count, const int64_t* taps, int64_t depth,
          float* to, int64_t stride) {
  for (int64_t tap = 0; tap < depth; ++tap, to += stride)
    for (const Run* run = runs; run < runs + count; ++run) {
      const float* from = planes + run->from + taps[tap];
      float* at = to + run->at;
      if (end - from < run->count + kLanes) {
        std::memcpy(at, from, run->count * sizeof(float));
        continue;
      }
      for (int64_t i = 0; i < run->count; i += kLanes) StoreLanes(at + i, LoadLanes(from + i));
    }
}

void AddTo(const float* from, int64_t count, float* to) {
  AddVector<blocked::kBlockBytes>(from, to, count);
  if constexpr (blocked::kBlockBytes > 32) AddVector<32>(from, to, count);
  if constexpr (blocked::kBlockBytes > 16) AddVector<16>(from, to, count);
  for (; count > 0; --count) *to++ += *from++;
}

void Add(const float* columns, int64_t stride, const Run* runs, int64_t count, const int64_t* taps, int64_t depth,
         float* planes) {
  for (int64_t tap = 0; tap < depth; ++tap, columns += stride)
    for (const Run* run = runs; run < runs + count; ++run)
      AddTo(columns + run->at, run->count, planes + run->from + taps[tap]);
}

}  // namespace graphopt::cut
