/*
 * Whether a processor's matrix unit multiplies float16, found out by doing so. A virtual machine may not tell
 * of it although it is there.
 */
#pragma once

#include "probe.h"
#include "tile_blocks.h"

#if GRAPHOPT_TILES

namespace graphopt::tiles {

/* Whether 32 products of ones are 32. */
inline bool MultipliesOnes() {
  constexpr Bits kOne = 0x3c00;
  alignas(kLineBytes) Bits ones[kTile];
  alignas(kLineBytes) float sums[kSide * kSide] = {};
  std::fill(std::begin(ones), std::end(ones), kOne);
  asm volatile("" ::: "memory");
  _tile_zero(0);
  _tile_loadd(4, ones, kLineBytes);
  _tile_loadd(6, ones, kLineBytes);
  Halves::Add<0>();
  _tile_stored(0, sums, kLineBytes);
  asm volatile("" ::: "memory");
  return std::all_of(std::begin(sums), std::end(sums), [](float sum) { return sum == kStep; });
}

inline bool TryHalves() {
  const Configured configured;
  return Probe::Run(MultipliesOnes);
}

}  // namespace graphopt::tiles

#endif
