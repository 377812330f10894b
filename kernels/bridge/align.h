/*
 * Boxes of images, pooled bin by bin, as by MXNet's ROIAlign (He et al., Mask R-CNN, 2017), with vectors across
 * channels.
 */
#pragma once

#include <cstdint>

namespace graphopt::align {

constexpr int64_t kColumns = 5;  // of a box: the number of its image, and two corners

/* Bins of boxes; corners are multiplied by `scale` and moved back by `offset`. */
struct Pooling {
  int64_t channels, height, width;  // of an image
  int64_t down, across;             // bins
  float scale, offset;
  int64_t samples;  // of a bin in each direction; not positive: as many as it has pixels

  int64_t Bins() const { return down * across; }
};

/*
 * Pools boxes from images, (images, channels, height, width), to (boxes, channels, down, across). Those of an image
 * that is not there become zeros.
 */
void PoolBoxes(const Pooling& pooling, const float* images, int64_t count, const float* boxes, int64_t boxes_count,
               int threads, float* to);

}  // namespace graphopt::align
