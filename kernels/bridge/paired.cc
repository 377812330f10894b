/*
 * The products of paired.h, compiled for the processor at hand; see build.py.
 */
#include "paired.h"

#include <cstdlib>
#include <vector>

#include "ask.h"
#include "execute.h"
#include "paired_outer.h"
#include "paired_panels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace graphopt::paired {
namespace {

constexpr int64_t kMostRows = 256;          // that are copied at a time
constexpr int64_t kMostCopied = 128 << 10;  // numbers of them, unless a few rows have more
constexpr int64_t kAhead = 8;               // rows that are asked for before they are copied

int64_t PackedSize(int64_t k, int64_t n) { return Places(k, n).size; }

int64_t ReadSize(int64_t k, int64_t n) { return Places(k, n).sums; }

void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float times, float* packed) {
  for (int64_t j = begin; j < end; j += kWidth)
    PackPaired(b, row_stride, column_stride, k, n, j, times, packed);
}

/* Rows, copied, some at a time; those of a thread. */
class Copied {
 public:
  /* Room for rows of so many numbers, in so many parts. */
  Copied(int64_t depth, int64_t parts)
      : depth_(depth),
        stride_((depth + 2 * parts + kLanes - 1) / kLanes * kLanes + kLanes),
        most_(std::min(kMostRows, std::max<int64_t>(kRows, kMostCopied / stride_))) {
    static thread_local Arena arena;
    at_ = reinterpret_cast<float*>(arena.Reserve(most_ * stride_ * sizeof(float)));
  }

  bool IsFull() const { return count_ == most_; }
  const Row* begin() const { return rows_; }
  const Row* end() const { return rows_ + count_; }
  void Clear() {
    count_ = 0;
    others_.clear();
  }

  void Add(const Part* parts, int64_t count, float* to) {
    Row row;
    row.to = to;
    float* to_row = at_ + count_ * stride_;
    if (CopyRow(parts, count, depth_, 1, to_row, &row) ||
        CopyRow(parts, count, depth_, kForSmall, to_row, &row))
      rows_[count_++] = row;
    else
      others_.push_back(row);
  }

  /* Those that are not copied, to be multiplied one by one. */
  const std::vector<Row>& others() const { return others_; }

 private:
  Row rows_[kMostRows];
  std::vector<Row> others_;
  const int64_t depth_, stride_, most_;
  float* at_;
  int64_t count_ = 0;
};

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

const Products<float>* plain = nullptr;  // by vectors

void Outer(const OuterSum<float>* sums, int64_t count, int64_t segments, int64_t m) {
  AddOuter(*plain, sums, count, segments, m);
}

/* AMD's processors since Zen, and those made after them, with AVX-512: by vectors of 256 bits pairs
 * are slower than multiplications alone. */
bool PaysInPairs() {
#if defined(__x86_64__) && defined(__AVX512F__)
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
    return wanted && *wanted ? std::strcmp(wanted, "0") != 0 : PaysInPairs();
  }();
  return found;
}

const Products<float>& MakeProducts(const Products<float>& vectors) {
  [[maybe_unused]] static const bool is_set = (plain = &vectors);
  static const Products<float> found = {kWidth, false,    true,          PackedSize, ReadSize,
                                        Pack,   Multiply, MultiplyAlike, Outer,      Prepare};
  return found;
}

}  // namespace graphopt::paired
