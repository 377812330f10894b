/*
 * Numbers as sums of smaller ones, for a processor's matrix unit (AMX): which, and how products of them
 * make a product of numbers; see tiles.h.
 *
 * A tile has 16 rows of 64 bytes. The unit adds to a tile of float32 the product of a tile that has 32
 * small numbers a row and one that has 16 pairs of them a row.
 */
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define GRAPHOPT_TILES 1

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace graphopt::tiles {

constexpr int64_t kSide = 16;   // rows of a tile, and float32 in one
constexpr int64_t kTile = 512;  // small numbers of a tile
constexpr int64_t kBlock = 32;  // rows and columns that are computed at a time
constexpr int64_t kStep = 32;   // numbers that a tile multiplies and adds up
constexpr int64_t kPair = 2 * kTile;  // of a block: small numbers of two tiles
constexpr int64_t kLineBytes = 64, kLineFloats = 16;

using Bits = uint16_t;

inline int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline __mmask16 FirstOf(int64_t count) {
  return count >= kSide ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}

using Words = __m512i;  // 16 of 32 bits, or 32 small numbers

/*
 * A number as three bfloat16, of 8 binary digits each. Of nine products of parts the smallest three are
 * below a float32's last digit.
 */
struct Thirds {
  static constexpr int kParts = 3, kProducts = 6;
  static constexpr bool kScales = false;
  static constexpr int kUsualOfRows = 0, kUsualOfColumns = 0;
  // Of the left and of the right number, for each product; the smallest first.
  static constexpr int kLeft[kProducts] = {0, 1, 2, 0, 1, 0};
  static constexpr int kRight[kProducts] = {2, 1, 0, 1, 0, 0};

  /* Parts of numbers, each in the upper half of its word. */
  struct Split {
    Words part[kParts];
  };

  /* What was found in the numbers that were split. Two sums take turns, as each waits for what it was
   * before. */
  class Fault {
   public:
    template <int kTurn>
    void Note(__m512 last) {
      sums_[kTurn] = _mm512_fmadd_ps(last, _mm512_setzero_ps(), sums_[kTurn]);
    }
    /* Any are large enough. */
    bool IsSeen() const { return true; }
    /* Whether one could not be. */
    bool IsThere() const {
      const __m512 sum = _mm512_add_ps(sums_[0], sums_[1]);
      return _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0;
    }

   private:
    __m512 sums_[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};  // zero, or no number
  };

  template <int kTurn>
  static Split SplitOf(__m512 x, __m512, Fault* fault) {
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(0xffff0000);
    auto rounded = [&](__m512 y) {
      return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(y), half), upper);
    };
    Split split;
    split.part[0] = rounded(x);
    const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(split.part[0]));
    split.part[1] = rounded(rest);
    const __m512 last = _mm512_sub_ps(rest, _mm512_castsi512_ps(split.part[1]));
    split.part[2] = _mm512_castps_si512(last);
    fault->Note<kTurn>(last);
    return split;
  }

  /* 32 numbers of a row: a vector for each part. */
  static void SplitAdjacent(__m512 low, __m512 high, float, Words (&parts)[kParts], Fault* fault) {
    const __m512i odd = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19, 17,
        15, 13, 11, 9, 7, 5, 3, 1);
    const Split a = SplitOf<0>(low, low, fault), b = SplitOf<1>(high, high, fault);
    for (int part = 0; part < kParts; ++part)
      parts[part] = _mm512_permutex2var_epi16(a.part[part], odd, b.part[part]);
  }

  /* Adds the product of two tiles to tile kSum: of tiles 4 and 5 with 6 and 7. */
  template <int kSum>
  static void Add() {
    if constexpr (kSum == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kSum == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kSum == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kSum == 3) _tile_dpbf16ps(3, 5, 7);
  }

  static float NumberOf(Bits bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float found;
    std::memcpy(&found, &word, sizeof(found));
    return found;
  }
};

