/*
 * Gradients of filters of one pixel, in pairs (paired.h): outer products of pixels in blocked layout, summed up.
 *
 * The depth is the pixels. As in paired_outer.h each pixel of the left operand, the gradient of the output, is brought to one size, and
 * that of the right one, the images, multiplied by as much as the left one is divided by; then channels of both are
 * brought to one size.
 */
#include <algorithm>

#include "execute.h"
#include "filtering.h"
#include "lanes_transpose.h"
#include "paired_panels.h"

namespace graphopt::blocked {
namespace {

using paired::kRows;

constexpr int kOfNoNumber = 255;  // the exponent of infinities and of what is no number
constexpr int64_t kBlocksOfTask = 4;
constexpr int64_t kFewestTasks = 12;
constexpr int64_t kFewFilters = 64 << 10;  // numbers of filters of which threads have sums of their own
constexpr int64_t kMostUnits = 16;         // whose sums are added up in the end, as many on any number of threads
constexpr int64_t kMostPixels = 384;  // that are summed over at a time
/* Pixels of a part. What products of pairs add up to is taken from sums part by part, as it grows with them. */
constexpr int64_t kPartPixels = 192, kParts = kMostPixels / kPartPixels;
static_assert(kPartPixels % 3 == 0, "parts are of whole threes");
constexpr int64_t kOuterBlocks = paired::kVectors;  // of the right operand that a tile computes with

/*
 * Where numbers of some pixels lie: the left operand's as [block][pixel][lane]; the right one's in panels of two blocks
 * as [pixel][block of the panel][lane]. Behind them is noted what they were multiplied by.
 */
struct OuterBlocks {
  float* at;
  int64_t left_blocks, right_blocks, count;

  static int64_t Size(int64_t left_blocks, int64_t right_blocks, int64_t count) {
    return ((left_blocks + right_blocks) * (count + kNoted) + 2 * Ceil(count, kLanes)) * kLanes;
  }
  float* Left(int64_t block) const { return at + block * count * kLanes; }
  /* Of a block's pixels each is RightPixel floats behind the one before it. */
  float* Right(int64_t block) const {
    const int64_t first = block / kOuterBlocks * kOuterBlocks;
    return Left(left_blocks + first) + (block - first) * kLanes;
  }
  int64_t RightPixel(int64_t block) const {
    const int64_t first = block / kOuterBlocks * kOuterBlocks;
    return (first + 1 < right_blocks ? kOuterBlocks : 1) * kLanes;
  }

  /* What each pixel of the left operand is multiplied by, and what one of the right operand is: one over that. */
  float* Times(bool is_left) const {
    return Left(left_blocks + right_blocks) + (is_left ? 0 : Ceil(count, kLanes) * kLanes);
  }
  /* Of each channel: what its pairs add up to, negative, of each part; what it was multiplied by, and one over that, which
   * is zero if it is all zeros. Those of a panel's blocks are side by side; blocks of the right operand follow those of
   * the left one. */
  float* Sums(int64_t part, int64_t block) const { return Noted(part, block); }
  float* Scales(int64_t block) const { return Noted(kParts, block); }
  float* Inverses(int64_t block) const { return Noted(kParts + 1, block); }
  /* Not zero: the block's numbers can be in pairs. */
  float* ArePaired(int64_t block) const { return Noted(kParts + 2, 0) + block; }

 private:
  static constexpr int64_t kNoted = kParts + 3;  // vectors of each block

