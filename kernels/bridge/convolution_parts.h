/*
 * What direct convolutions in blocked layout have in common: how they are cut, and where sums go. For files that are
 * compiled for the processor at hand.
 */
#pragma once

#include <algorithm>

#include "activations.h"

namespace graphopt::blocked {
namespace {  // each file that includes this may be compiled for other instructions

/* A row cut into pieces that are as even as can be. */
struct Cut {
  int64_t pieces, width, wider;  // the first `wider` ones have one pixel more

  Cut(int64_t row, int64_t most)
      : pieces(Ceil(row, most)), width(row / pieces), wider(row % pieces) {}
  int64_t Begin(int64_t piece) const { return piece * width + std::min(piece, wider); }
  int64_t Width(int64_t piece) const { return width + (piece < wider); }
};

/* Channels that a filter sees. */
inline int64_t ChannelsOf(const Step& step) { return step.channels / step.groups; }

/* Blocks of filters that see the same channels, and by how many tiles they are shared: the last one may have fewer. */
inline int64_t AlikeBlocks(const Step& step) { return Ceil(step.filters / step.groups, kLanes); }
inline int64_t AlikeTiles(const Step& step) { return Ceil(AlikeBlocks(step), step.group); }
inline int64_t Groups(const Step& step) { return step.groups * AlikeTiles(step); }

/* Of one of these tiles: its first block of filters, how many it has, and the first block of channels. */
inline int64_t BlockOf(const Step& step, int64_t tile) {
  const int64_t tiles = AlikeTiles(step);
  return tile / tiles * AlikeBlocks(step) + tile % tiles * step.group;
}
inline int64_t BlocksOf(const Step& step, int64_t tile) {
  return std::min(step.group, AlikeBlocks(step) - tile % AlikeTiles(step) * step.group);
}
inline int64_t InBlockOf(const Step& step, int64_t tile) {
  return tile / AlikeTiles(step) * Ceil(ChannelsOf(step), kLanes);
}

/* Multiplied numbers of each output, with those that fill up a block. */
inline int64_t Depth(const Step& step) {
  const int64_t taps = step.kernel_y * step.kernel_x;
  return taps * (step.is_planar ? step.channels : Ceil(ChannelsOf(step), kLanes) * kLanes);
}

/* Where a tile goes. */
struct Target {
  float* out;
  int64_t out_block;
  const float* other;
  int64_t other_block;
  const float *bias, *slopes;
  const Step* step;  // null: nothing but the sums is written, or added
  int64_t last_block;
  bool adds = false;
};

/* Bias, other operand and activation. */
template <int64_t kActivation, bool kHasOther>
void FinishAs(const Lanes* sum, int pixels, int blocks, const Target& to) {
  const Lanes zero = {};
  for (int b = 0; b < blocks; ++b) {
    const Lanes bias = to.bias ? LoadLanes(to.bias + b * kLanes) : zero;
    float* out = to.out + b * to.out_block;
    const float* other = kHasOther ? to.other + b * to.other_block : nullptr;
    const Lanes slope = SlopeOf(*to.step, to.slopes ? to.slopes + b * kLanes : nullptr, 0);
    const int64_t filters = b == blocks - 1 ? FiltersOf(*to.step, to.last_block) : kLanes;
    for (int p = 0; p < pixels; ++p) {
      Lanes x = sum[b * pixels + p] + bias;
      if (kHasOther) x += LoadLanes(other + p * kLanes);
      if (kActivation == kRelu)
        x = x < zero ? zero : x;
      else if (kActivation != kNone)
        x = Activated(*to.step, x, slope);
      if (filters < kLanes) x = Kept(x, filters);
      StoreLanes(out + p * kLanes, x);
    }
  }
}

void Finish(const Lanes* sum, int pixels, int blocks, const Target& to) {
  const bool other = to.other != nullptr;
  switch (to.step->activation) {
    case kNone:
      return other ? FinishAs<kNone, true>(sum, pixels, blocks, to)
                   : FinishAs<kNone, false>(sum, pixels, blocks, to);
    case kRelu:
      return other ? FinishAs<kRelu, true>(sum, pixels, blocks, to)
                   : FinishAs<kRelu, false>(sum, pixels, blocks, to);
    default:
      return other ? FinishAs<kClip, true>(sum, pixels, blocks, to)
                   : FinishAs<kClip, false>(sum, pixels, blocks, to);
  }
}

}  // namespace
}  // namespace graphopt::blocked
