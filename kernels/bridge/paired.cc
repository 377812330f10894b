/*
 * The products of paired.h, compiled for the processor at hand; see build.py.
 */
#include "paired.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "ask.h"
#include "execute.h"
#include "paired_tile.h"
#include "panels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace graphopt::paired {
namespace {

constexpr int64_t kMostRows = 256;          // that are copied at a time
constexpr int64_t kMostCopied = 128 << 10;  // numbers of them, unless a few rows have more
constexpr int64_t kAhead = 8;               // rows that are asked for before they are copied

/* A packed matrix: panels; of each column what its pairs' products add up to, negative, what it was
 * multiplied by, and one over that; one over what each row was multiplied by; whether each panel's numbers
 * could be. */
struct Places {
  int64_t sums, scales, inverses, rows, panels, size;

  Places(int64_t depth, int64_t n) {
    const int64_t columns = (n + kLanes - 1) / kLanes * kLanes;
    sums = Padded(depth) * columns;
    scales = sums + columns;
    inverses = scales + columns;
    rows = inverses + columns;
    panels = rows + depth;
    size = panels + (n + kWidth - 1) / kWidth;
  }
};

int64_t VectorsOf(int64_t columns) { return (std::min(columns, kWidth) + kLanes - 1) / kLanes; }

int64_t PackedSize(int64_t k, int64_t n) { return Places(k, n).size; }

int64_t ReadSize(int64_t k, int64_t n) { return Places(k, n).sums; }

float SquaresOf(const float* numbers, int64_t stride, int64_t count) {
  Lanes sums = {};
  int64_t j = 0;
  for (; stride == 1 && j + kLanes <= count; j += kLanes)
    sums += LoadLanes(numbers + j) * LoadLanes(numbers + j);
  float sum = SumOf(sums);
  for (; j < count; ++j) sum += numbers[j * stride] * numbers[j * stride];
  return sum;
}

/* Notes what numbers of each row of the matrix are multiplied by: rows of one size lose least. */
void Prepare(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
             float* packed) {
  float* rows = packed + Places(k, n).rows;
  std::fill(rows, rows + k, 0.0f);
  if (row_stride == 1) {
    for (int64_t j = 0; j < n; ++j, b += column_stride)
      for (int64_t p = 0; p < k; ++p) rows[p] += b[p] * b[p];
  } else {
    for (int64_t p = 0; p < k; ++p, b += row_stride) rows[p] = SquaresOf(b, column_stride, n);
  }
  for (int64_t p = 0; p < k; ++p) {
    const int shift = rows[p] <= std::numeric_limits<float>::max() ? ShiftFor(rows[p], n) : 0;
    rows[p] = PowerOfTwo(-std::clamp(shift, -kMostShift, kMostShift));
  }
}

/* Multiplies a panel's numbers by powers of two and sums up the products of pairs; whether that went well. */
bool Pair(float* panel, int64_t depth, int64_t width, const float* rows, float times, float* sums,
          float* scales, float* inverses) {
  for (int64_t p = 0; p < depth; ++p)
    for (int64_t j = 0; j < width; ++j) panel[p * width + j] *= 1 / rows[p];
  float sizes[kWidth] = {};
  std::fill(sums, sums + width, 0.0f);
  for (int64_t p = 0; p < depth; ++p)
    for (int64_t j = 0; j < width; ++j) {
      const float number = panel[p * width + j];
      sums[j] += number * number;
      sizes[j] += std::fabs(number);  // squares may be zero where this is not
    }
  bool is_paired = true;
  for (int64_t j = 0; j < width; ++j) {
    const int shift = sizes[j] == 0 ? kMostOfColumn : ShiftFor(sums[j], depth);
    is_paired = is_paired && IsWithin(shift, kMostOfColumn);
    scales[j] = PowerOfTwo(IsWithin(shift, kMostOfColumn) ? shift : 0);
    inverses[j] = times / scales[j];
    sums[j] = 0;
  }
  for (int64_t p = 0; p < depth; ++p)
    for (int64_t j = 0; j < width; ++j) panel[p * width + j] *= scales[j];
  for (int64_t p = 0; p < depth; p += 3)
    for (int64_t j = 0; j < width; ++j)
      sums[j] -= panel[p * width + j] * panel[(p + 1) * width + j];
  for (int64_t j = 0; j < width; ++j) scales[j] /= times;
  return is_paired;
}

void Pack(const float* b, int64_t row_stride, int64_t column_stride, int64_t k, int64_t n,
          int64_t begin, int64_t end, float times, float* packed) {
  const Places places(k, n);
  for (int64_t j = begin; j < end; j += kWidth) {
    const int64_t columns = std::min(n - j, kWidth), width = VectorsOf(columns) * kLanes;
    float* panel = packed + Padded(k) * j;
    PackPanel(b + j * column_stride, row_stride, column_stride, k, columns, panel, width);
    std::fill(panel + k * width, panel + Padded(k) * width, 0.0f);
    packed[places.panels + j / kWidth] =
        Pair(panel, k, width, packed + places.rows, times, packed + places.sums + j,
             packed + places.scales + j, packed + places.inverses + j);
  }
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

bool AreZero(const float* numbers, int64_t count) {
  return std::all_of(numbers, numbers + count, [](float number) { return number == 0; });
}

/* A row times a panel's numbers as they were; zero times all of them is zero if `are_finite`. */
void MultiplyOne(const Row& row, const Panel* panels, const float* const* scales, bool are_finite,
                 const Tile& tile) {
  float sums[kWidth] = {};
  const int64_t width = VectorsOf(tile.columns) * kLanes;
  for (int64_t f = 0; f < tile.count; ++f) {
    if (are_finite && AreZero(row.from[f], panels[f].depth)) continue;
    for (int64_t p = 0; p < panels[f].depth; ++p)
      for (int64_t j = 0; j < width; ++j)
        sums[j] += row.from[f][p] * (panels[f].right[p * width + j] * panels[f].inverses[j] * scales[f][p]);
  }
  HandOut(row, tile, sums);
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
      panels[f] = {at + Padded(depth) * j, at + places.sums + j, at + places.scales + j,
                   at + places.inverses + j, depth, depth / 3, depth % 3};
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
