/*
 * Steps over blocked images other than full convolutions, and what a step consists of.
 */
#include "activations.h"
#include "lanes_transpose.h"

#include <algorithm>
#include <limits>

namespace graphopt::blocked {

int64_t PackedDirect(const Step& step);
int64_t PackDirectTasks(const Step& step);
void PackDirectTask(const Step& step, int64_t task, const float* weights, float* packed);
void PairDirectTask(const Step& step, float* packed);
int64_t PackedWinograd(const Step& step);
int64_t PackWinogradTasks(const Step& step);
void PackWinogradTask(const Step& step, int64_t task, const float* weights, float* packed);
void PairWinogradTask(const Step& step, int64_t point, float* packed);

namespace {

constexpr int64_t kTaskPixels = 2048;  // of a block, that a task is worth
constexpr int64_t kFewestTasks = 8;    // fewer are shared badly

/* A plain image is (images, channels, height, width). */
void Load(const Bound& bound, int64_t image, int64_t block, int64_t y, const float* from) {
  const Step& step = *bound.step;
  const View& out = step.out;
  const int64_t first = block * kLanes, plane = out.height * out.width;
  const int64_t many = std::min(kLanes, step.channels - first);
  const float* row = from + (image * step.channels + first) * plane + y * out.width;
  float* to = bound.arena + out.Place(image, block, y);
  ClearHalo(out, bound.arena, image, block, y);
  for (int64_t x = 0; x < out.width; ++x, to += kLanes) {
    for (int64_t lane = 0; lane < many; ++lane) to[lane] = row[lane * plane + x];
    for (int64_t lane = many; lane < kLanes; ++lane) to[lane] = 0;
  }
}

void LoadPlanar(const Bound& bound, int64_t image, int64_t channel, int64_t y, const float* from) {
  const Step& step = *bound.step;
  const View& out = step.out;
  const float* row = from + ((image * step.channels + channel) * out.height + y) * out.width;
  const float shift = bound.bias ? bound.bias[channel] : 0.0f;
  const int64_t before = y == 0 ? out.halo : 0, behind = y == out.height - 1 ? out.halo : 0;
  for (int64_t at = y - before; at <= y + behind; ++at) {
    float* to = bound.arena + out.Place(image, channel, at);
    std::fill(to - out.halo, to, 0.0f);
    if (at == y && bound.weights)
      for (int64_t x = 0; x < out.width; ++x) to[x] = row[x] * bound.weights[channel] + shift;
    else if (at == y)
      std::copy(row, row + out.width, to);
    else
      std::fill(to, to + out.width, 0.0f);
    std::fill(to + out.width, to + out.width + out.halo, 0.0f);
  }
}

void Store(const Bound& bound, int64_t image, int64_t block, int64_t y, float* to) {
  const Step& step = *bound.step;
  const View& in = step.in;
  const int64_t first = block * kLanes, plane = in.height * in.width;
  const int64_t many = std::min(kLanes, step.channels - first);
  float* row = to + (image * step.channels + first) * plane + y * in.width;
  const float* from = bound.arena + in.Place(image, block, y);
  for (int64_t lane = 0; lane < many; ++lane)
    for (int64_t x = 0; x < in.width; ++x) row[lane * plane + x] = from[x * kLanes + lane];
}

constexpr int kStrip = 8;  // pixels of a row that are computed at a time

/* Channels of a group that is narrower than a block, or 1. */
int64_t WidthOf(const Step& step) { return step.kind == kDepthwise ? step.channels / step.groups : 1; }

/* A tap of P pixels: each channel of a group, times what filters make of it. */
template <int W, int P, int... J>
inline void AddTap(const float* in, int64_t pixel, const float* weights, Lanes (&sum)[P],
                   std::integer_sequence<int, J...>) {
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const Lanes x = LoadLanes(in + p * pixel);
    ((sum[p] += Spread<W, J>(x) * LoadLanes(weights + J * kLanes)), ...);
  }
}

template <int W, int P>
void DepthwiseStrip(const Bound& bound, const float* in, const float* weights, const Lanes& bias,
                    const Lanes& slope, const float* other, float* to) {
  const Step& step = *bound.step;
  Lanes sum[P];
  for (int p = 0; p < P; ++p) sum[p] = bias;
  for (int64_t y = 0; y < step.kernel_y; ++y)
    for (int64_t x = 0; x < step.kernel_x; ++x, weights += W * kLanes)
      AddTap<W, P>(in + y * step.dilation_y * step.in.row_stride + x * step.dilation_x * kLanes,
                   step.stride_x * kLanes, weights, sum, std::make_integer_sequence<int, W>{});
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    if (other) sum[p] += LoadLanes(other + p * kLanes);
    StoreLanes(to + p * kLanes, Activated(step, sum[p], slope));
  }
}

