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

/* x where it is positive, and else what exp(x) - 1 is times `low`; all that times `high`. */
inline Lanes Elu(const Step& step, Lanes x) {
  const Lanes zero = {}, end = Everywhere(-87.0f);
  Lanes y = x < zero ? x : zero;  // NaN is positive
  y = y < end ? end : y;
  const Lanes below = ExpMinusOne(y) * static_cast<float>(step.low);
  return (x < zero ? below : x) * static_cast<float>(step.high);
}

/* Those that few nets have; not in line, where they would be in every kernel. */
[[gnu::noinline]] inline Lanes Curve(const Step& step, Lanes y) {
  switch (step.activation) {
    case kTanh: return Tanh(y);
    case kSoftplus: return Softplus(y);
    case kTanhOfSoftplus: return TanhOfSoftplus(y);
    case kElu: return Elu(step, y);
    default: return NormalBelow(y);
  }
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
  if (step.activation == kClip) {
    const Lanes low = zero + static_cast<float>(step.low), high = zero + static_cast<float>(step.high);
    y = y < low ? low : y;
    y = y > high ? high : y;
  } else {
    y = step.activation == kSigmoid ? Sigmoid(y) : Curve(step, y);
  }
  return step.is_gated ? x * y : y;
}

}  // namespace graphopt::blocked