/*
 * A number as two float16, of 11 binary digits each and a sign, so three products of parts are as good.
 * They reach from 2^-24 to 2^16 only: each row of the left operand and each column of the right one is
 * multiplied by a power of two before it is split, the usual one if its largest number then is between 2^3
 * and 2^16, or one that brings that to 2^14. So what is rounded away is below 2^-24 of a number, or below
 * 2^-28 of the largest one in its row or column (where that is above 1e-30), whichever is more: a sum in
 * which the largest number meets a zero may be less exact than float32's.
 */
struct Halves {
  static constexpr int kParts = 2, kProducts = 3;
  static constexpr bool kScales = true;
  static constexpr int kLeft[kProducts] = {1, 0, 0};
  static constexpr int kRight[kProducts] = {0, 0, 1};
  static constexpr int kUsualOfRows = 10, kUsualOfColumns = 12;  // exponents

  struct Split {
    Words part[kParts];
  };

  /* The largest of numbers that are split. What is no number may not be seen; then the unit makes of it
   * what it should be, as it has rows and columns of its own. */
  class Fault {
   public:
    template <int kTurn>
    void Note(__m512 scaled) {
      constexpr int kMostWithoutSign = 0xb;
      most_[kTurn] = _mm512_range_ps(most_[kTurn], scaled, kMostWithoutSign);
    }
    /* Whether one is too large, and whether one is large enough. */
    bool IsThere() const { return IsOneFrom(0x1.fcp15f); }
    bool IsSeen() const { return IsOneFrom(0x1p3f); }

   private:
    bool IsOneFrom(float least) const {
      const __m512 most = _mm512_max_ps(most_[0], most_[1]);
      return _mm512_cmp_ps_mask(most, _mm512_set1_ps(least), _CMP_GE_OQ) != 0;
    }
    __m512 most_[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  };

  /* What 16 numbers are to the first 11 digits, and what is left of them. */
  static __m512 Rounded(__m512* x) {
    const __m512i half = _mm512_set1_epi32(0x1000), upper = _mm512_set1_epi32(0xffffe000);
    const __m512 found = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(*x), half), upper));
    *x = _mm512_sub_ps(*x, found);
    return found;
  }

  static __m256i Packed(__m512 x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  template <int kTurn>
  static __m512 Scaled(__m512 x, float scale, Fault* fault) {
    x = _mm512_mul_ps(x, _mm512_set1_ps(scale));
    fault->Note<kTurn>(x);
    return x;
  }

  template <int kTurn>
  static Split SplitOf(__m512 x, __m512 scale, Fault*) {
    x = _mm512_mul_ps(x, scale);
    const __m512 first = Rounded(&x);
    auto word = [](__m512 y) { return _mm512_slli_epi32(_mm512_cvtepu16_epi32(Packed(y)), 16); };
    return {word(first), word(x)};
  }

  static void SplitAdjacent(__m512 low, __m512 high, float scale, Words (&parts)[kParts], Fault* fault) {
    low = Scaled<0>(low, scale, fault);
    high = Scaled<1>(high, scale, fault);
    auto both = [](__m512 a, __m512 b) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(Packed(a)), Packed(b), 1);
    };
    const __m512 first = Rounded(&low), second = Rounded(&high);
    parts[0] = both(first, second);
    parts[1] = both(low, high);
  }

  /* As compilers and assemblers name it since 2023 only: tdpfp16ps. */
  template <int kSum>
  static void Add() {
    if constexpr (kSum == 0) asm volatile(".byte 0xc4, 0xe2, 0x4b, 0x5c, 0xc4");
    if constexpr (kSum == 1) asm volatile(".byte 0xc4, 0xe2, 0x43, 0x5c, 0xcc");
    if constexpr (kSum == 2) asm volatile(".byte 0xc4, 0xe2, 0x4b, 0x5c, 0xd5");
    if constexpr (kSum == 3) asm volatile(".byte 0xc4, 0xe2, 0x43, 0x5c, 0xdd");
  }

  static float NumberOf(Bits bits) { return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_set1_epi16(bits))); }
};

}  // namespace graphopt::tiles

#endif