  float* Noted(int64_t what, int64_t block) const {
    return Times(false) + (Ceil(count, kLanes) + what * (left_blocks + right_blocks) + block) * kLanes;
  }
};

Whole32 ExponentsOf(Lanes x) { return ((Whole32)x >> 23) & kOfNoNumber; }
Lanes PowersOfTwo(Whole32 exponents) { return (Lanes)((exponents + 127) << 23); }

/* Binary digits by which numbers with such squares, as many as given, are moved to have a root mean square of a half. */
Whole32 ShiftsFor(Lanes squares, int64_t count) {
  const int digits = 63 - __builtin_clzll(count | 1);
  return -((ExponentsOf(squares) - 127 - digits + 2) >> 1);
}

/* Copies a block's pixels, which are where `at(pixel)` says, each multiplied by its number in `times`. */
template <typename At>
void CopyBlock(const float* from, const At& at, const float* times, int64_t count, float* to, int64_t pixel,
               Lanes* squares, Lanes* sizes) {
  Lanes of_all = {}, absolute = {};
  for (int64_t p = 0; p < count; ++p) {
    const Lanes x = LoadLanes(from + at(p)) * paired::Everywhere(times + p);
    StoreLanes(to + p * pixel, x);
    of_all += x * x;
    absolute += Absolute(x);
  }
  *squares = of_all;
  *sizes = absolute;
}

/* Multiplies a block's numbers; the sum of the products of its pairs. */
Lanes ScaleBlock(float* at, int64_t pixel, int64_t count, const Lanes& scale) {
  Lanes sum = {};
  int64_t p = 0;
  for (; p + 1 < count; p += 3) {
    float* x = at + p * pixel;
    const Lanes a = LoadLanes(x) * scale, b = LoadLanes(x + pixel) * scale;
    StoreLanes(x, a);
    StoreLanes(x + pixel, b);
    if (p + 2 < count) StoreLanes(x + 2 * pixel, LoadLanes(x + 2 * pixel) * scale);
    sum += a * b;
  }
  if (p < count) StoreLanes(at + p * pixel, LoadLanes(at + p * pixel) * scale);
  return sum;
}

/* One row times a panel number by number, as it is where numbers cannot be in pairs. */
void MultiplyRow(const OuterBlocks& from, int64_t panel, int64_t block, int64_t lane, float* to, bool adds) {
  const int64_t first = panel * kOuterBlocks, blocks = std::min(kOuterBlocks, from.right_blocks - first);
  const float* left = from.Left(block) + lane;
  for (int64_t b = 0; b < blocks; ++b) {
    const float* right = from.Right(first + b);
    const int64_t pixel = from.RightPixel(first + b);
    Lanes sum = {};
    for (int64_t p = 0; p < from.count; ++p) sum += left[p * kLanes] * LoadLanes(right + p * pixel);
    sum *= from.Inverses(block)[lane] * LoadLanes(from.Inverses(from.left_blocks + first + b));
    float* at = to + b * kLanes;
    StoreLanes(at, adds ? LoadLanes(at) + sum : sum);
  }
}

/* Notes what pixels are multiplied by; their blocks are `block_stride` floats apart. */
template <typename At>
void NoteTimes(const OuterBlocks& to, const float* from, int64_t block_stride, const At& at) {
  float* weights = to.Scales(0);  // until blocks are paired
  for (int64_t block = 0; block < to.left_blocks; ++block) {
    const auto pixel = [&](int64_t p) { return from + block * block_stride + at(p); };
    paired::NoteLargest(to.count, kLanes, pixel, weights + block * kLanes);
  }
  paired::WeighColumns(weights, to.left_blocks * kLanes, weights);
  for (int64_t first = 0; first < to.count; first += kLanes) {
    Lanes squares[kLanes] = {};
    for (int64_t block = 0; block < to.left_blocks; ++block) {
      const Lanes weight = LoadLanes(weights + block * kLanes);
      const Whole32 are_asked = weight != Lanes{};  // zero times the others may be no number
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i >= to.count - first) break;
        const Lanes numbers = LoadLanes(from + block * block_stride + at(first + i));
        const Lanes x = (Lanes)((Whole32)numbers & are_asked) * weight;
        squares[i] += x * x;
      }
    }
    const Lanes sums = SumsOf(squares);
    constexpr int kMost = paired::kMostShift;
    Whole32 shifts = ShiftsFor(sums, to.left_blocks * kLanes);
    shifts = shifts > kMost ? Whole32{} + kMost : shifts < -kMost ? Whole32{} - kMost : shifts;
    shifts &= ExponentsOf(sums) != kOfNoNumber;
    StoreLanes(to.Times(true) + first, PowersOfTwo(shifts));
    StoreLanes(to.Times(false) + first, PowersOfTwo(-shifts));
  }
}

