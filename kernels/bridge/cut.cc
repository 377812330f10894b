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

typedef int32_t Whole __attribute__((vector_size(blocked::kBlockBytes)));
static_assert(kLanes <= kSlack);

Whole Numbered() {
  Whole found;
  for (int32_t i = 0; i < kLanes; ++i) found[i] = i;
  return found;
}

/* The first lanes, zero in the others. */
Lanes First(const Lanes& lanes, const Whole& numbered, int32_t count) {
  Whole bits;
  std::memcpy(&bits, &lanes, sizeof(bits));
  bits &= numbered < count;
  Lanes found;
  std::memcpy(&found, &bits, sizeof(found));
  return found;
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

void Add(const float* columns, int64_t stride, const Run* runs, int64_t count, const int64_t* taps, int64_t depth,
         float* planes) {
  const Whole numbered = Numbered();
  for (int64_t tap = 0; tap < depth; ++tap, columns += stride)
    for (const Run* run = runs; run < runs + count; ++run) {
      const float* from = columns + run->at;
      float* to = planes + run->from + taps[tap];
      int64_t i = 0;
      for (; i + kLanes <= run->count; i += kLanes) StoreLanes(to + i, LoadLanes(to + i) + LoadLanes(from + i));
      if (i < run->count)
        StoreLanes(to + i, LoadLanes(to + i) + First(LoadLanes(from + i), numbered, static_cast<int32_t>(run->count - i)));
    }
}

}  // namespace graphopt::cut
