/*
 * Convolutions in blocked layout, computed directly.
 *
 * A tile of some pixels by some blocks of filters lives in registers while all channels and taps of the
 * kernel run (Georganas et al., Anatomy of High-Performance Deep Learning Convolutions on SIMD
 * Architectures, 2018). A pixel's channel is broadcast, filters come by whole vectors, packed in the
 * order in which they are read.
 */
#include <algorithm>
#include <vector>

#include "convolution_parts.h"
#include "winograd.h"

namespace graphopt::blocked {
namespace {

#if defined(__AVX512F__)
constexpr int kPixels[] = {0, 14, 14, 9, 7};
#elif defined(__aarch64__)
constexpr int kPixels[] = {0, 14, 12, 8, 6};
#else
constexpr int kPixels[] = {0, 10, 6, 4, 3};
#endif
constexpr int kMostPixels = 14, kMostGroup = 4;
constexpr double kTaskWork = 1.5e6;  // multiplications a task is worth

/* What a tile reads. */
struct Operands {
  const float* in;
  int64_t pixel;           // floats from one output pixel's input to the next one's
  const int64_t* offsets;  // of the runs of `length` adjacent floats that are multiplied
  int64_t runs, length;
  const float* packed;
};

template <int P, int B, int S>
void Tile(const Operands& from, const Target& to) {
  Lanes sum[P][B] = {};
  const int64_t pixel = S ? S : from.pixel;
  const float* packed = from.packed;
  for (int64_t run = 0; run < from.runs; ++run) {
    const float* in = from.in + from.offsets[run];
    const int64_t length = S ? kLanes : from.length;
    for (int64_t i = 0; i < length; ++i, ++in, packed += B * kLanes) {
      Lanes w[B];
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) w[b] = LoadLanes(packed + b * kLanes);
#pragma GCC unroll 14
      for (int p = 0; p < P; ++p) {
        const float x = in[p * pixel];
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) sum[p][b] += x * w[b];
      }
    }
  }
  if (to.step == nullptr) {
    if (to.adds) {
#pragma GCC unroll 14
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) sum[p][b] += LoadLanes(to.out + b * to.out_block + p * kLanes);
    }
#pragma GCC unroll 14
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) StoreLanes(to.out + b * to.out_block + p * kLanes, sum[p][b]);
    return;
  }
  Lanes sums[P * B];  // `sum` stays in registers, as no address of it is taken
#pragma GCC unroll 14
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b) sums[b * P + p] = sum[p][b];
  Finish(sums, P, B, to);
}

using TileFunction = void (*)(const Operands&, const Target&);

template <int B, int S, int P>
constexpr TileFunction Entry() {
  if constexpr (P <= kPixels[B])
    return Tile<P, B, S>;
  else
    return nullptr;
}

template <int B, int S>
TileFunction OfPixels(int64_t pixels) {
  static const TileFunction table[kMostPixels + 1] = {
      nullptr,           Entry<B, S, 1>(),  Entry<B, S, 2>(),  Entry<B, S, 3>(),
      Entry<B, S, 4>(),  Entry<B, S, 5>(),  Entry<B, S, 6>(),  Entry<B, S, 7>(),
      Entry<B, S, 8>(),  Entry<B, S, 9>(),  Entry<B, S, 10>(), Entry<B, S, 11>(),
      Entry<B, S, 12>(), Entry<B, S, 13>(), Entry<B, S, 14>()};
  return table[pixels];
}

template <int S>
TileFunction OfGroup(int64_t group, int64_t pixels) {
  switch (group) {
    case 1: return OfPixels<1, S>(pixels);
    case 2: return OfPixels<2, S>(pixels);
    case 3: return OfPixels<3, S>(pixels);
    default: return OfPixels<4, S>(pixels);
  }
}

TileFunction Pick(int64_t group, int64_t pixels, bool is_adjacent) {
  return is_adjacent ? OfGroup<kLanes>(group, pixels) : OfGroup<0>(group, pixels);
}

}  // namespace

std::vector<int64_t> DirectOffsets(const Step& step) {
  std::vector<int64_t> offsets;
  const int64_t pixel = step.is_planar ? 1 : kLanes;
  const int64_t blocks = step.is_planar ? step.channels : Ceil(ChannelsOf(step), kLanes);
  const bool whole_rows = step.is_planar && step.dilation_x == 1;
  for (int64_t block = 0; block < blocks; ++block)
    for (int64_t y = 0; y < step.kernel_y; ++y)
      for (int64_t x = 0; x < (whole_rows ? 1 : step.kernel_x); ++x)
        offsets.push_back(block * step.in.block_stride +
                          (y * step.dilation_y - step.pad_y) * step.in.row_stride +
                          (x * step.dilation_x - step.pad_x) * pixel);
  return offsets;
}

