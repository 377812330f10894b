/*
 * Functions of vectors, by the polynomials of graphopt/kernels/vecmath/float32.py; see docs/vecmath.md.
 */
#pragma once

#include "lanes.h"

namespace graphopt::blocked {

typedef int32_t Whole32 __attribute__((vector_size(kBlockBytes)));

inline Lanes Everywhere(float x) { return Lanes{} + x; }

inline Lanes Absolute(Lanes x) { return (Lanes)((Whole32)x & 0x7FFFFFFF); }

inline Lanes WithSign(Lanes magnitude, Lanes sign) {
  return (Lanes)(((Whole32)magnitude & 0x7FFFFFFF) | ((Whole32)sign & (1 << 31)));
}

/* The polynomial whose lowest coefficient is the first. */
template <int N>
inline Lanes Horner(Lanes x, const float (&coefficients)[N]) {
  Lanes found = Everywhere(coefficients[N - 1]);
#pragma GCC unroll 8
  for (int i = N - 2; i >= 0; --i) found = found * x + coefficients[i];
  return found;
}

/* For x in [-87, 88]. */
inline Lanes Exp(Lanes x) {
  constexpr float kTail[] = {5.000000062e-1f, 1.666654249e-1f, 4.166628142e-2f, 8.366650645e-3f,
                             1.394650833e-3f};
  constexpr float kMagic = 12582912.0f;  // adding it rounds to a whole number, in the lowest bits
  const Lanes shifted = x * 1.4426950408889634f + kMagic;
  const Lanes n = shifted - kMagic;
  const Lanes r = (x - n * 0.6931471824645996f) + n * 1.9046542121259336e-09f;
  const Lanes p = 1.0f + (r + r * r * Horner(r, kTail));
  return (Lanes)((Whole32)p + ((Whole32)shifted << 23));
}

inline Lanes Erf(Lanes x) {
  constexpr float kTail[] = {1.283791659e-1f,  -3.761262714e-1f, 1.128360018e-1f, -2.685444464e-2f,
                             5.189535192e-3f, -8.020839008e-4f, 7.889110474e-5f};
  constexpr float kLogErfc[] = {-2.672209149e-3f, -1.117436650e0f, -6.544915280e-1f,
                                -8.863240740e-2f, 1.477753293e-2f, -1.150346418e-3f};
  const Lanes end = Everywhere(4.0f), one = Everywhere(1.0f);
  Lanes a = Absolute(x);
  a = a > end ? end : a;  // NaN stays
  const Lanes high = 1.0f - Exp(Horner(a, kLogErfc));
  const Lanes low = a + a * Horner(a * a, kTail);
  return WithSign(a >= one ? high : low, x);  // of NaN `low` is NaN
}

inline Lanes Gelu(Lanes x) { return x * 0.5f * (Erf(x * 0.7071067811865476f) + 1.0f); }

}  // namespace graphopt::blocked
