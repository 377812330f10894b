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

constexpr int64_t kStrips = 8;      // of rows that are split at a time
constexpr int64_t kOuterSteps = 8;  // of rows of outer products that are split at a time
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
uintptr_t PanelsAt(const float* packed, int64_t k, int64_t n) {
  const auto at = reinterpret_cast<uintptr_t>(packed + VectorsSize(k, n) + FaultsSize(n));
  return at + -at % kLineBytes;
}

void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float* packed) {
  plain->pack(b, row_stride, column_stride, k, n, begin, end, packed);
  float* faults = packed + VectorsSize(k, n);
  auto tiles = reinterpret_cast<Bits*>(PanelsAt(packed, k, n));
  static thread_local std::vector<float> kept;
  const Depth depth(k);
  for (int64_t j = begin; j < end; j += kBlock) {
    __m512 fault = _mm512_setzero_ps();
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
    if (IsFault(fault)) found = 1;
  }
}

inline int64_t RowOf(const int32_t* index, int64_t row) { return index ? index[row] : row; }

struct Scratch {
  std::vector<Bits> left, right;
  std::vector<const float*> left_rows, right_rows;
  std::vector<float*> to;
};

/* This thread's, without rows. */
Scratch& EmptyScratch() {
  static thread_local Scratch scratch;
  scratch.left_rows.clear();
  scratch.right_rows.clear();
  scratch.to.clear();
  return scratch;
}

/* Some rows times a packed matrix; whether they could be split. */
bool MultiplyRows(Scratch* scratch, const Bits* panels, int64_t k, int64_t n, bool adds) {
  const float* const* rows = scratch->left_rows.data();
  const int64_t count = scratch->left_rows.size();
  const Depth depth(k);
  const int64_t size = depth.Size();
  Bits* left = Aligned(&scratch->left, kStrips * size);
  __m512 fault = _mm512_setzero_ps();
  for (int64_t r = 0; r < count; ++r) {
    if (r + kAhead < count)
      for (int64_t p = 0; p < k; p += kLineFloats) __builtin_prefetch(rows[r + kAhead] + p);
    SplitRow(rows[r], depth, left + r / kBlock * size + TileRow(r % kBlock), &fault);
  }
  if (IsFault(fault)) return false;
  Pending pending;
  for (int64_t j = 0; j < n; j += kBlock, panels += size)
    for (int64_t i = 0; i < count; i += kBlock)
      MultiplyBlock(left + i / kBlock * size, panels, depth,
                    {scratch->to.data() + i, j, std::min(kBlock, count - i),
                     std::min(kBlock, n - j), adds},
                    &pending);
  pending.HandOut(kBlock);
  return true;
}

void Multiply(const Rows<float>* blocks, int64_t count, const float* packed, int64_t k, int64_t n,
              bool adds) {
  const float* faults = packed + VectorsSize(k, n);
  auto panels = reinterpret_cast<const Bits*>(PanelsAt(packed, k, n));
  const bool is_fault = std::any_of(faults, faults + Ceil(n, kPanelColumns),
                                    [](float found) { return found != 0; });
  if (is_fault || k == 0) return plain->multiply(blocks, count, packed, k, n, adds);
  Scratch& scratch = EmptyScratch();
  const Configured configured;
  auto run = [&] {
    const size_t rows = scratch.to.size();
    if (rows > 0 && !MultiplyRows(&scratch, panels, k, n, adds))
      for (size_t r = 0; r < rows; ++r) {
        const Rows<float> one{scratch.left_rows[r], 0, scratch.to[r], 0, 1};
        plain->multiply(&one, 1, packed, k, n, adds);
      }
    scratch.left_rows.clear();
    scratch.to.clear();
  };
  for (const Rows<float>* block = blocks; block < blocks + count; ++block)
    for (int64_t r = 0; r < block->rows; ++r) {
      scratch.left_rows.push_back(block->from + RowOf(block->from_index, r) * block->from_stride);
      scratch.to.push_back(block->to + RowOf(block->to_index, r) * block->to_stride);
      if (scratch.to.size() == kStrips * kBlock) run();
    }
  run();
}

/* c += the outer products of some rows. */
void AddOuter(Scratch* scratch, int64_t m, int64_t n, float* c, int64_t c_stride) {
  const Depth depth(scratch->left_rows.size());
  const int64_t size = depth.Size();
  Bits* left = Aligned(&scratch->left, Ceil(m, kBlock) * size);
  Bits* right = Aligned(&scratch->right, Ceil(n, kBlock) * size);
  __m512 fault = _mm512_setzero_ps();
  auto split = [&](const std::vector<const float*>& rows, int64_t columns,
                   const int (&order)[kProducts], Bits* to) {
    for (int64_t j = 0; j < columns; j += kBlock, to += size)
      SplitPanel([&](int64_t p) { return rows[p] + j; }, depth, std::min(kBlock, columns - j), order,
                 to, &fault);
  };
  split(scratch->left_rows, m, kLeftParts, left);
  split(scratch->right_rows, n, kRightParts, right);
  if (IsFault(fault)) {
    for (int64_t p = 0; p < depth.numbers; ++p) {
      const Segment<float> one{scratch->left_rows[p], scratch->right_rows[p], 0, 0, 1};
      plain->outer(&one, 1, m, n, c, c_stride);
    }
  } else {
    TurnTiles(left, Ceil(m, kBlock) * size / kTile);
    scratch->to.clear();
    for (int64_t r = 0; r < m; ++r) scratch->to.push_back(c + r * c_stride);
    Pending pending;
    for (int64_t j = 0; j < n; j += kBlock)
      for (int64_t i = 0; i < m; i += kBlock)
        MultiplyBlock(left + i / kBlock * size, right + j / kBlock * size, depth,
                      {scratch->to.data() + i, j, std::min(kBlock, m - i), std::min(kBlock, n - j),
                       true},
                      &pending);
    pending.HandOut(kBlock);
    scratch->to.clear();
  }
  scratch->left_rows.clear();
  scratch->right_rows.clear();
}

void Outer(const Segment<float>* segments, int64_t count, int64_t m, int64_t n, float* c,
           int64_t c_stride) {
  Scratch& scratch = EmptyScratch();
  const Configured configured;
  int64_t total = 0;
  for (int64_t at = 0; at < count; ++at) total += segments[at].rows;
  const int64_t parts = std::max<int64_t>(Ceil(total, kOuterSteps * kStep), 1);
  const size_t part = Ceil(Ceil(total, parts), kStep) * kStep;
  for (const Segment<float>* segment = segments; segment < segments + count; ++segment)
    for (int64_t r = 0; r < segment->rows; ++r) {
      scratch.left_rows.push_back(segment->left +
                                  RowOf(segment->left_index, r) * segment->left_stride);
      scratch.right_rows.push_back(segment->right +
                                   RowOf(segment->right_index, r) * segment->right_stride);
      if (scratch.left_rows.size() == part) AddOuter(&scratch, m, n, c, c_stride);
    }
  if (!scratch.left_rows.empty()) AddOuter(&scratch, m, n, c, c_stride);
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
    return Products<float>{kPanelColumns, PackedSize, ReadSize, Pack, Multiply, Outer};
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
