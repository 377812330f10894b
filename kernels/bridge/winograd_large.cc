/*
 * Winograd's algorithm in training for layers of many channels and filters: transformed, these are four times as many
 * numbers as before and more than caches hold, and there are few tiles to use each of them. So they are transformed by
 * those that multiply by them, some channels of some filters at a time, and are never written to memory; of the gradient
 * of filters sums are transformed back before they leave the cache.
 */
#include <omp.h>

#include <algorithm>

#include "execute.h"
#include "winograd_training.h"

namespace graphopt::blocked {
namespace {

constexpr int64_t kGroup = 2;             // blocks of filters of a task
constexpr int64_t kTasksOfThread = 3;
constexpr int64_t kFewestTiles = 28;      // of a task, so that filters are worth their transform
constexpr int64_t kGradientBlocks = 6;    // of channels of a task, with kGroup of filters

float* Reserve(int64_t floats) {
  static thread_local Arena arena;
  return reinterpret_cast<float*>(arena.Reserve(floats * sizeof(float)));
}

/* How the products with some tiles are shared. */
struct LargeShare {
  int64_t groups, bands;  // of filters, of tiles
  int64_t slab, slabs;    // blocks of channels at a time

  explicit LargeShare(const Tiling& tiling)
      : groups(Ceil(tiling.out_blocks, kGroup)),
        bands(std::clamp<int64_t>(Ceil(kTasksOfThread * omp_get_num_threads(), groups), 1,
                                  std::max<int64_t>(1, tiling.count / kFewestTiles))),
        slab(SlabOf(tiling)),
        slabs(Ceil(tiling.in_blocks, slab)) {}
};

/* Transforms filters of `blocks` blocks from `first` on for some channels; they go to `packed`, of each point. */
void TransformSlab(const Filters& filters, int64_t first, int64_t blocks, int64_t channel, int64_t depth, float* packed,
                   int64_t point) {
  const int64_t width = blocks * kLanes;
  for (int64_t d = 0; d < depth; ++d)
    for (int64_t b = 0; b < blocks; ++b)
      TransformFilters(filters, first + b, (channel + d) * kLanes, packed + d * kLanes * width + b * kLanes, width, point);
}

void Multiply(const Bound& bound, const Tiling& tiling, const Filters& filters, int64_t task) {
  const LargeShare share(tiling);
  const bool is_paired = bound.step->is_paired;
  const int64_t first = task % share.groups * kGroup, blocks = std::min(kGroup, tiling.out_blocks - first);
  const int64_t band = task / share.groups, strips = StripsOf(tiling);
  const int64_t from_strip = strips * band / share.bands, to_strip = strips * (band + 1) / share.bands;
  const int64_t begin = StripBegin(tiling, from_strip), count = StripBegin(tiling, to_strip) - begin;
  const int64_t packed_point = PairedSlabFloats(share.slab, blocks) / kLanes, made_point = OddLines(blocks * count);
  const int64_t filters_point = OddLines(packed_point);
  float* packed = Reserve(tiling.points * (filters_point + made_point));
  float* made = packed + tiling.points * filters_point;
  for (int64_t slab = 0; slab < share.slabs; ++slab) {
    const int64_t from = slab * share.slab, depth = std::min(share.slab, tiling.in_blocks - from);
    TransformSlab(filters, first, blocks, from, depth, packed, filters_point);
    for (int64_t point = 0; point < tiling.points; ++point) {
      float *filters_at = packed + point * filters_point, *made_at = made + point * made_point;
      if (is_paired) {
        PairSlab(bound.factors + from * kLanes, depth, blocks, filters_at);
        MultiplyPairedSlab(bound, tiling, point, slab, from_strip, to_strip, filters_at, blocks, made_at, count * kLanes);
      } else {
        MultiplyBlocked(tiling.Input(bound, point, from) + begin * kLanes, tiling.count * kLanes, depth, filters_at,
                        blocks, made_at, count * kLanes, count, from > 0);
      }
    }
  }
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < count; ++i)
      TransformTrainingOutput(bound, tiling, first + b, begin + i, made + (b * count + i) * kLanes, made_point);
}

/* Products of some filters with some blocks of channels, from all tiles to their taps. */
void MultiplyGradient(const Bound& bound, const Tiling& tiling, int64_t task, float* gradient) {
  const int64_t groups = Ceil(tiling.out_blocks, kGroup);
  const int64_t first = task % groups * kGroup, blocks = std::min(kGroup, tiling.out_blocks - first);
  const int64_t slabs = Ceil(tiling.in_blocks, kGradientBlocks), slab = task / groups;
  const int64_t begin = tiling.in_blocks * slab / slabs, end = tiling.in_blocks * (slab + 1) / slabs;
  const int64_t width = (end - begin) * kLanes, point = OddLines(blocks * width);
  float* sums = Reserve(tiling.points * point);
  for (int64_t p = 0; p < tiling.points; ++p)
    for (int64_t from = begin; from < end; from += kColumns) {
      const OuterFunction outer = PickOuter(std::min<int64_t>(kColumns, end - from));
      for (int64_t filter = 0; filter < blocks * kLanes; filter += kRows)
        outer(tiling.Output(bound, p, first + filter / kLanes) + filter % kLanes, tiling.Input(bound, p, from),
              tiling.count * kLanes, tiling.count, sums + p * point + filter * width + (from - begin) * kLanes, width, false);
    }
  for (int64_t filter = 0; filter < blocks * kLanes; ++filter)
    for (int64_t block = begin; block < end; ++block)
      TransformSums(sums + filter * width + (block - begin) * kLanes, point,
                    gradient + ((first * kLanes + filter) * tiling.in_blocks + block) * kLanes * kTaps, tiling.first > 0);
}

}  // namespace