template <int W>
void Depthwise(const Bound& bound, int64_t image, int64_t block, int64_t y) {
  const Step& step = *bound.step;
  const Lanes zero = {};
  const Lanes bias = bound.bias ? LoadLanes(bound.bias + block * kLanes) : zero;
  const Lanes slope = SlopeOf(step, bound.slopes, block);
  const float* weights = bound.weights + block * W * kLanes * step.kernel_y * step.kernel_x;
  const float* in = bound.arena + step.in.Place(image, block, y * step.stride_y - step.pad_y) -
                    step.pad_x * kLanes;
  float* to = bound.arena + step.out.Place(image, block, y);
  const float* other =
      step.has_other ? bound.arena + step.other.Place(image, block, y) : nullptr;
  ClearHalo(step.out, bound.arena, image, block, y);
  int64_t x = 0;
  auto at = [&](const float* row, int64_t pixels) { return row ? row + pixels * kLanes : nullptr; };
  for (; x + kStrip <= step.out.width; x += kStrip)
    DepthwiseStrip<W, kStrip>(bound, at(in, x * step.stride_x), weights, bias, slope, at(other, x),
                              to + x * kLanes);
  for (; x < step.out.width; ++x)
    DepthwiseStrip<W, 1>(bound, at(in, x * step.stride_x), weights, bias, slope, at(other, x),
                         to + x * kLanes);
}

void Depthwise(const Bound& bound, int64_t image, int64_t block, int64_t y) {
  switch (WidthOf(*bound.step)) {
    case 1: return Depthwise<1>(bound, image, block, y);
    case 2: return Depthwise<2>(bound, image, block, y);
    case 4: return Depthwise<4>(bound, image, block, y);
    default: return Depthwise<8>(bound, image, block, y);
  }
}

void PoolRow(const Bound& bound, int64_t image, int64_t block, int64_t y) {
  const Step& step = *bound.step;
  const View& in = step.in;
  const float* from = bound.arena + in.Place(image, block, 0);
  float* to = bound.arena + step.out.Place(image, block, y);
  ClearHalo(step.out, bound.arena, image, block, y);
  const int64_t top = y * step.stride_y - step.pad_y;
  const int64_t y0 = std::max<int64_t>(top, 0), y1 = std::min(top + step.kernel_y, in.height);
  // As in MXNet, padding counts as far as the padded image goes.
  const int64_t padded_y = std::min(top + step.kernel_y, in.height + step.pad_y) - top;
  const Lanes zero = {}, slope = SlopeOf(step, bound.slopes, block);
  for (int64_t x = 0; x < step.out.width; ++x, to += kLanes) {
    const int64_t left = x * step.stride_x - step.pad_x;
    const int64_t x0 = std::max<int64_t>(left, 0), x1 = std::min(left + step.kernel_x, in.width);
    const int64_t padded_x = std::min(left + step.kernel_x, in.width + step.pad_x) - left;
    Lanes found = step.is_average ? zero : zero - std::numeric_limits<float>::max();
    for (int64_t row = y0; row < y1; ++row)
      for (int64_t column = x0; column < x1; ++column) {
        const Lanes value = LoadLanes(from + row * in.row_stride + column * kLanes);
        if (step.is_average)
          found += value;
        else
          found = value > found ? value : found;  // as MXNet's, which passes over NaN
      }
    if (step.is_average) {
      const int64_t counted =
          step.counts_padding ? padded_y * padded_x : (y1 - y0) * (x1 - x0);
      // Nothing is averaged where a window has no pixels.
      found = found / (zero + static_cast<float>(std::max<int64_t>(1, counted)));
    }
    StoreLanes(to, Activated(step, found, slope));
  }
}

void Combine(const Bound& bound, int64_t image, int64_t block, int64_t y) {
  const Step& step = *bound.step;
  const bool is_gate = step.combination == kGate, has_other = step.has_other && !is_gate;
  const float* in = bound.arena + step.in.Place(image, block, y);
  const float* other = step.has_other ? bound.arena + step.other.Place(image, block, is_gate ? 0 : y) : nullptr;
  float* to = bound.arena + step.out.Place(image, block, y);
  const Lanes slope = SlopeOf(step, bound.slopes, block);
  const Lanes gate = is_gate ? LoadLanes(other) : Lanes{};
  ClearHalo(step.out, bound.arena, image, block, y);
  for (int64_t i = 0; i < step.out.width * kLanes; i += kLanes) {
    Lanes value = LoadLanes(in + i);
    if (is_gate) value *= gate;
    if (has_other && step.combination == kSum) value += LoadLanes(other + i);
    if (has_other && step.combination == kProduct) value *= LoadLanes(other + i);
    StoreLanes(to + i, Activated(step, value, slope));
  }
}

void Stretch(const Bound& bound, int64_t image, int64_t block, int64_t y) {
  const Step& step = *bound.step;
  const float* in = bound.arena + step.in.Place(image, block, y / step.stride_y);
  float* to = bound.arena + step.out.Place(image, block, y);
  ClearHalo(step.out, bound.arena, image, block, y);
  for (int64_t x = 0; x < step.in.width; ++x) {
    const Lanes value = LoadLanes(in + x * kLanes);
    for (int64_t i = 0; i < step.stride_x; ++i, to += kLanes) StoreLanes(to, value);
  }
}