/* Where a block's numbers go. */
struct Place {
  bool is_left;
  int64_t number, pixel;  // of the operand's blocks; floats from pixel to pixel
  float* at;

  Place(const OuterBlocks& to, int64_t block)
      : is_left(block < to.left_blocks),
        number(is_left ? block : block - to.left_blocks),
        pixel(is_left ? kLanes : to.RightPixel(number)),
        at(is_left ? to.Left(number) : to.Right(number)) {}
};

/* Copies a block and makes pairs of it. */
template <typename At>
void PairBlock(const OuterBlocks& to, int64_t block, const float* from, const At& at) {
  const Place place(to, block);
  Lanes squares, sizes;
  CopyBlock(from, at, to.Times(place.is_left), to.count, place.at, place.pixel, &squares, &sizes);
  constexpr int kMost = paired::kMostOfColumn;
  const Whole32 are_zero = sizes == Lanes{};
  const Whole32 shifts = ShiftsFor(squares, to.count) & ~are_zero;
  const Whole32 fit = (shifts >= -kMost) & (shifts <= kMost) & (ExponentsOf(squares) != kOfNoNumber);
  bool are_paired = true;
  for (int i = 0; i < kLanes; ++i) are_paired = are_paired && fit[i];
  const Whole32 moved = are_paired ? shifts : Whole32{};
  const Lanes scale = PowersOfTwo(moved);
  for (int64_t part = 0, first = 0; part < kParts; ++part, first += kPartPixels) {
    const int64_t count = std::clamp<int64_t>(to.count - first, 0, kPartPixels);
    StoreLanes(to.Sums(part, block), -ScaleBlock(place.at + first * place.pixel, place.pixel, count, scale));
  }
  StoreLanes(to.Scales(block), scale);
  StoreLanes(to.Inverses(block), (Lanes)((Whole32)PowersOfTwo(-moved) & ~are_zero));
  *to.ArePaired(block) = are_paired;
}

/* The products of left blocks `begin` to `end` with a panel; to[channel of the left one][of the right one]. */
void MultiplyOuter(const OuterBlocks& from, int64_t panel, int64_t begin, int64_t end, float* to, int64_t stride,
                   bool adds) {
  const int64_t first = panel * kOuterBlocks, blocks = std::min(kOuterBlocks, from.right_blocks - first);
  const int64_t of_notes = from.left_blocks + first;
  const int64_t parts = Ceil(from.count, kPartPixels);
  paired::Panel panels[kParts];
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = part * kPartPixels, count = std::min(kPartPixels, from.count - begin);
    panels[part] = {from.Right(first) + begin * blocks * kLanes, from.Sums(part, of_notes), from.Scales(of_notes),
                    from.Inverses(of_notes), count, count / 3, count % 3};
  }
  bool is_paired = true;
  for (int64_t b = 0; b < blocks; ++b) is_paired = is_paired && *from.ArePaired(of_notes + b);
  const paired::Runner run = paired::Pick<kLanes>(kRows, blocks);
  paired::Row rows[kRows];
  const paired::Tile tile{rows, panels, parts, 0, blocks * kLanes, adds};
  for (int64_t block = begin; block < end; ++block) {
    const bool are_paired = is_paired && *from.ArePaired(block);
    const float *left = from.Left(block), *inverses = from.Inverses(block);
    for (int64_t lane = 0; lane < kLanes; lane += kRows) {
      for (int64_t i = 0; i < kRows; ++i) {
        rows[i].left = left + lane + i;
        rows[i].to = to + (block * kLanes + lane + i) * stride;
        for (int64_t part = 0; part < parts; ++part) rows[i].sums[part] = from.Sums(part, block)[lane + i];
        rows[i].inverse = inverses[lane + i];
      }
      if (are_paired)
        run(tile);
      else
        for (int64_t i = 0; i < kRows; ++i) MultiplyRow(from, panel, block, lane + i, rows[i].to, adds);
    }
  }
}