bool IsLarge(const Step& step) { return step.channels + step.filters > kFewChannels; }

/* Filters and then channels are noted where pairs want it; then for some tiles at a time these are transformed and
 * multiplied. */
int64_t LargePhases(const Step& step) { return 2 * step.is_paired + 2 * Ceil(Tiling(step, 0).all, step.chunk); }

int64_t LargeTasks(const Step& step, int64_t phase) {
  phase -= 2 * step.is_paired;
  if (phase < 0) return phase == -2 ? Tiling(step, 0).out_blocks : Tiling(step, 0).in_blocks;
  const Tiling tiling(step, phase / 2);
  if (phase % 2 == 0)
    return step.is_paired ? PairedTransformTasks(tiling) : Ceil(tiling.in_blocks * tiling.count, kTransforms);
  const LargeShare share(tiling);
  return share.groups * share.bands;
}

void LargeTask(const Bound& bound, const Filters& filters, int64_t phase, int64_t task, float* factors) {
  const Step& step = *bound.step;
  phase -= 2 * step.is_paired;
  if (phase < 0)
    return (phase == -2 ? NoteFilters : NoteChannels)(filters, task * kLanes, (task + 1) * kLanes, factors);
  const Tiling tiling(step, phase / 2);
  if (phase % 2) return Multiply(bound, tiling, filters, task);
  if (step.is_paired) return PairedTransformTask(bound, tiling, task);
  const int64_t all = tiling.in_blocks * tiling.count;
  for (int64_t item = task * kTransforms; item < std::min(all, (task + 1) * kTransforms); ++item)
    TransformInput<M>(bound, tiling, item / tiling.count, item % tiling.count);
}

int64_t LargeGradientPhases(const Step& step) { return 2 * Ceil(Tiling(step, 0).all, step.chunk); }

int64_t LargeGradientTasks(const Step& step, int64_t phase) {
  const Tiling tiling(step, phase / 2);
  if (phase % 2) return Ceil(tiling.out_blocks, kGroup) * Ceil(tiling.in_blocks, kGradientBlocks);
  return Ceil((tiling.in_blocks + tiling.out_blocks) * tiling.count, kTransforms);
}

void LargeGradientTask(const Bound& bound, int64_t phase, int64_t task, float* gradient) {
  const Tiling tiling(*bound.step, phase / 2);
  if (phase % 2) return MultiplyGradient(bound, tiling, task, gradient);
  const int64_t all = (tiling.in_blocks + tiling.out_blocks) * tiling.count;
  for (int64_t item = task * kTransforms; item < std::min(all, (task + 1) * kTransforms); ++item)
    TransformEither(bound, tiling, item);
}

}  // namespace graphopt::blocked
