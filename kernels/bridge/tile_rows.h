/*
 * Rows as left operands of products with packed matrices; see tiles.h.
 */
#pragma once

#include "ask.h"
#include "tile_packed.h"

#if GRAPHOPT_TILES

namespace graphopt::tiles {

constexpr int64_t kMostRows = 256;  // that are split at a time
constexpr int64_t kAhead = 8;       // rows that are asked for before they are split

/* A block of rows or columns for each of 32, and what products with them have to be multiplied by. */
struct Panels {
  std::vector<Bits> kept;
  Bits* at = nullptr;
  std::vector<float> factors;
  std::vector<char> are_scaled;
};

/* Where the first `count` rows of operands are, and which of the left ones cannot be split. */
struct Scratch {
  std::vector<Bits> left;
  Panels outer[2];
  int64_t count = 0;
  std::vector<int64_t> faulty;
  const float *left_rows[kMostFactors][kMostRows], *right_rows[kMostFactors][kMostRows];
  float* to[kMostRows];
  std::vector<float*> to_outer;
  // What results of each row have to be multiplied by, and of which blocks of rows not all are one.
  float factors[kMostRows];
  bool are_scaled[kMostRows / kBlock];
};

/* This thread's, without rows. */
inline Scratch& EmptyScratch() {
  static thread_local Scratch scratch;
  scratch.count = 0;
  return scratch;
}

/* Row `r` as left operands of all factors, which lie one behind the other; whether it could be split. */
template <typename F>
bool SplitOne(Scratch* scratch, int64_t r, const PackedMatrix<float>* packed, int64_t factors, Bits* to) {
  const float factor = SplitScaled<F>(
      [&](float scale, typename F::Fault* fault) {
        Bits* at = to;
        for (int64_t f = 0; f < factors; ++f) {
          const Depth<F> depth(packed[f].depth);
          SplitRow<F>(scratch->left_rows[f][r], depth, scale, at, fault);
          at += depth.Size();
        }
      },
      [&](Extent* extent) {
        for (int64_t f = 0; f < factors; ++f) extent->NoteRow(scratch->left_rows[f][r], packed[f].depth);
      });
  scratch->factors[r] = factor;
  if (factor != 1) scratch->are_scaled[r / kBlock] = true;
  return factor == factor;
}

/* Asks for the row that is split kAhead rows later. */
inline void FetchRow(const Scratch& scratch, int64_t r, const PackedMatrix<float>& packed, int64_t f) {
  if (r + kAhead >= scratch.count) return;
  AskForRow(scratch.left_rows[f][r + kAhead], packed.depth);
}

/* What was found in rows that were split, of all factors. */
template <typename F>
class Found {
 public:
  void Note(int64_t, const typename F::Fault& fault) { is_fault_ = is_fault_ || fault.IsThere(); }
  /* Whether all could be split. */
  bool Settle(Scratch*, const PackedMatrix<float>*, int64_t, int64_t, Bits*) const { return !is_fault_; }

 private:
  bool is_fault_ = false;
};

template <>
class Found<Halves> {
 public:
  void Note(int64_t r, const Halves::Fault& fault) {
    is_fault_[r] = is_fault_[r] || fault.IsThere();
    is_seen_[r] = is_seen_[r] || fault.IsSeen();
  }
  /* The same, and splits rows again that want other factors than the usual one. */
  bool Settle(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors, int64_t size,
              Bits* left) const {
    bool is_split = true;
    for (int64_t r = 0; r < scratch->count; ++r) {
      scratch->factors[r] = 1;
      Bits* to = left + r / kBlock * size + TileRow(r % kBlock);
      if (is_fault_[r] || !is_seen_[r])
        is_split = SplitOne<Halves>(scratch, r, packed, factors, to) && is_split;
    }
    return is_split;
  }

 private:
  bool is_fault_[kMostRows] = {}, is_seen_[kMostRows] = {};
};

/* Rows as left operands of all factors; whether all could be split. Their blocks lie `size` numbers apart.
 * The unit multiplies zeros meanwhile: once it has been idle for a few microseconds it is slow to begin. */
template <typename F>
bool SplitRows(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors, int64_t size,
               Bits* left) {
  Found<F> found;
  _tile_zero(4);
  Bits* to = left;
  for (int64_t f = 0; f < factors; ++f) {
    const Depth<F> depth(packed[f].depth);
    for (int64_t r = 0; r < scratch->count; ++r) {
      FetchRow(*scratch, r, packed[f], f);
      typename F::Fault fault;
      SplitRow<F>(scratch->left_rows[f][r], depth, 1 << F::kUsualOfRows,
                  to + r / kBlock * size + TileRow(r % kBlock), &fault);
      found.Note(r, fault);
      _tile_dpbf16ps(0, 4, 6);
    }
    to += depth.Size();
  }
  return found.Settle(scratch, packed, factors, size, left);
}

/* Finds the rows among them that cannot be, and puts zeros in their place: each by itself, as which rows are
 * split together may depend on the number of threads. */
template <typename F>
void PutAside(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors, int64_t size,
              Bits* left) {
  for (int64_t r = 0; r < scratch->count; ++r) {
    Bits* to = left + r / kBlock * size + TileRow(r % kBlock);
    if (SplitOne<F>(scratch, r, packed, factors, to)) continue;
    scratch->faulty.push_back(r);
    scratch->factors[r] = 1;
    for (Bits* at = to; at < to + size; at += kPair) _mm512_storeu_si512(at, _mm512_setzero_si512());
  }
}

/* The rows as left operands; those that cannot be split are zeros, and noted down. */
template <typename F>
const Bits* SplitLeft(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors) {
  int64_t size = 0;
  for (int64_t f = 0; f < factors; ++f) size += Depth<F>(packed[f].depth).Size();
  Bits* left = Aligned(&scratch->left, kMostRows / kBlock * size);
  scratch->faulty.clear();
  std::fill(std::begin(scratch->are_scaled), std::end(scratch->are_scaled), false);
  if (!SplitRows<F>(scratch, packed, factors, size, left))
    PutAside<F>(scratch, packed, factors, size, left);
  return left;
}

}  // namespace graphopt::tiles

#endif
