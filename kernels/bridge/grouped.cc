/*
 * Convolutions in groups narrower than a block, and their gradients, in training. A block has several groups: lanes of
 * the images are spread over their group, so that each filter meets its channels (Spread). Of groups of one channel there
 * is the gradient of filters only, for which oneDNN has images in columns where filters are larger than 3x3.
 */
#include <algorithm>

#include "execute.h"
#include "filtering.h"
#include "lanes_transpose.h"

namespace graphopt::blocked {
namespace {

constexpr int kSums = 8;                         // vectors that are summed up at a time, in registers

/* Output pixels whose tap lies within the images. */
struct Range {
  int64_t begin, end;
  Range(int64_t in, int64_t out, int64_t stride, int64_t shift)
      : begin(shift < 0 ? Ceil(-shift, stride) : 0), end(std::min(out, in > shift ? Ceil(in - shift, stride) : 0)) {}
};

int64_t TapsOf(const Step& step) { return step.kernel_y * step.kernel_x; }

/* Adds a pixel's products with each channel of its group. */
template <int W, int... J>
inline void AddPixel(const float* x, const float* dy, Lanes* sums, std::integer_sequence<int, J...>) {
  const Lanes given = LoadLanes(x), head = LoadLanes(dy);
  ((sums[J] += head * Spread<W, J>(given)), ...);
}

/* The gradient of a tap of a block's filters, over one image: [channel of the group][filter]. */
template <int W>
void SumTap(const float* x, const float* dy, const Step& step, int64_t down, int64_t across, float* to) {
  constexpr int kPixels = kSums / W;
  constexpr std::make_integer_sequence<int, W> channels{};
  const Range rows(step.in.height, step.out.height, step.stride_y, down - step.pad_y);
  const Range columns(step.in.width, step.out.width, step.stride_x, across - step.pad_x);
  const int64_t pixel = step.stride_x * kLanes;
  Lanes sums[kPixels][W] = {};
  for (int64_t y = rows.begin; y < rows.end; ++y) {
    const float* from = x + (y * step.stride_y + down - step.pad_y) * step.in.row_stride +
                        (columns.begin * step.stride_x + across - step.pad_x) * kLanes;
    const float* head = dy + y * step.out.row_stride + columns.begin * kLanes;
    int64_t left = columns.end - columns.begin;
    for (; left >= kPixels; left -= kPixels, from += kPixels * pixel, head += kPixels * kLanes)
#pragma GCC unroll 8
      for (int i = 0; i < kPixels; ++i) AddPixel<W>(from + i * pixel, head + i * kLanes, sums[i], channels);
    for (; left > 0; --left, from += pixel, head += kLanes) AddPixel<W>(from, head, sums[0], channels);
  }
  for (int j = 0; j < W; ++j) {
    Lanes sum = sums[0][j];
    for (int i = 1; i < kPixels; ++i) sum += sums[i][j];
    StoreLanes(to + j * kLanes, sum);
  }
}

template <int W>
void SumTaps(const float* x, const float* dy, const Step& step, float* to) {
  for (int64_t tap = 0; tap < TapsOf(step); ++tap)
    SumTap<W>(x, dy, step, tap / step.kernel_x, tap % step.kernel_x, to + tap * W * kLanes);
}

int64_t WidthOf(const Step& step) { return step.channels / step.groups; }
int64_t FloatsOfBlock(const Step& step) { return TapsOf(step) * WidthOf(step) * kLanes; }

/* A block of an image, with zeros around it, and the step that filters it. */
void FilterBlock(const Bound& bound, int64_t image, int64_t block) {
  static thread_local Arena kept;
  Step step = *bound.step;
  const View in = step.in;
  const int64_t halo = std::max(step.pad_y, step.pad_x), row = (in.width + 2 * halo) * kLanes;
  float* arena = reinterpret_cast<float*>(kept.Reserve((in.height + 2 * halo) * row * sizeof(float)));
  step.images = 1;
  step.channels = step.filters = kLanes;
  step.groups = kLanes / WidthOf(*bound.step);
  step.in = {halo * (row + kLanes), 0, 0, row, 1, in.height, in.width, halo};
  step.out.at = bound.arena + bound.step->out.Place(image, block, 0) - arena;
  step.out.blocks = 1;
  for (int64_t y = 0; y < in.height; ++y) {
    ClearHalo(step.in, arena, 0, 0, y);
    std::copy_n(bound.arena + in.Place(image, block, y), in.width * kLanes, arena + step.in.Place(0, 0, y));
  }
  const float* weights = bound.weights + block * FloatsOfBlock(*bound.step);
  const Bound mine{&step, arena, weights, bound.bias ? bound.bias + block * kLanes : nullptr, nullptr, nullptr, 0};
  for (int64_t task = 0; task < Tasks(step, 0); ++task) RunTask(mine, 0, task, nullptr, nullptr);
}

/* [tap][channel of the group][filter], of filters of `width` channels each; turned ones as in filtering.h. */
void PackBlock(const Filters& filters, const Step& step, int64_t block, float* to) {
  const int64_t width = WidthOf(step), taps = TapsOf(step);
  for (int64_t tap = 0; tap < taps; ++tap)
    for (int64_t j = 0; j < width; ++j)
      for (int64_t filter = block * kLanes; filter < (block + 1) * kLanes; ++filter) {
        const int64_t first = filter / width * width;
        *to++ = filters.is_turned ? filters.weights[((first + j) * width + filter - first) * taps + taps - 1 - tap]
                                  : filters.weights[(filter * width + j) * taps + tap];
      }
}

}  // namespace

int64_t GroupedFloats(const Step& step) { return step.out.blocks * FloatsOfBlock(step); }

int64_t GroupedTasks(const Step& step, int64_t phase) { return phase ? step.images * step.out.blocks : step.out.blocks; }

void GroupedTask(const Bound& bound, const Filters& filters, int64_t phase, int64_t task, float* packed) {
  const Step& step = *bound.step;
  if (phase == 0) return PackBlock(filters, step, task, packed + task * FloatsOfBlock(step));
  FilterBlock(bound, task / step.out.blocks, task % step.out.blocks);
}

int64_t GroupedGradientFloats(const Step& step) { return step.images * GroupedFloats(step); }

int64_t GroupedGradientTasks(const Step& step, int64_t phase) {
  return phase ? step.out.blocks : step.images * step.out.blocks;
}

void GroupedGradientTask(const Bound& bound, int64_t phase, int64_t task, float* gradient) {
  const Step& step = *bound.step;
  const int64_t width = WidthOf(step), floats = FloatsOfBlock(step), all = GroupedFloats(step);
  float* sums = bound.arena + step.scratch;
  if (phase == 0) {
    const int64_t image = task / step.out.blocks, block = task % step.out.blocks;
    const auto sum = width == 1 ? SumTaps<1> : width == 2 ? SumTaps<2> : width == 4 ? SumTaps<4> : SumTaps<8>;
    return sum(bound.arena + step.in.Place(image, block, 0), bound.arena + step.out.Place(image, block, 0), step,
               sums + image * all + block * floats);
  }
  for (int64_t at = 0; at < floats; ++at) {
    float sum = 0;
    for (int64_t image = 0; image < step.images; ++image) sum += sums[image * all + task * floats + at];
    const int64_t filter = task * kLanes + at % kLanes, j = at / kLanes % width, tap = at / kLanes / width;
    gradient[(filter * width + j) * TapsOf(step) + tap] = sum;
  }
}

}  // namespace graphopt::blocked