namespace {

int64_t RunLength(const Step& step) {
  if (!step.is_planar) return kLanes;
  return step.dilation_x == 1 ? step.kernel_x : 1;
}

/* How the tasks of a convolution share it: some rows, some groups of filters. */
struct Share {
  int64_t bands, rows;    // rows of a band
  int64_t teams, groups;  // groups of a team

  explicit Share(const Step& step) {
    const double row = static_cast<double>(step.out.width) * Depth(step) * step.group * kLanes;
    const int64_t height = step.out.height, all = Groups(step);
    groups = std::min<int64_t>(all, std::max<int64_t>(1, kTaskWork / (row * height)));
    teams = Ceil(all, groups);
    rows = groups > 1 ? height
                      : std::min<int64_t>(height, std::max<int64_t>(1, kTaskWork / row));
    bands = Ceil(height, rows);
    rows = Ceil(height, bands);
  }
};

/* Pieces of one long row are rows here. */
struct Strips {
  Cut cut;
  bool is_long;
  explicit Strips(const Step& step)
      : cut(step.out.width, kPixels[step.group]), is_long(step.out.height == 1) {}
};

}  // namespace

void MultiplyBlocked(const float* a, int64_t a_stride, int64_t depth, const float* packed,
                     int64_t group, float* c, int64_t c_stride, int64_t rows, bool adds) {
  int64_t offsets[kMostBlocks];
  for (int64_t i = 0; i < depth; ++i) offsets[i] = i * a_stride;
  const Cut cut(rows, kPixels[group]);
  for (int64_t piece = 0; piece < cut.pieces; ++piece) {
    const int64_t at = cut.Begin(piece) * kLanes;
    Pick(group, cut.Width(piece), true)({a + at, kLanes, offsets, depth, kLanes, packed},
                                        {c + at, c_stride, nullptr, 0, nullptr, nullptr, nullptr, 0, adds});
  }
}

int64_t DirectTasks(const Step& step) {
  const Share share(step);
  if (step.out.height > 1) return step.images * share.teams * share.bands;
  // One long row is cut by its pieces instead.
  const Strips strips(step);
  const double piece = static_cast<double>(strips.cut.width) * Depth(step) * step.group * kLanes;
  const int64_t pieces = std::max<int64_t>(1, kTaskWork / piece / share.groups);
  return step.images * share.teams * Ceil(strips.cut.pieces, pieces);
}

void DirectTask(const Bound& bound, int64_t task) {
  const Step& step = *bound.step;
  const Share share(step);
  const Strips strips(step);
  const int64_t all = DirectTasks(step) / (step.images * share.teams);
  const int64_t band = task % all;
  const int64_t team = task / all % share.teams;
  const int64_t image = task / all / share.teams;
  const int64_t pieces = strips.cut.pieces;
  int64_t first, last;  // pieces, of all rows
  if (strips.is_long) {
    first = band * pieces / all;
    last = (band + 1) * pieces / all;
  } else {
    first = band * share.rows * pieces;
    last = std::min(step.out.height, (band + 1) * share.rows) * pieces;
  }
  const int64_t in_pixel = step.stride_x * (step.is_planar ? 1 : kLanes);
  const int64_t depth = Depth(step);
  const int64_t begin = team * share.groups, end = std::min(begin + share.groups, Groups(step));
  for (int64_t group = begin; group < end; ++group) {
    const int64_t block = BlockOf(step, group), blocks = BlocksOf(step, group);
    const int64_t in_block = InBlockOf(step, group);
    const float* packed = bound.weights + block * kLanes * depth;
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t y = piece / pieces, strip = piece % pieces;
      const int64_t x = strips.cut.Begin(strip), width = strips.cut.Width(strip);
      if (strip == 0)
        for (int64_t b = 0; b < blocks; ++b)
          ClearHalo(step.out, bound.arena, image, block + b, y);
      const Operands from{bound.arena + step.in.Place(image, in_block, y * step.stride_y) + x * in_pixel,
                          in_pixel, bound.offsets, bound.runs,
                          RunLength(step), packed};
      const Target to{
          bound.arena + step.out.Place(image, block, y) + x * kLanes,
          step.out.block_stride,
          step.has_other ? bound.arena + step.other.Place(image, block, y) + x * kLanes : nullptr,
          step.other.block_stride,
          bound.bias ? bound.bias + block * kLanes : nullptr,
          bound.slopes ? bound.slopes + block * kLanes : nullptr,
          &step,
          block + blocks - 1};
      Pick(blocks, width, !step.is_planar && step.stride_x == 1)(from, to);
    }
  }
}

