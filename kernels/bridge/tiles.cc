/*
 * The products of tiles.h with matrices that recurrences and trees pack.
 */
#include "tiles.h"

#include <cstdlib>
#include <cstring>

#include "tile_blocks.h"

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

int64_t FaultsSize(int64_t n) { return Ceil(Ceil(n, kPanelColumns), kLineFloats) * kLineFloats; }

int64_t ReadSize(int64_t k, int64_t n) { return Ceil(n, kBlock) * Depth(k).Size() / 2; }

int64_t PackedSize(int64_t k, int64_t n) {
  return VectorsSize(k, n) + FaultsSize(n) + ReadSize(k, n) + kLineFloats;
}

/* Where panels begin in a packed matrix: where a line does, or tiles would be loaded in halves. */
Bits* PanelsAt(const PackedMatrix<float>& packed, int64_t n) {
  const int64_t k = packed.depth;
  const auto at = reinterpret_cast<uintptr_t>(packed.at + VectorsSize(k, n) + FaultsSize(n));
  return reinterpret_cast<Bits*>(at + -at % kLineBytes);
}

void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float* packed) {
  plain->pack(b, row_stride, column_stride, k, n, begin, end, packed);
  float* faults = packed + VectorsSize(k, n);
  Bits* tiles = PanelsAt({packed, k}, n);
  static thread_local std::vector<float> kept;
  const Depth depth(k);
  for (int64_t j = begin; j < end; j += kBlock) {
    Fault fault;
    const int64_t columns = std::min(kBlock, n - j);
    Bits* to = tiles + j / kBlock * depth.Size();
    const float* from = b + j * column_stride;
    if (row_stride == 1) {
      SplitRowsAsColumns(from, column_stride, columns, depth, to, &fault);
    } else if (column_stride == 1) {
      SplitPanel([&](int64_t p) { return from + p * row_stride; }, depth, columns, kRightParts, to,
                 &fault);
    } else {
      kept.resize(k * kBlock);
      for (int64_t p = 0; p < k; ++p)
        for (int64_t i = 0; i < columns; ++i)
          kept[p * kBlock + i] = from[p * row_stride + i * column_stride];
      SplitPanel([&](int64_t p) { return kept.data() + p * kBlock; }, depth, columns, kRightParts,
                 to, &fault);
    }
    float& found = faults[j / kPanelColumns];
    if (j % kPanelColumns == 0) found = 0;
    if (fault.IsThere()) found = 1;
  }
}

inline int64_t RowOf(const int32_t* index, int64_t row) { return index ? index[row] : row; }

/* Where the first `count` rows of operands are, and which of the left ones cannot be split. */
struct Scratch {
  std::vector<Bits> left, right;
  int64_t count = 0;
  std::vector<int64_t> faulty;
  const float *left_rows[kMostFactors][kMostRows], *right_rows[kMostFactors][kMostRows];
  float* to[kMostRows];
  std::vector<float*> to_outer;
};

/* This thread's, without rows. */
Scratch& EmptyScratch() {
  static thread_local Scratch scratch;
  scratch.count = 0;
  return scratch;
}

/* Rows as left operands of all factors; whether they could be split. Their blocks lie one behind the
 * other, `size` numbers apart. The unit multiplies zeros meanwhile: once it has been idle for a few
 * microseconds it is slow to begin. */
bool SplitRows(const Scratch& scratch, const PackedMatrix<float>* packed, int64_t factors, int64_t size,
               Bits* left) {
  Fault fault;
  _tile_zero(4);
  for (int64_t f = 0; f < factors; ++f) {
    const float* const* rows = scratch.left_rows[f];
    const Depth depth(packed[f].depth);
    for (int64_t r = 0; r < scratch.count; ++r) {
      if (r + kAhead < scratch.count)
        for (int64_t p = 0; p < depth.numbers; p += kLineFloats)
          __builtin_prefetch(rows[r + kAhead] + p);
      SplitRow(rows[r], depth, left + r / kBlock * size + TileRow(r % kBlock), &fault);
      _tile_dpbf16ps(0, 4, 6);
    }
    left += depth.Size();
  }
  return !fault.IsThere();
}

/* Finds the rows among them that cannot be, and puts zeros in their place: each by itself, as which rows are
 * split together may depend on the number of threads. */
void PutAside(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors, int64_t size,
              Bits* left) {
  for (int64_t r = 0; r < scratch->count; ++r) {
    Fault fault;
    Bits* to = left + r / kBlock * size + TileRow(r % kBlock);
    Bits* at = to;
    for (int64_t f = 0; f < factors; at += Depth(packed[f++].depth).Size())
      SplitRow(scratch->left_rows[f][r], Depth(packed[f].depth), at, &fault);
    if (!fault.IsThere()) continue;
    scratch->faulty.push_back(r);
    for (at = to; at < to + size; at += kPair) _mm512_storeu_si512(at, _mm512_setzero_si512());
  }
}

/* The rows as left operands; those that cannot be split are zeros, and noted down. */
const Bits* SplitLeft(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors) {
  int64_t size = 0;
  for (int64_t f = 0; f < factors; ++f) size += Depth(packed[f].depth).Size();
  Bits* left = Aligned(&scratch->left, kMostRows / kBlock * size);
  scratch->faulty.clear();
  if (!SplitRows(*scratch, packed, factors, size, left))
    PutAside(scratch, packed, factors, size, left);
  return left;
}

