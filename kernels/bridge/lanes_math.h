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

/* The polynomial whose lowest coefficient is the first; of vectors of any length. */
template <typename Vector, int N>
inline Vector Horner(Vector x, const float (&coefficients)[N]) {
  Vector found = Vector{} + coefficients[N - 1];
#pragma GCC unroll 8
  for (int i = N - 2; i >= 0; --i) found = found * x + coefficients[i];
  return found;
}

/* exp(x) = 2**n * (1 + rest), with n in the lowest bits of `shifted`; for x in [-87, 88]. */
template <typename Vector>
struct Powers {
  typedef decltype(Vector{} > Vector{}) Whole;
  Vector shifted, rest;

  explicit Powers(Vector x) {
    constexpr float kTail[] = {5.000000062e-1f, 1.666654249e-1f, 4.166628142e-2f, 8.366650645e-3f,
                               1.394650833e-3f};
    constexpr float kMagic = 12582912.0f;  // adding it rounds to a whole number
    shifted = x * 1.4426950408889634f + kMagic;
    const Vector n = shifted - kMagic;
    const Vector r = (x - n * 0.6931471824645996f) + n * 1.9046542121259336e-09f;
    rest = r + r * r * Horner(r, kTail);
  }
  /* y times 2**n, for y near 1. */
  Vector Scaled(Vector y) const { return (Vector)((Whole)y + ((Whole)shifted << 23)); }
};

/* For x in [-87, 88]. */
template <typename Vector>
inline Vector Exp(Vector x) {
  const Powers<Vector> powers(x);
  return powers.Scaled(1.0f + powers.rest);
}

/* exp(x) - 1, for x in [-87, 88]. */
inline Lanes ExpMinusOne(Lanes x) {
  const Powers<Lanes> powers(x);
  const Lanes power = powers.Scaled(Everywhere(1.0f));
  return power * powers.rest + (power - 1.0f);
}

inline Lanes Tanh(Lanes x) {
  const Lanes end = Everywhere(10.0f);
  Lanes a = Absolute(x);
  a = a > end ? end : a;  // NaN stays
  const Lanes below = ExpMinusOne(-2.0f * a);
  return WithSign(below / (2.0f + below), x);
}

/* log(1 + exp(x)). */
inline Lanes Softplus(Lanes x) {
  constexpr float kTail[] = {3.333331672e-1f,  -2.500081057e-1f, 2.000228693e-1f, -1.662454928e-1f,
                             1.418117962e-1f, -1.312878807e-1f, 1.288172259e-1f, -7.859602996e-2f};
  const Lanes zero = {}, end = Everywhere(87.0f);
  Lanes a = Absolute(x);
  a = a > end ? end : a;  // NaN stays
  const Lanes t = Exp(-a);
  // log(1 + t) is log(1 + f), plus log(2) where t is large, and what that is beyond its first part.
  const Whole32 is_high = t > 0.41421356f;
  const Lanes f = is_high ? t * 0.5f - 0.5f : t;
  const Lanes rest = f * f * (f * Horner(f, kTail) - 0.5f);
  const Lanes low = is_high ? f + (rest - 1.9046542121259336e-09f) : f + rest;
  const Lanes high = is_high ? low + 0.6931471824645996f : low;
  return (x > zero ? x : zero) + (x < -end ? zero : high);
}

/* tanh(log(1 + exp(x))), of which Mish is made. */
inline Lanes TanhOfSoftplus(Lanes x) {
  // With z = exp(-|x|) a quotient of polynomials, whose terms are all positive.
  const Lanes zero = {}, end = Everywhere(87.0f);
  Lanes a = Absolute(x);
  a = a > end ? end : a;  // NaN stays
  const Lanes z = Exp(-a);
  const Lanes above = x > zero ? 1.0f + 2.0f * z : z * (z + 2.0f);
  const Lanes more = x > zero ? 2.0f * z * z : Everywhere(2.0f);
  return x < -end ? zero : above / (above + more);
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

/* The share of a normal distribution that is below x. */
inline Lanes NormalBelow(Lanes x) { return 0.5f * (Erf(x * 0.7071067811865476f) + 1.0f); }

inline Lanes Gelu(Lanes x) { return x * NormalBelow(x); }

}  // namespace graphopt::blocked
