/*
 * The products of tiles.h with matrices that recurrences and trees pack.
 */
#include "tiles.h"

#include <cstdlib>
#include <cstring>

#include "tile_blocks.h"
#include "tile_probe.h"

#if GRAPHOPT_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace graphopt::tiles {
namespace {

constexpr int64_t kMostRows = 256;  // that are split at a time
constexpr int64_t kAhead = 8;       // rows that are asked for before they are split

const Products<float>* plain = nullptr;  // without tiles

/* Where the vectors' form of a packed matrix ends; a panel's faults come first there. */
int64_t VectorsSize(int64_t k, int64_t n) {
  return Ceil(plain->packed_size(k, n), kLineFloats) * kLineFloats;
}

constexpr int64_t kPanelColumns = 96;  // whole panels of both forms

/* One number for each block of columns, and one for each column. */
int64_t BlocksSize(int64_t n) { return Ceil(Ceil(n, kBlock), kLineFloats) * kLineFloats; }
int64_t FactorsSize(int64_t n) { return BlocksSize(n) + Ceil(n, kBlock) * kBlock; }

template <typename F>
int64_t ReadSize(int64_t k, int64_t n) {
  return Ceil(n, kBlock) * Depth<F>(k).Size() / 2;
}

template <typename F>
int64_t PackedSize(int64_t k, int64_t n) {
  return VectorsSize(k, n) + FactorsSize(n) + ReadSize<F>(k, n) + kLineFloats;
}

/* Of each block of columns: 1 if its products are what they should be, 0 if those of each column have to be
 * multiplied by a factor, no number if it could not be split. */
const float* BlocksAt(const PackedMatrix<float>& packed, int64_t n) {
  return packed.at + VectorsSize(packed.depth, n);
}

const float* FactorsAt(const PackedMatrix<float>& packed, int64_t n) {
  return BlocksAt(packed, n) + BlocksSize(n);
}

/* Where panels begin in a packed matrix: where a line does, or tiles would be loaded in halves. */
Bits* PanelsAt(const PackedMatrix<float>& packed, int64_t n) {
  const auto at = reinterpret_cast<uintptr_t>(BlocksAt(packed, n) + FactorsSize(n));
  return reinterpret_cast<Bits*>(at + -at % kLineBytes);
}

template <typename F>
void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float times, float* packed) {
  plain->pack(b, row_stride, column_stride, k, n, begin, end, times, packed);
  float* blocks = packed + VectorsSize(k, n);
  float* factors = blocks + BlocksSize(n);
  Bits* tiles = PanelsAt({packed, k}, n);
  static thread_local std::vector<float> kept;
  const Depth<F> depth(k);
  const float every = times * kUnscale<F>;
  for (int64_t j = begin; j < end; j += kBlock) {
    const int64_t columns = std::min(kBlock, n - j);
    Bits* to = tiles + j / kBlock * depth.Size();
    const float* from = b + j * column_stride;
    int64_t stride = row_stride;
    if (row_stride != 1 && column_stride != 1) {
      kept.resize(k * kBlock);
      for (int64_t p = 0; p < k; ++p)
        for (int64_t i = 0; i < columns; ++i)
          kept[p * kBlock + i] = from[p * row_stride + i * column_stride];
      from = kept.data();
      stride = kBlock;
    }
    auto row_at = [&](int64_t p) { return from + p * stride; };
    const Scales scales = row_stride == 1 ? SplitTransposed<F>(from, column_stride, columns, depth, to)
                                          : SplitPanel<F, false>(row_at, depth, columns, to);
    for (int64_t i = 0; i < kBlock; ++i) factors[j + i] = every * scales.factors[i];
    float& block = blocks[j / kBlock];
    block = scales.are_usual && every == 1 ? 1 : 0;
    if (scales.is_fault) block = std::numeric_limits<float>::quiet_NaN();
  }
}