/*
 * How the pixels of a convolution of one pixel are cut. Where filters are few, some parts are one thread's, from pixels to
 * sums of its own; else threads share parts, the products by panels.
 */
struct PointwiseShare {
  int64_t all, parts, most, left_blocks, right_blocks, panels, team, teams, units;
  bool is_own;

  explicit PointwiseShare(const Step& step)
      : all(step.images * step.out.height * step.out.width),
        parts(Ceil(all, kMostPixels)),
        most(Ceil(all, parts)),
        left_blocks(step.out.blocks),
        right_blocks(step.in.blocks),
        panels(Ceil(right_blocks, kOuterBlocks)),
        team(std::max<int64_t>(1, Ceil(left_blocks, Ceil(kFewestTasks, panels)))),
        teams(Ceil(left_blocks, team)),
        units(std::min(parts, kMostUnits)),
        is_own(Filters() <= kFewFilters) {}

  int64_t Begin(int64_t part) const { return all * part / parts; }
  int64_t Count(int64_t part) const { return Begin(part + 1) - Begin(part); }
  int64_t Size() const { return OuterBlocks::Size(left_blocks, right_blocks, most); }
  int64_t Filters() const { return left_blocks * right_blocks * kLanes * kLanes; }
};

/* Of a part's pixels: where they are, from the first block of the first image on; until the thread asks again. */
const int64_t* PixelsOf(const Step& step, bool is_left, int64_t begin, int64_t count) {
  static thread_local int64_t offsets[kMostPixels];
  const View& view = is_left ? step.out : step.in;
  const int64_t stride_y = is_left ? 1 : step.stride_y, stride_x = is_left ? 1 : step.stride_x;
  const int64_t width = step.out.width, height = step.out.height;
  int64_t x = begin % width, y = begin / width % height, image = begin / width / height;
  for (int64_t p = 0; p < count; ++p) {
    offsets[p] = view.Place(image, 0, y * stride_y) + x * stride_x * kLanes;
    if (++x < width) continue;
    x = 0;
    if (++y < height) continue;
    y = 0;
    ++image;
  }
  return offsets;
}

/* A part of the pixels, to be in pairs at `at`. */
class Part {
 public:
  Part(const Bound& bound, const PointwiseShare& share, int64_t number, float* at)
      : step_(*bound.step),
        arena_(bound.arena),
        begin_(share.Begin(number)),
        blocks_{at, share.left_blocks, share.right_blocks, share.Count(number)} {}

  void Note() const {
    const int64_t* offsets = PixelsOf(step_, true, begin_, blocks_.count);
    NoteTimes(blocks_, arena_, step_.out.block_stride, [&](int64_t pixel) { return offsets[pixel]; });
  }

  void Pair(int64_t begin, int64_t end) const {
    const int64_t* offsets = nullptr;
    for (int64_t block = begin; block < end; ++block) {
      const bool is_left = block < blocks_.left_blocks;
      if (block == begin || block == blocks_.left_blocks) offsets = PixelsOf(step_, is_left, begin_, blocks_.count);
      const float* from = arena_ + (is_left ? block * step_.out.block_stride
                                            : (block - blocks_.left_blocks) * step_.in.block_stride);
      PairBlock(blocks_, block, from, [&](int64_t pixel) { return offsets[pixel]; });
    }
  }

