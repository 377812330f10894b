/*
 * What steps over blocked images do last; for files that are compiled for the processor at hand.
 */
#pragma once

#include "lanes_math.h"

namespace graphopt::blocked {

inline Lanes Sigmoid(Lanes x) {
  constexpr float kEnd = 87.0f;  // of Exp, and of numbers that are not denormal
  const Lanes zero = {};
  Lanes y = x > kEnd ? zero + kEnd : x;  // NaN stays
  y = y < -kEnd ? zero - kEnd : y;
  y = 1.0f / (1.0f + Exp(-y));
  return x < -kEnd ? zero : y;
}

/* What each channel of a block is multiplied by where it is not positive. */
inline Lanes SlopeOf(const Step& step, const float* slopes, int64_t block) {
  return slopes ? LoadLanes(slopes + block * kLanes) : Everywhere(static_cast<float>(step.low));
}

inline Lanes Activated(const Step& step, Lanes x, const Lanes& slope) {
  const Lanes zero = {};
  switch (step.activation) {
    case kNone: return x;
    case kRelu: return x < zero ? zero : x;  // NaN stays
    case kLeaky: {
      const Lanes scaled = x * slope;
      return x > zero ? x : scaled;
    }
    default: break;
  }
  Lanes y = x * static_cast<float>(step.scale) + static_cast<float>(step.shift);
  if (step.activation == kSigmoid) {
    y = Sigmoid(y);
  } else {
    const Lanes low = zero + static_cast<float>(step.low), high = zero + static_cast<float>(step.high);
    y = y < low ? low : y;
    y = y > high ? high : y;
  }
  return step.is_gated ? x * y : y;
}

}  // namespace graphopt::blocked