inline int64_t RowOf(const int32_t* index, int64_t row) { return index ? index[row] : row; }

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
Scratch& EmptyScratch() {
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
void FetchRow(const Scratch& scratch, int64_t r, const PackedMatrix<float>& packed, int64_t f) {
  if (r + kAhead >= scratch.count) return;
  for (int64_t p = 0; p < packed.depth; p += kLineFloats)
    __builtin_prefetch(scratch.left_rows[f][r + kAhead] + p);
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

/* Where and how results are stored. */
struct Storing {
  bool adds;
  // That of the rows of the result if they lie side by side and nothing is added to what is there, else 0.
  int64_t stride;
  bool is_exact;  // tiles were configured for as many rows as there are, not for whole blocks
};

/* Split rows times packed matrices, of which all have the same factors. */
template <typename F>
void MultiplySplit(const Scratch& scratch, const Bits* left, const PackedMatrix<float>* packed,
                   int64_t factors, int64_t n, const Storing& storing, Meanwhile* meanwhile) {
  Operands<F> operands[kMostFactors];
  int64_t size = 0, rounds = 0;
  for (int64_t f = 0; f < factors; ++f) {
    const Depth<F> depth(packed[f].depth);
    operands[f] = {nullptr, PanelsAt(packed[f], n), depth};
    size += depth.Size();
    rounds += depth.Rounds();
  }
  if (meanwhile) meanwhile->Expect(rounds * Ceil(n, kBlock) * Ceil(scratch.count, kBlock));
  const float *blocks = BlocksAt(*packed, n), *of_columns = FactorsAt(*packed, n);
  Pending pending;
  for (int64_t j = 0; j < n; j += kBlock) {
    for (int64_t i = 0; i < scratch.count; i += kBlock) {
      const Bits* at = left + i / kBlock * size;
      for (int64_t f = 0; f < factors; at += operands[f++].depth.Size()) operands[f].left = at;
      Target target{scratch.to + i, j, std::min(kBlock, scratch.count - i), std::min(kBlock, n - j),
                    storing.adds};
      if (storing.is_exact || target.rows % kSide == 0) target.stride = storing.stride;
      if (blocks[j / kBlock] != 1) target.of_columns = of_columns + j;
      if (F::kScales && scratch.are_scaled[i / kBlock]) target.of_rows = scratch.factors + i;
      MultiplyBlock(operands, factors, target, &pending, meanwhile);
    }
    for (int64_t f = 0; f < factors; ++f) operands[f].right += operands[f].depth.Size();
  }
  pending.HandOut(kBlock);
}

/* The same of a row, as it is. */
void MultiplyByVectors(const Scratch& scratch, int64_t row, const PackedMatrix<float>* packed,
                       int64_t factors, int64_t n, bool adds) {
  Rows<float> one[kMostFactors];
  for (int64_t f = 0; f < factors; ++f) one[f] = {scratch.left_rows[f][row], 0, scratch.to[row], 0, 1};
  plain->multiply(one, 1, packed, factors, n, adds, nullptr);
}

bool HasFault(const PackedMatrix<float>& packed, int64_t n) {
  const float* blocks = BlocksAt(packed, n);
  return std::any_of(blocks, blocks + Ceil(n, kBlock), [](float block) { return block != block; });
}

/* Whether columns have the same factors in both. */
bool HaveSameFactors(const PackedMatrix<float>& one, const PackedMatrix<float>& other, int64_t n) {
  const float *of_one = BlocksAt(one, n), *of_other = BlocksAt(other, n);
  for (int64_t block = 0; block < Ceil(n, kBlock); ++block) {
    const float* factors = FactorsAt(one, n) + block * kBlock;
    if (of_one[block] == 1 && of_other[block] == 1) continue;
    if (!std::equal(factors, factors + kBlock, FactorsAt(other, n) + block * kBlock)) return false;
  }
  return true;
}

template <typename F>
void Multiply(const Rows<float>* blocks, int64_t count, const PackedMatrix<float>* packed,
              int64_t factors, int64_t n, bool adds, Meanwhile* meanwhile);

/* The same of one matrix after the other. */
template <typename F>
void MultiplyApart(const Rows<float>* blocks, int64_t count, const PackedMatrix<float>* packed,
                   int64_t factors, int64_t n, bool adds, Meanwhile* meanwhile) {
  std::vector<Rows<float>> own(count);
  for (int64_t f = 0; f < factors; ++f) {
    for (int64_t i = 0; i < count; ++i) {
      const Rows<float>&first = blocks[i * factors], &from = blocks[i * factors + f];
      own[i] = {from.from, from.from_stride, first.to,      first.to_stride,
                first.rows, from.from_index, first.to_index};
    }
    Multiply<F>(own.data(), count, packed + f, 1, n, adds || f > 0, meanwhile);
  }
}

template <typename F>
void Multiply(const Rows<float>* blocks, int64_t count, const PackedMatrix<float>* packed,
              int64_t factors, int64_t n, bool adds, Meanwhile* meanwhile) {
  const bool is_fault = std::any_of(packed, packed + factors, [&](const PackedMatrix<float>& one) {
    return one.depth == 0 || HasFault(one, n);
  });
  if (is_fault) return plain->multiply(blocks, count, packed, factors, n, adds, nullptr);
  const bool are_alike = std::all_of(packed, packed + factors, [&](const PackedMatrix<float>& one) {
    return HaveSameFactors(*packed, one, n);
  });
  if (!are_alike) return MultiplyApart<F>(blocks, count, packed, factors, n, adds, meanwhile);
  int64_t every = 0;
  for (const Rows<float>* block = blocks; block < blocks + count * factors; block += factors)
    every += block->rows;
  if (every == 0) return;
  Scratch& scratch = EmptyScratch();
  const Configured configured(every);
  const bool is_plain = count == 1 && !blocks->to_index && !adds;
  const Storing storing{adds, is_plain ? blocks->to_stride : 0, every <= kBlock};
  auto run = [&] {
    if (scratch.count == 0) return;
    const Bits* left = SplitLeft<F>(&scratch, packed, factors);
    MultiplySplit<F>(scratch, left, packed, factors, n, storing, meanwhile);
    for (int64_t row : scratch.faulty) MultiplyByVectors(scratch, row, packed, factors, n, adds);
    scratch.count = 0;
  };
  for (const Rows<float>* block = blocks; block < blocks + count * factors; block += factors)
    for (int64_t r = 0; r < block->rows; ++r) {
      for (int64_t f = 0; f < factors; ++f)
        scratch.left_rows[f][scratch.count] =
            block[f].from + RowOf(block[f].from_index, r) * block[f].from_stride;
      scratch.to[scratch.count] = block->to + RowOf(block->to_index, r) * block->to_stride;
      if (++scratch.count == kMostRows) run();
    }
  run();
}

/* Splits rows once for all results. */
template <typename F>
void MultiplyAlike(const Rows<float>* rows, const PackedMatrix<float>* packed, const int64_t* columns,
                   const bool* adds, int64_t count) {
  if (rows->rows == 0) return;
  if (packed->depth == 0) return plain->multiply_alike(rows, packed, columns, adds, count);
  Scratch& scratch = EmptyScratch();
  const Configured configured(rows->rows);
  for (int64_t begin = 0; begin < rows->rows; begin += kMostRows) {
    scratch.count = std::min(kMostRows, rows->rows - begin);
    for (int64_t r = 0; r < scratch.count; ++r)
      scratch.left_rows[0][r] = rows->from + RowOf(rows->from_index, begin + r) * rows->from_stride;
    const Bits* left = SplitLeft<F>(&scratch, packed, 1);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t r = 0; r < scratch.count; ++r)
        scratch.to[r] = rows[i].to + RowOf(rows[i].to_index, begin + r) * rows[i].to_stride;
      const bool is_plain = !rows[i].to_index && !adds[i];
      const Storing storing{adds[i], is_plain ? rows[i].to_stride : 0, rows->rows <= kBlock};
      // Each by itself, as in a call of its own: which of them are joined depends on the number of threads.
      if (HasFault(packed[i], columns[i])) {
        for (int64_t r = 0; r < scratch.count; ++r)
          MultiplyByVectors(scratch, r, packed + i, 1, columns[i], adds[i]);
        continue;
      }
      MultiplySplit<F>(scratch, left, packed + i, 1, columns[i], storing, nullptr);
      for (int64_t r : scratch.faulty)
        MultiplyByVectors(scratch, r, packed + i, 1, columns[i], adds[i]);
    }
  }
}