/* Where and how results are stored. */
struct Storing {
  bool adds;
  // That of the rows of the result if they lie side by side and nothing is added to what is there, else 0.
  int64_t stride;
  bool is_exact;  // tiles were configured for as many rows as there are, not for whole blocks
};

/* Split rows times packed matrices. */
void MultiplySplit(const Scratch& scratch, const Bits* left, const PackedMatrix<float>* packed,
                   int64_t factors, int64_t n, const Storing& storing, Meanwhile* meanwhile) {
  Operands operands[kMostFactors];
  int64_t size = 0, rounds = 0;
  for (int64_t f = 0; f < factors; ++f) {
    const Depth depth(packed[f].depth);
    operands[f] = {nullptr, PanelsAt(packed[f], n), depth};
    size += depth.Size();
    rounds += depth.Rounds();
  }
  if (meanwhile) meanwhile->Expect(rounds * Ceil(n, kBlock) * Ceil(scratch.count, kBlock));
  Pending pending;
  for (int64_t j = 0; j < n; j += kBlock) {
    for (int64_t i = 0; i < scratch.count; i += kBlock) {
      const Bits* at = left + i / kBlock * size;
      for (int64_t f = 0; f < factors; at += operands[f++].depth.Size()) operands[f].left = at;
      Target target{scratch.to + i, j, std::min(kBlock, scratch.count - i), std::min(kBlock, n - j),
                    storing.adds};
      if (storing.is_exact || target.rows % kSide == 0) target.stride = storing.stride;
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
  const float* faults = packed.at + VectorsSize(packed.depth, n);
  return std::any_of(faults, faults + Ceil(n, kPanelColumns),
                     [](float found) { return found != 0; });
}

void Multiply(const Rows<float>* blocks, int64_t count, const PackedMatrix<float>* packed,
              int64_t factors, int64_t n, bool adds, Meanwhile* meanwhile) {
  const bool is_fault = std::any_of(packed, packed + factors, [&](const PackedMatrix<float>& one) {
    return one.depth == 0 || HasFault(one, n);
  });
  if (is_fault) return plain->multiply(blocks, count, packed, factors, n, adds, nullptr);
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
    const Bits* left = SplitLeft(&scratch, packed, factors);
    MultiplySplit(scratch, left, packed, factors, n, storing, meanwhile);
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
    const Bits* left = SplitLeft(&scratch, packed, 1);
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
      MultiplySplit(scratch, left, packed + i, 1, columns[i], storing, nullptr);
      for (int64_t r : scratch.faulty)
        MultiplyByVectors(scratch, r, packed + i, 1, columns[i], adds[i]);
    }
  }
}

/* Adds the outer products of some rows; left operands are split once for all sums. */
void AddOuter(Scratch* scratch, const OuterSum<float>* sums, int64_t count, int64_t m) {
  const Depth depth(scratch->count);
  const int64_t size = depth.Size(), left_size = Ceil(m, kBlock) * size;
  auto split = [&](const float* const* rows, int64_t columns, const int (&order)[kProducts], Bits* to) {
    Fault fault;
    for (int64_t j = 0; j < columns; j += kBlock, to += size)
      SplitPanel([&](int64_t p) { return rows[p] + j; }, depth, std::min(kBlock, columns - j), order,
                 to, &fault);
    return !fault.IsThere();
  };
  Bits* left = Aligned(&scratch->left, left_size);
  const bool is_split = split(scratch->left_rows[0], m, kLeftParts, left);
  if (is_split) TurnTiles(left, left_size / kTile);
  for (int64_t sum = 0; sum < count; ++sum) {
    const auto [segments, n, c, c_stride] = sums[sum];
    Bits* right = Aligned(&scratch->right, Ceil(n, kBlock) * size);
    if (!is_split || !split(scratch->right_rows[sum], n, kRightParts, right)) {
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
        const Operands operands{left + i / kBlock * size, right + j / kBlock * size, depth};
        MultiplyBlock(&operands, 1,
                      {scratch->to_outer.data() + i, j, std::min(kBlock, m - i), std::min(kBlock, n - j),
                       true},
                      &pending);
      }
    pending.HandOut(kBlock);
  }
  scratch->count = 0;
}

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
      if (++scratch.count == part) AddOuter(&scratch, sums, count, m);
    }
  }
  if (scratch.count > 0) AddOuter(&scratch, sums, count, m);
}

/* The system hands the unit out by process; see the kernel's documentation, Using XSTATE features. */
bool Ask() {
  constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24, kWords = 1u << 30;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & kBfloat16) || !(d & kTiles) || !(b & kWords)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool AreThere() {
  static const bool found = [] {
    const char* wanted = std::getenv("GRAPHOPT_AMX");
    return !(wanted && !std::strcmp(wanted, "0")) && Ask();
  }();
  return found;
}

const Products<float>& MakeProducts(const Products<float>& vectors) {
  static const Products<float> all = [&] {
    plain = &vectors;
    return Products<float>{kPanelColumns, true,     PackedSize,    ReadSize,
                           Pack,          Multiply, MultiplyAlike, Outer};
  }();
  return all;
}

}  // namespace graphopt::tiles

#else

namespace graphopt::tiles {
bool AreThere() { return false; }
const Products<float>& MakeProducts(const Products<float>& vectors) { return vectors; }
}  // namespace graphopt::tiles

#endif
