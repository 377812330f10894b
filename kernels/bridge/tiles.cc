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

/* Where the first `count` rows of operands are. */
struct Scratch {
  std::vector<Bits> left, right;
  int64_t count = 0;
  const float *left_rows[kMostFactors][kMostRows], *right_rows[kMostRows];
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

/* Some rows times packed matrices; whether they could be split. `stride` is that of the rows of the result
 * if they lie side by side and nothing is added to what is there, else 0. `is_exact`: tiles were configured
 * for as many rows as there are, not for whole blocks. */
bool MultiplyRows(Scratch* scratch, const PackedMatrix<float>* packed, int64_t factors, int64_t n,
                  bool adds, int64_t stride, bool is_exact, Meanwhile* meanwhile) {
  Operands operands[kMostFactors];
  int64_t size = 0;
  for (int64_t f = 0; f < factors; ++f) {
    const Depth depth(packed[f].depth);
    operands[f] = {nullptr, PanelsAt(packed[f], n), depth};
    size += depth.Size();
  }
  const int64_t count = scratch->count;
  Bits* left = Aligned(&scratch->left, kMostRows / kBlock * size);
  if (!SplitRows(*scratch, packed, factors, size, left)) return false;
  Pending pending;
  for (int64_t j = 0; j < n; j += kBlock) {
    for (int64_t i = 0; i < count; i += kBlock) {
      const Bits* at = left + i / kBlock * size;
      for (int64_t f = 0; f < factors; at += operands[f++].depth.Size()) operands[f].left = at;
      Target target{scratch->to + i, j, std::min(kBlock, count - i), std::min(kBlock, n - j), adds};
      if (is_exact || target.rows % kSide == 0) target.stride = stride;
      MultiplyBlock(operands, factors, target, &pending, meanwhile);
    }
    for (int64_t f = 0; f < factors; ++f) operands[f].right += operands[f].depth.Size();
  }
  pending.HandOut(kBlock);
  return true;
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
  const int64_t stride = is_plain ? blocks->to_stride : 0;
  const bool is_exact = every <= kBlock;
  auto run = [&] {
    if (scratch.count > 0 && !MultiplyRows(&scratch, packed, factors, n, adds, stride, is_exact, meanwhile))
      for (int64_t r = 0; r < scratch.count; ++r) {
        Rows<float> one[kMostFactors];
        for (int64_t f = 0; f < factors; ++f)
          one[f] = {scratch.left_rows[f][r], 0, scratch.to[r], 0, 1};
        plain->multiply(one, 1, packed, factors, n, adds, nullptr);
      }
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

/* c += the outer products of some rows. */
void AddOuter(Scratch* scratch, int64_t m, int64_t n, float* c, int64_t c_stride) {
  const Depth depth(scratch->count);
  const int64_t size = depth.Size();
  Bits* left = Aligned(&scratch->left, Ceil(m, kBlock) * size);
  Bits* right = Aligned(&scratch->right, Ceil(n, kBlock) * size);
  Fault fault;
  auto split = [&](const float* const* rows, int64_t columns,
                   const int (&order)[kProducts], Bits* to) {
    for (int64_t j = 0; j < columns; j += kBlock, to += size)
      SplitPanel([&](int64_t p) { return rows[p] + j; }, depth, std::min(kBlock, columns - j), order,
                 to, &fault);
  };
  split(scratch->left_rows[0], m, kLeftParts, left);
  split(scratch->right_rows, n, kRightParts, right);
  if (fault.IsThere()) {
    for (int64_t p = 0; p < depth.numbers; ++p) {
      const Segment<float> one{scratch->left_rows[0][p], scratch->right_rows[p], 0, 0, 1};
      plain->outer(&one, 1, m, n, c, c_stride);
    }
  } else {
    TurnTiles(left, Ceil(m, kBlock) * size / kTile);
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

void Outer(const Segment<float>* segments, int64_t count, int64_t m, int64_t n, float* c,
           int64_t c_stride) {
  Scratch& scratch = EmptyScratch();
  const Configured configured;
  int64_t total = 0;
  for (int64_t at = 0; at < count; ++at) total += segments[at].rows;
  const int64_t parts = std::max<int64_t>(Ceil(total, kMostRows), 1);
  const int64_t part = Ceil(Ceil(total, parts), kStep) * kStep;
  for (const Segment<float>* segment = segments; segment < segments + count; ++segment)
    for (int64_t r = 0; r < segment->rows; ++r) {
      scratch.left_rows[0][scratch.count] =
          segment->left + RowOf(segment->left_index, r) * segment->left_stride;
      scratch.right_rows[scratch.count] =
          segment->right + RowOf(segment->right_index, r) * segment->right_stride;
      if (++scratch.count == part) AddOuter(&scratch, m, n, c, c_stride);
    }
  if (scratch.count > 0) AddOuter(&scratch, m, n, c, c_stride);
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
    return Products<float>{kPanelColumns, true, PackedSize, ReadSize, Pack, Multiply, Outer};
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