std::vector<float> Turned(const Step& step, int64_t filters, const float* weights) {
  const int64_t* kernel = step.turned_kernel;
  const int64_t *stride = step.turned_stride, *pad = step.turned_pad;
  const int64_t phases = stride[0] * stride[1], whole = step.filters / phases;
  std::vector<float> found(step.filters * step.channels * step.kernel_y * step.kernel_x);
  // Tap `t` of a phase is `d` inputs from the one that stands where the output does.
  const auto tap = [&](int axis, int64_t phase, int64_t at) {
    const int64_t d = at - (axis ? step.pad_x : step.pad_y), t = phase + pad[axis] - stride[axis] * d;
    return t >= 0 && t < kernel[axis] ? t : -1;
  };
  float* to = found.data();
  for (int64_t phase = 0; phase < phases; ++phase)
    for (int64_t filter = 0; filter < whole; ++filter)
      for (int64_t channel = 0; channel < step.channels; ++channel)
        for (int64_t y = 0; y < step.kernel_y; ++y)
          for (int64_t x = 0; x < step.kernel_x; ++x, ++to) {
            const int64_t down = tap(0, phase / stride[1], y), across = tap(1, phase % stride[1], x);
            if (filter < filters && down >= 0 && across >= 0)
              *to = weights[((channel * filters + filter) * kernel[0] + down) * kernel[1] + across];
          }
  return found;
}

int64_t PackDirectTasks(const Step& step) { return Groups(step); }

/* Direct: [group][run][i][filters of the group], filled up with zeros. A task packs a group. */
void PackDirectTask(const Step& step, int64_t group, const float* weights, float* packed) {
  const int64_t taps = step.kernel_y * step.kernel_x;
  // Of groups that are bundled each has its own channels; filters have no weights for the others.
  const int64_t seen = ChannelsOf(step) / step.bundle, alike = step.filters / step.groups;
  const int64_t own = alike / step.bundle;
  auto at = [&](int64_t filter, int64_t channel, int64_t y, int64_t x) {
    if (filter >= step.filters || channel >= ChannelsOf(step)) return 0.0f;
    if (step.bundle > 1 && channel / seen != filter % alike / own) return 0.0f;
    return weights[(filter * seen + channel % seen) * taps + y * step.kernel_x + x];
  };
  const int64_t filter = BlockOf(step, group) * kLanes, width = BlocksOf(step, group) * kLanes;
  float* to = packed + filter * Depth(step);
  auto row = [&](int64_t channel, int64_t y, int64_t x) {
    for (int64_t i = 0; i < width; ++i) *to++ = at(filter + i, channel, y, x);
  };
  const int64_t block = step.is_planar ? 1 : kLanes;
  for (int64_t channel = 0; channel < ChannelsOf(step); channel += block)
    for (int64_t y = 0; y < step.kernel_y; ++y)
      for (int64_t x = 0; x < step.kernel_x; ++x)
        for (int64_t i = 0; i < block; ++i) row(channel + i, y, x);
}

/*
 * How many blocks of filters a tile computes: what takes the fewest cycles, at two multiplications a
 * cycle, a pause of eight between those that add up, and a half for every vector that is loaded.
 */
int64_t BestGroup(const Step& step) {
  if (step.is_paired) return std::min<int64_t>(kPairedGroup, Ceil(step.filters, kLanes));
  const int64_t row = step.kind == kWinograd ? step.chunk : step.out.width;
  const int64_t blocks = AlikeBlocks(step);
  double least = 0;
  int64_t best = 1;
  for (int64_t group = 1; group <= std::min<int64_t>(kMostGroup, blocks); ++group) {
    const Cut cut(row, kPixels[group]);
    double cycles = 0;
    for (int64_t begin = 0; begin < blocks; begin += group) {
      const int64_t width = std::min(group, blocks - begin);
      for (int64_t piece = 0; piece < cut.pieces; ++piece) {
        const double sums = static_cast<double>(cut.Width(piece) * width);
        cycles += std::max(sums, 8.0) + 0.5 * (cut.Width(piece) + 2 * width) + 1;
      }
    }
    if (group > 1 && cycles >= least) continue;
    least = cycles;
    best = group;
  }
  return best;
}

int64_t PackedDirect(const Step& step) {
  if (step.is_paired) return PackedPaired(step, Depth(step), 1);
  return Ceil(step.filters, kLanes) * kLanes * Depth(step);
}

void PairDirectTask(const Step& step, float* packed) { PairFilters(step, Depth(step), 1, 0, packed); }

}  // namespace graphopt::blocked