/* Each pixel reads channels of its own: blocks lie [vertical place][horizontal place][filters]. */
void Shuffle(const Bound& bound, int64_t image, int64_t block, int64_t y) {
  const Step& step = *bound.step;
  const int64_t across = step.stride_x, first = y % step.stride_y * across;
  const Lanes zero = {}, slope = SlopeOf(step, bound.slopes, block);
  const Lanes bias = bound.bias ? LoadLanes(bound.bias + block * kLanes) : zero;
  const int64_t filters = FiltersOf(step, block), alike = step.in.blocks / (step.stride_y * across);
  float* to = bound.arena + step.out.Place(image, block, y);
  ClearHalo(step.out, bound.arena, image, block, y);
  for (int64_t at = 0; at < across; ++at) {
    const float* from = bound.arena + step.in.Place(image, (first + at) * alike + block, y / step.stride_y);
    for (int64_t x = at; x < step.out.width; x += across, from += kLanes) {
      const Lanes value = Activated(step, LoadLanes(from) + bias, slope);
      StoreLanes(to + x * kLanes, filters < kLanes ? Kept(value, filters) : value);
    }
  }
}

/* The image whose rows are the items of a step. */
const View& Walked(const Step& step) { return step.kind == kStore ? step.in : step.out; }

int64_t Items(const Step& step) {
  return step.images * Walked(step).blocks * Walked(step).height;
}

/* Items that make a task. */
int64_t Several(const Step& step) {
  int64_t cost = Walked(step).width;
  if (step.kind == kDepthwise) cost *= WidthOf(step) * step.kernel_y * step.kernel_x;
  if (step.kind == kPool) cost *= 2 * step.kernel_y * step.kernel_x;
  const int64_t wanted = Ceil(Items(step), kFewestTasks);
  return std::clamp<int64_t>(kTaskPixels / std::max<int64_t>(1, cost), 1, wanted);
}

}  // namespace

int64_t BlockLanes() { return kLanes; }

int64_t Phases(const Step& step) {
  return step.kind == kWinograd ? WinogradPhases(step) : 1;
}

int64_t Tasks(const Step& step, int64_t phase) {
  if (step.kind == kWinograd) return WinogradTasks(step, phase);
  if (step.kind == kDirect) return step.is_paired ? PairedTasks(step) : DirectTasks(step);
  return Ceil(Items(step), Several(step));
}

void RunTask(const Bound& bound, int64_t phase, int64_t task, const float* from, float* to) {
  const Step& step = *bound.step;
  if (step.kind == kWinograd) return WinogradTask(bound, phase, task);
  if (step.kind == kDirect) return step.is_paired ? PairedTask(bound, task) : DirectTask(bound, task);
  const int64_t several = Several(step), all = Items(step);
  const View& walked = Walked(step);
  for (int64_t item = task * several; item < std::min(all, (task + 1) * several); ++item) {
    const int64_t y = item % walked.height, block = item / walked.height % walked.blocks;
    const int64_t image = item / walked.height / walked.blocks;
    switch (step.kind) {
      case kLoad: Load(bound, image, block, y, from); break;
      case kLoadPlanar: LoadPlanar(bound, image, block, y, from); break;
      case kDepthwise: Depthwise(bound, image, block, y); break;
      case kPool: PoolRow(bound, image, block, y); break;
      case kCombine: Combine(bound, image, block, y); break;
      case kStretch: Stretch(bound, image, block, y); break;
      case kShuffle: Shuffle(bound, image, block, y); break;
      default: Store(bound, image, block, y, to);
    }
  }
}

int64_t PackedWeights(const Step& step) {
  if (step.kind == kWinograd) return PackedWinograd(step);
  if (step.kind == kDirect) return PackedDirect(step);
  return Ceil(step.channels, kLanes) * kLanes * WidthOf(step) * step.kernel_y * step.kernel_x;
}

int64_t PackTasks(const Step& step) {
  if (step.kind == kWinograd) return PackWinogradTasks(step);
  return step.kind == kDirect ? PackDirectTasks(step) : Ceil(step.channels, kLanes);
}

void PackTask(const Step& step, int64_t task, const float* weights, float* packed) {
  if (step.kind == kWinograd) return PackWinogradTask(step, task, weights, packed);
  if (step.kind == kDirect) return PackDirectTask(step, task, weights, packed);
  const int64_t taps = step.kernel_y * step.kernel_x, width = WidthOf(step);
  float* to = packed + task * taps * width * kLanes;  // depthwise: [block][tap][of a group][channel]
  for (int64_t tap = 0; tap < taps; ++tap)
    for (int64_t i = 0; i < width; ++i)
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t channel = task * kLanes + lane;
        *to++ = channel < step.channels ? weights[(channel * width + i) * taps + tap] : 0.0f;
      }
}

int64_t PairTasks(const Step& step) {
  if (!step.is_paired) return 0;
  return step.kind == kWinograd ? (step.tile + 2) * (step.tile + 2) : 1;
}

void PairTask(const Step& step, int64_t task, float* packed) {
  if (step.kind == kWinograd)
    PairWinogradTask(step, task, packed);
  else
    PairDirectTask(step, packed);
}

}  // namespace graphopt::blocked