/* Rows of `columns` numbers, as columns of outer products' operands; whether they could be split. */
template <typename F, bool kAreLeft>
bool SplitOuter(const float* const* rows, int64_t columns, const Depth<F>& depth, Panels* panels) {
  const int64_t count = Ceil(columns, kBlock);
  panels->at = Aligned(&panels->kept, count * depth.Size());
  panels->factors.resize(count * kBlock);
  panels->are_scaled.assign(count, false);
  constexpr float kEvery = kAreLeft ? 1 : kUnscale<F>;
  bool is_fault = false;
  for (int64_t block = 0; block < count; ++block) {
    const int64_t j = block * kBlock;
    const Scales scales = SplitPanel<F, kAreLeft>([&](int64_t p) { return rows[p] + j; }, depth,
                                                  std::min(kBlock, columns - j),
                                                  panels->at + block * depth.Size());
    for (int64_t i = 0; i < kBlock; ++i) panels->factors[j + i] = kEvery * scales.factors[i];
    panels->are_scaled[block] = !scales.are_usual || kEvery != 1;
    is_fault = is_fault || scales.is_fault;
  }
  if (kAreLeft && !is_fault) TurnTiles(panels->at, count * depth.Size() / kTile);
  return !is_fault;
}

/* Adds the outer products of some rows; left operands are split once for all sums. */
template <typename F>
void AddOuter(Scratch* scratch, const OuterSum<float>* sums, int64_t count, int64_t m) {
  const Depth<F> depth(scratch->count);
  Panels &left = scratch->outer[0], &right = scratch->outer[1];
  const bool is_split = SplitOuter<F, true>(scratch->left_rows[0], m, depth, &left);
  for (int64_t sum = 0; sum < count; ++sum) {
    const auto [segments, n, c, c_stride] = sums[sum];
    if (!is_split || !SplitOuter<F, false>(scratch->right_rows[sum], n, depth, &right)) {
      for (int64_t p = 0; p < depth.numbers; ++p) {
        const Segment<float> one{scratch->left_rows[0][p], scratch->right_rows[sum][p], 0, 0, 1};
        const OuterSum<float> alone{&one, n, c, c_stride};
        plain->outer(&alone, 1, 1, m);
      }
      continue;
    }
    scratch->to_outer.clear();
    for (int64_t r = 0; r < m; ++r) scratch->to_outer.push_back(c + r * c_stride);
    Pending pending;
    for (int64_t j = 0; j < n; j += kBlock)
      for (int64_t i = 0; i < m; i += kBlock) {
        const Operands<F> operands{left.at + i / kBlock * depth.Size(), right.at + j / kBlock * depth.Size(),
                                   depth};
        Target target{scratch->to_outer.data() + i, j, std::min(kBlock, m - i), std::min(kBlock, n - j), true};
        if (left.are_scaled[i / kBlock]) target.of_rows = left.factors.data() + i;
        if (right.are_scaled[j / kBlock]) target.of_columns = right.factors.data() + j;
        MultiplyBlock(&operands, 1, target, &pending);
      }
    pending.HandOut(kBlock);
  }
  scratch->count = 0;
}

