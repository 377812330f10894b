/*
 * See align.h. Images are brought to pixels of all channels once, so that a sample is four of these, weighted.
 */
#include "align.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lanes_transpose.h"

namespace graphopt::align {
namespace {

/* A pixel between four of an image. */
struct Sample {
  int64_t at[4];
  float weights[4];
};

/* Of one axis: the two pixels around a place, and the weight of the second one; whether it is in the image. */
bool Around(float place, int64_t size, int64_t* low, int64_t* high, float* weight) {
  if (!(place >= -1.0f && place <= static_cast<float>(size))) return false;
  const float inside = std::max(place, 0.0f);
  *low = static_cast<int64_t>(inside);
  const bool is_last = *low >= size - 1;
  if (is_last) *low = size - 1;
  *high = is_last ? *low : *low + 1;
  *weight = is_last ? 0.0f : inside - *low;
  return true;
}


/* A box on an image: where it begins, the size of a bin, and its samples. */
struct Grid {
  float y, x, bin_y, bin_x;
  int64_t down, across;

  Grid(const Pooling& pooling, const float* corners) {
    const auto place = [&](int i) { return corners[i] * pooling.scale - pooling.offset; };
    x = place(0), y = place(1);
    float width = place(2) - x, height = place(3) - y;
    if (pooling.offset == 0) width = std::max(width, 1.0f), height = std::max(height, 1.0f);
    bin_y = height / pooling.down, bin_x = width / pooling.across;
    const bool is_set = pooling.samples > 0;
    down = is_set ? pooling.samples : static_cast<int64_t>(std::ceil(bin_y));
    across = is_set ? pooling.samples : static_cast<int64_t>(std::ceil(bin_x));
  }
};

/* The samples of a bin that are in the image. */
void SamplesOf(const Pooling& pooling, const Grid& grid, int64_t bin, std::vector<Sample>* samples) {
  samples->clear();
  const float top = grid.y + bin / pooling.across * grid.bin_y, left = grid.x + bin % pooling.across * grid.bin_x;
  for (int64_t i = 0; i < grid.down; ++i)
    for (int64_t j = 0; j < grid.across; ++j) {
      int64_t y[2], x[2];
      float down, across;
      const float at_y = top + (i + 0.5f) * grid.bin_y / grid.down;
      const float at_x = left + (j + 0.5f) * grid.bin_x / grid.across;
      if (!Around(at_y, pooling.height, &y[0], &y[1], &down) || !Around(at_x, pooling.width, &x[0], &x[1], &across))
        continue;
      const auto place = [&](int a, int b) { return (y[a] * pooling.width + x[b]) * pooling.channels; };
      samples->push_back({{place(0, 0), place(0, 1), place(1, 0), place(1, 1)},
                          {(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across}});
    }
}

/* Bins of a box, (bins, channels), from an image of pixels of all channels. */
void AlignBox(const Pooling& pooling, const float* image, const float* corners, std::vector<Sample>* samples,
              float* bins) {
  const Grid grid(pooling, corners);
  const float count = static_cast<float>(grid.down * grid.across);
  for (int64_t bin = 0; bin < pooling.Bins(); ++bin, bins += pooling.channels) {
    SamplesOf(pooling, grid, bin, samples);
    std::fill(bins, bins + pooling.channels, 0.0f);
    for (const Sample& sample : *samples) {
      const float *a = image + sample.at[0], *b = image + sample.at[1], *c = image + sample.at[2],
                  *d = image + sample.at[3];
      const float *w = sample.weights;
#pragma omp simd
      for (int64_t i = 0; i < pooling.channels; ++i) bins[i] += w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < pooling.channels; ++i) bins[i] /= count;
  }
}

/* Images, (images, channels, places), as pixels of all channels. */
std::vector<float> AsPixels(const float* from, int64_t images, int64_t channels, int64_t places, int threads) {
  constexpr int64_t kPlaces = 256;  // of a task
  std::vector<float> to(images * channels * places);
  const int64_t parts = (places + kPlaces - 1) / kPlaces;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < images * parts; ++task) {
    const int64_t image = task / parts * channels * places, first = task % parts * kPlaces;
    blocked::Transpose(from + image + first, places, channels, std::min(kPlaces, places - first),
                       to.data() + image + first * channels, channels);
  }
  return to;
}

}  // namespace

void PoolBoxes(const Pooling& pooling, const float* images, int64_t count, const float* boxes, int64_t boxes_count,
               int threads, float* to) {
  const int64_t places = pooling.height * pooling.width;
  const std::vector<float> pixels = AsPixels(images, count, pooling.channels, places, threads);
  const int64_t each = pooling.channels * pooling.Bins();
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<float> bins(each);
    std::vector<Sample> samples;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < boxes_count; ++i) {
      const float* corners = boxes + i * kColumns + 1;
      const float image = corners[-1];
      if (!(image >= 0 && image < count)) {
        std::fill_n(to + i * each, each, 0.0f);  // nobody's
        continue;
      }
      AlignBox(pooling, pixels.data() + static_cast<int64_t>(image) * places * pooling.channels, corners, &samples,
               bins.data());
      blocked::Transpose(bins.data(), pooling.channels, pooling.Bins(), pooling.channels, to + i * each, pooling.Bins());
    }
  }
}

}  // namespace graphopt::align
