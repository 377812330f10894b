/*
 * The products of paired.h, compiled for the processor at hand; see build.py.
 */
#include "paired.h"

#include <cstdlib>

#include "ask.h"
#include "paired_panels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace graphopt::paired {
namespace {

constexpr int64_t kAhead = 8;  // rows that are asked for before they are copied

int64_t PackedSize(int64_t k, int64_t n) { return Places(k, n).size; }

int64_t ReadSize(int64_t k, int64_t n) { return Places(k, n).sums; }

void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float times, float* packed) {
  for (int64_t j = begin; j < end; j += kWidth)
    PackPaired(b, row_stride, column_stride, k, n, j, times, packed);
}

void MultiplyCopied(const Copied& copied, const PackedMatrix<float>* packed, int64_t factors, int64_t n,
                    bool adds, Meanwhile* meanwhile) {
  Panel panels[kMostFactors];
  const float* scales[kMostFactors];
  for (int64_t j = 0; j < n; j += kWidth) {
    bool are_paired = true;
    for (int64_t f = 0; f < factors; ++f) {
      const int64_t depth = packed[f].depth;
      const Places places(depth, n);
      const float* at = packed[f].at;
      panels[f] = PanelAt(at, depth, n, j);
      scales[f] = at + places.rows;
      are_paired = are_paired && at[places.panels + j / kWidth] != 0;
    }
    Tile tile{nullptr, panels, factors, j, std::min(n - j, kWidth), adds};
    for (const Row& row : copied.others()) MultiplyOne(row, panels, scales, are_paired, tile);
    for (const Row* row = copied.begin(); row < copied.end(); row += kRows) {
      const int64_t rows = std::min<int64_t>(copied.end() - row, kRows);
      tile.rows = row;
      if (are_paired)
        Pick(rows, VectorsOf(tile.columns))(tile);
      else
        for (int64_t i = 0; i < rows; ++i) MultiplyOne(row[i], panels, scales, false, tile);
      if (meanwhile) meanwhile->RunErrand();
    }
  }
}

/* Asks for a row that is in no stream. */
void Fetch(const Rows<float>& rows, int64_t r, int64_t depth) {
  if (!rows.from_index || r >= rows.rows) return;
  AskForRow(rows.from + rows.from_index[r] * rows.from_stride, depth);
}

void Multiply(const Rows<float>* blocks, int64_t count, const PackedMatrix<float>* packed,
              int64_t factors, int64_t n, bool adds, Meanwhile* meanwhile) {
  int64_t depth = 0;
  for (int64_t f = 0; f < factors; ++f) depth += packed[f].depth;
  Copied copied(depth, factors);
  auto run = [&] {
    MultiplyCopied(copied, packed, factors, n, adds, meanwhile);
    copied.Clear();
  };
  for (const Rows<float>* block = blocks; block < blocks + count * factors; block += factors)
    for (int64_t r = 0; r < block->rows; ++r) {
      Part parts[kMostFactors];
      for (int64_t f = 0; f < factors; ++f) {
        parts[f] = {block[f].from + RowOf(block[f].from_index, r) * block[f].from_stride,
                    packed[f].at + Places(packed[f].depth, n).rows, packed[f].depth};
        Fetch(block[f], r + kAhead, packed[f].depth);
      }
      copied.Add(parts, factors, block->to + RowOf(block->to_index, r) * block->to_stride);
      if (copied.IsFull()) run();
    }
  run();
}

void MultiplyAlike(const Rows<float>* rows, const PackedMatrix<float>* packed, const int64_t* columns,
                   const bool* adds, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    Multiply(rows + i, 1, packed + i, 1, columns[i], adds[i], nullptr);
}

/* AMD's processors since Zen, and those made after them. */
bool HasPortsForSums() {
#if defined(__x86_64__) && defined(__AVX2__)
  constexpr unsigned kZen = 0x17;
  unsigned most, vendor[3], version, b, c, d;
  if (!__get_cpuid(0, &most, &vendor[0], &vendor[2], &vendor[1])) return false;
  const char* name = reinterpret_cast<const char*>(vendor);
  if (std::strncmp(name, "AuthenticAMD", 12) && std::strncmp(name, "HygonGenuine", 12)) return false;
  if (!__get_cpuid(1, &version, &b, &c, &d)) return false;
  const unsigned family = version >> 8 & 15;
  return (family == 15 ? family + (version >> 20 & 255) : family) >= kZen;
#else
  return false;
#endif
}

}  // namespace

bool ArePaired() {
  static const bool found = [] {
    const char* wanted = std::getenv("GRAPHOPT_PAIRED");
    return wanted && *wanted ? std::strcmp(wanted, "0") != 0 : HasPortsForSums();
  }();
  return found;
}

const Products<float>& MakeProducts(const Products<float>& vectors) {
  static const Products<float> found = {kWidth, false,    true,          PackedSize,    ReadSize,
                                        Pack,   Multiply, MultiplyAlike, vectors.outer, Prepare};
  return found;
}

}  // namespace graphopt::paired