template <typename F>
void Outer(const OuterSum<float>* sums, int64_t count, int64_t segments, int64_t m) {
  Scratch& scratch = EmptyScratch();
  const Configured configured;
  int64_t total = 0;
  for (int64_t at = 0; at < segments; ++at) total += sums->segments[at].rows;
  const int64_t parts = std::max<int64_t>(Ceil(total, kMostRows), 1);
  const int64_t part = Ceil(Ceil(total, parts), kStep) * kStep;
  for (int64_t at = 0; at < segments; ++at) {
    const Segment<float>& first = sums->segments[at];
    for (int64_t r = 0; r < first.rows; ++r) {
      scratch.left_rows[0][scratch.count] =
          first.left + RowOf(first.left_index, r) * first.left_stride;
      for (int64_t sum = 0; sum < count; ++sum) {
        const Segment<float>& segment = sums[sum].segments[at];
        scratch.right_rows[sum][scratch.count] =
            segment.right + RowOf(segment.right_index, r) * segment.right_stride;
      }
      if (++scratch.count == part) AddOuter<F>(&scratch, sums, count, m);
    }
  }
  if (scratch.count > 0) AddOuter<F>(&scratch, sums, count, m);
}

/* What the processor says of itself. */
struct Features {
  bool has_unit = false, has_halves = false;

  Features() {
    constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24, kWords = 1u << 30, kFloat16 = 1u << 21;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    has_unit = (d & kBfloat16) && (d & kTiles) && (b & kWords);
    has_halves = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kFloat16);
  }
};

/* The system hands the unit out by process; see the kernel's documentation, Using XSTATE features. */
bool Ask() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool IsWanted(const char* what) {
  const char* wanted = std::getenv("GRAPHOPT_AMX");
  return wanted && !std::strcmp(wanted, what);
}

}  // namespace

bool AreThere() {
  static const bool found = !IsWanted("0") && Features().has_unit && Ask();
  return found;
}

bool HaveHalves() {
  static const bool found =
      AreThere() && !IsWanted("bf16") && (Features().has_halves || (IsWanted("fp16") && TryHalves()));
  return found;
}

int UsualFactor() { return HaveHalves() ? 1 / kUnscale<Halves> : 1; }

namespace {

template <typename F>
const Products<float> kProductsOf = {kPanelColumns, true,        PackedSize<F>,    ReadSize<F>,
                                     Pack<F>,       Multiply<F>, MultiplyAlike<F>, Outer<F>};

}  // namespace

const Products<float>& MakeProducts(const Products<float>& vectors) {
  [[maybe_unused]] static const bool is_set = (plain = &vectors);
  return HaveHalves() ? kProductsOf<Halves> : kProductsOf<Thirds>;
}

}  // namespace graphopt::tiles

#else

namespace graphopt::tiles {
bool AreThere() { return false; }
bool HaveHalves() { return false; }
int UsualFactor() { return 1; }
const Products<float>& MakeProducts(const Products<float>& vectors) { return vectors; }
}  // namespace graphopt::tiles

#endif