  /* The products of left blocks `begin` to `end` with a panel. */
  void Multiply(int64_t panel, int64_t begin, int64_t end, float* gradient, bool adds) const {
    MultiplyOuter(blocks_, panel, begin, end, gradient + panel * kOuterBlocks * kLanes, step_.channels, adds);
  }

 private:
  const Step& step_;
  const float* arena_;
  const int64_t begin_;
  const OuterBlocks blocks_;
};

/* Some parts one after the other, with sums of their own. */
void SumUnit(const Bound& bound, const PointwiseShare& share, int64_t unit, float* sums) {
  static thread_local Arena arena;
  float* at = reinterpret_cast<float*>(arena.Reserve(share.Size() * sizeof(float)));
  const int64_t begin = share.parts * unit / share.units, end = share.parts * (unit + 1) / share.units;
  for (int64_t number = begin; number < end; ++number) {
    const Part part(bound, share, number, at);
    part.Note();
    part.Pair(0, share.left_blocks + share.right_blocks);
    for (int64_t panel = 0; panel < share.panels; ++panel) part.Multiply(panel, 0, share.left_blocks, sums, number > begin);
  }
}

/* The sums of all units, of one block of filters. */
void AddUnits(const Step& step, const PointwiseShare& share, int64_t block, const float* sums, float* gradient) {
  const int64_t begin = block * kLanes * step.channels, end = begin + kLanes * step.channels;
  for (int64_t at = begin; at < end; at += kLanes) {
    Lanes sum = LoadLanes(sums + at);
    for (int64_t unit = 1; unit < share.units; ++unit) sum += LoadLanes(sums + unit * share.Filters() + at);
    StoreLanes(gradient + at, sum);
  }
}

}  // namespace

int64_t PartsOf(const Step& step, int64_t floats) {
  return std::max<int64_t>(1, floats / PointwiseShare(step).Size());
}

int64_t PointwiseGradientFloats(const Step& step) {
  const PointwiseShare share(step);
  return share.is_own ? share.units * share.Filters() : step.chunk * share.Size();
}

int64_t PointwiseGradientPhases(const Step& step) {
  const PointwiseShare share(step);
  return share.is_own ? 2 : 3 * Ceil(share.parts, step.chunk);
}

int64_t PointwiseGradientTasks(const Step& step, int64_t phase) {
  const PointwiseShare share(step);
  if (share.is_own) return phase ? share.left_blocks : share.units;
  const int64_t parts = std::min(step.chunk, share.parts - phase / 3 * step.chunk);
  if (phase % 3 == 0) return parts;
  if (phase % 3 == 2) return share.panels * share.teams;
  return parts * Ceil(share.left_blocks + share.right_blocks, kBlocksOfTask);
}

void PointwiseGradientTask(const Bound& bound, int64_t phase, int64_t task, float* gradient) {
  const Step& step = *bound.step;
  const PointwiseShare share(step);
  float* scratch = bound.arena + step.scratch;
  if (share.is_own)
    return phase ? AddUnits(step, share, task, scratch, gradient)
                 : SumUnit(bound, share, task, scratch + task * share.Filters());
  const int64_t first = phase / 3 * step.chunk, parts = std::min(step.chunk, share.parts - first);
  const auto part_of = [&](int64_t part) { return Part(bound, share, first + part, scratch + part * share.Size()); };
  if (phase % 3 == 0) return part_of(task).Note();
  if (phase % 3 == 1) {
    const int64_t blocks = share.left_blocks + share.right_blocks, groups = Ceil(blocks, kBlocksOfTask);
    const int64_t begin = task % groups * kBlocksOfTask;
    return part_of(task / groups).Pair(begin, std::min(begin + kBlocksOfTask, blocks));
  }
  const int64_t panel = task % share.panels, begin = task / share.panels * share.team;
  const int64_t end = std::min(begin + share.team, share.left_blocks);
  for (int64_t part = 0; part < parts; ++part) part_of(part).Multiply(panel, begin, end, gradient, first + part > 0);
}

}  // namespace graphopt::blocked
