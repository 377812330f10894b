/*
 * The products of dense.h in pairs (paired.h).
 *
 * All threads together copy a part of the left operand, which then stays in the cache they share. A task is
 * a few panels of the right operand: it packs them, and they stay in its own cache while rows pass by.
 */
#include <atomic>
#include <vector>

#include "ask.h"
#include "dense.h"
#include "execute.h"
#include "paired_panels.h"

namespace graphopt::dense {
namespace {

using namespace paired;

constexpr int64_t kMostDepth = 768;        // of a part, and up to two more, to begin the others with a three
constexpr int64_t kMostCopied = 1 << 20;   // numbers of the left operand at a time
constexpr int64_t kMostPanels = 4;         // of a task
constexpr int64_t kTasksEach = 4;          // that a thread should find
constexpr int64_t kLeastRows = 256;        // of a task, since each packs its panels
constexpr int64_t kTurned = 4 * kRows;     // rows of a transposed left operand that are turned at a time

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The depth, cut into parts of whole threes, each a packed matrix of its own. */
struct Parts {
  int64_t depth, units, count;

  Parts(int64_t depth, int64_t units)
      : depth(depth), units(units), count(std::max<int64_t>(1, Ceil(depth, kMostDepth))) {}
  int64_t At(int64_t part) const { return part == count ? depth : depth * part / count / 3 * 3; }
  int64_t DepthOf(int64_t part) const { return At(part + 1) - At(part); }
  int64_t MostDepth() const {
    int64_t most = 0;
    for (int64_t part = 0; part < count; ++part) most = std::max(most, DepthOf(part));
    return most;
  }
  int64_t SizeOf(int64_t part) const {
    return Ceil(Places(DepthOf(part), units).size, kLanes) * kLanes;
  }
  /* Where a packed part begins. */
  int64_t Place(int64_t part) const {
    int64_t place = 0;
    for (int64_t before = 0; before < part; ++before) place += SizeOf(before);
    return place;
  }
};

/* An operand as rows of the depth. */
struct ByDepth {
  const float* at;
  int64_t row_stride, column_stride, columns;

  ByDepth(const Matrix& matrix, bool is_by_depth, int64_t columns)
      : at(matrix.at),
        row_stride(is_by_depth ? matrix.stride : 1),
        column_stride(is_by_depth ? 1 : matrix.stride),
        columns(columns) {}
  const float* Row(int64_t p) const { return at + p * row_stride; }
};

/* Rows of a tile; by number those that are zero, as gradients of rectifiers are, and those that cannot be
 * copied. */
struct Strip {
  Row rows[kRows];
  int64_t count = 0;
  std::vector<int64_t> zeros, others;
};

/* How a part's product with some of its rows is shared among threads. */
struct Plan {
  int64_t panels, team, teams;    // panels of a task
  int64_t strips, chunk, chunks;  // strips of a task

  Plan(int64_t rows, int64_t units, int threads)
      : panels(Ceil(units, kWidth)), strips(Ceil(rows, kRows)) {
    const int64_t wanted = threads > 1 ? kTasksEach * threads : 1;
    team = std::clamp<int64_t>(panels / wanted, 1, kMostPanels);
    teams = Ceil(panels, team);
    chunks = std::clamp<int64_t>(Ceil(wanted, teams), 1, std::max<int64_t>(1, rows / kLeastRows));
    chunk = Ceil(strips, chunks);
    chunks = Ceil(strips, chunk);
  }
  int64_t tasks() const { return teams * chunks; }
};

/* Hands out numbers from 0 on to threads that ask. */
class Numbers {
 public:
  template <typename Do>
  void ForEach(int64_t end, const Do& what) {
    for (int64_t next; (next = next_.fetch_add(1, std::memory_order_relaxed)) < end;) what(next);
  }
  void Reset() { next_ = 0; }

 private:
  std::atomic<int64_t> next_{0};
};

/* Computes a product; all threads call Run. */
class Multiplier {
 public:
  Multiplier(const Product& product, int threads)
      : product_(product),
        parts_(product.depth, product.units),
        stride_(Ceil(parts_.MostDepth() + 2, kLanes) * kLanes + kLanes),
        slice_(Ceil(std::max(Ceil(parts_.MostDepth(), 2 * threads), kLeastSlice), kLanes) * kLanes),
        threads_(threads) {
    const int64_t most = std::max<int64_t>(kRows, kMostCopied / stride_ / kRows * kRows);
    const int64_t chunks = std::max<int64_t>(1, Ceil(product.rows, most));
    chunk_ = Ceil(Ceil(product.rows, chunks), kRows) * kRows;
    static thread_local Arena arena;
    at_ = reinterpret_cast<float*>(
        arena.Reserve((chunk_ * stride_ + 2 * parts_.MostDepth() + product.rows + product.units) * sizeof(float)));
    scales_ = at_ + chunk_ * stride_;
    of_left_ = scales_ + 2 * parts_.MostDepth();
    of_right_ = of_left_ + product.rows;
    strips_.resize(chunk_ / kRows);
  }

  void Run() {
    for (int64_t part = 0; part < parts_.count; ++part)
      for (int64_t first = 0; first < product_.rows; first += chunk_) {
#pragma omp barrier
#pragma omp single
        Begin(part, first);
        if (first == 0 && !product_.packed) {
          Weigh();
          slices_.ForEach(Ceil(depth_, slice_), [&](int64_t slice) { Note(slice * slice_); });
#pragma omp barrier
        }
        blocks_.ForEach(Ceil(rows_, kTurned), [&](int64_t block) { Copy(block * kTurned); });
#pragma omp barrier
        const Plan plan(rows_, product_.units, threads_);
        tasks_.ForEach(plan.tasks(), [&](int64_t task) { Compute(plan, task); });
      }
  }

 private:
  static constexpr int64_t kLeastSlice = 64, kColumns = 256;

  void Begin(int64_t part, int64_t first) {
    part_ = part;
    first_ = first;
    depth_ = parts_.DepthOf(part);
    rows_ = std::min(chunk_, product_.rows - first);
    packed_ = product_.packed ? product_.packed + parts_.Place(part) : nullptr;
    of_rows_ = packed_ ? packed_ + Places(depth_, product_.units).rows : scales_;
    columns_.Reset();
    slices_.Reset();
    blocks_.Reset();
    tasks_.Reset();
  }

  ByDepth Left() const { return {product_.left, product_.left.is_transposed, product_.rows}; }
  ByDepth Right() const { return {product_.right, !product_.right.is_transposed, product_.units}; }

  /* Notes what columns of both operands are multiplied by while numbers of the depth are compared. */
  void Weigh() {
    const int64_t at = parts_.At(part_), of_left = Ceil(product_.rows, kColumns);
    const auto note = [&](const ByDepth& from, int64_t begin, float* largest) {
      NoteLargest(from.Row(at), from.row_stride, from.column_stride, depth_, begin,
                  std::min(begin + kColumns, from.columns), largest);
    };
    columns_.ForEach(of_left + Ceil(product_.units, kColumns), [&](int64_t some) {
      if (some < of_left)
        note(Left(), some * kColumns, of_left_);
      else
        note(Right(), (some - of_left) * kColumns, of_right_);
    });
#pragma omp barrier
#pragma omp single
    {
      WeighColumns(of_left_, product_.rows, of_left_);
      WeighColumns(of_right_, product_.units, of_right_);
    }
  }

  /* Notes what numbers of the depth are multiplied by so that both operands' are of one size. */
  void Note(int64_t begin) {
    const int64_t end = std::min(begin + slice_, depth_), at = parts_.At(part_);
    float* others = scales_ + parts_.MostDepth();
    const ByDepth left = Left(), right = Right();
    SumSquares(left.Row(at), left.row_stride, left.column_stride, begin, end, left.columns, of_left_,
               others);
    SumSquares(right.Row(at), right.row_stride, right.column_stride, begin, end, right.columns,
               of_right_, scales_);
    for (int64_t p = begin; p < end; ++p)
      scales_[p] = InverseOf(
          (ShiftOfRow(scales_[p], right.columns) - ShiftOfRow(others[p], left.columns)) / 2);
  }

  /* Some rows of the chunk. */
  void Copy(int64_t begin) {
    const int64_t end = std::min(begin + kTurned, rows_), at = parts_.At(part_);
    const Matrix& left = product_.left;
    const float* from = left.at + (first_ + begin) * left.stride + at;
    int64_t from_stride = left.stride;
    if (left.is_transposed) {
      static thread_local std::vector<float> turned;
      turned.resize(kTurned * parts_.MostDepth());  // which may be two more than kMostDepth
      blocked::Transpose(left.at + at * left.stride + first_ + begin, left.stride, depth_, end - begin,
                         turned.data(), depth_);
      from = turned.data();
      from_stride = depth_;
    }
    for (int64_t row = begin; row < end; ++row, from += from_stride) {
      Strip& strip = strips_[row / kRows];
      if (row % kRows == 0) {
        strip.count = 0;
        strip.zeros.clear();
        strip.others.clear();
      }
      Row copied;
      copied.to = product_.to + (first_ + row) * product_.to_stride;
      const Part numbers{from, of_rows_, depth_};
      float* to = at_ + row * stride_;
      if (CopyRow(&numbers, 1, depth_, 1, to, &copied) ||
          CopyRow(&numbers, 1, depth_, kForSmall, to, &copied))
        strip.rows[strip.count++] = copied;
      else
        (AreZero(from, depth_) ? strip.zeros : strip.others).push_back(first_ + row);
    }
  }

  void Compute(const Plan& plan, int64_t task) {
    const int64_t begin = task / plan.chunks * plan.team;
    const int64_t count = std::min(plan.team, plan.panels - begin);
    Panel panels[kMostPanels];
    bool are_paired[kMostPanels];
    for (int64_t i = 0; i < count; ++i) are_paired[i] = Take((begin + i) * kWidth, i, &panels[i]);
    const int64_t first = task % plan.chunks * plan.chunk;
    for (int64_t s = first; s < std::min(first + plan.chunk, plan.strips); ++s)
      for (int64_t i = 0; i < count; ++i) Multiply(strips_[s], panels[i], are_paired[i], (begin + i) * kWidth);
  }

  /* Packs a task's panel number `i`, of columns from `column` on; whether its numbers can be paired. */
  bool Take(int64_t column, int64_t i, Panel* panel) {
    if (packed_) {
      *panel = PanelAt(packed_, depth_, product_.units, column);
      return true;
    }
    static thread_local std::vector<float> kept;
    constexpr int64_t kRoom = (kMostDepth + 4 + 3) * kWidth;  // a panel, and what is noted of columns
    kept.resize(kMostPanels * kRoom + kLanes);
    float* to = kept.data() + i * kRoom;
    to += -reinterpret_cast<uintptr_t>(to) % kLine / sizeof(float);
    float* of_columns = to + Padded(depth_) * kWidth;
    *panel = {to, of_columns, of_columns + kWidth, of_columns + 2 * kWidth, depth_, depth_ / 3, depth_ % 3};
    const ByDepth right = Right();
    float *scales = of_columns + kWidth, *inverses = scales + kWidth;
    const int64_t columns = std::min(kWidth, product_.units - column);
    const bool is_paired =
        PackPaired(right.Row(parts_.At(part_)) + column * right.column_stride, right.row_stride,
                   right.column_stride, depth_, columns, scales_, 1, to, of_columns, scales, inverses);
    if (is_paired) SilenceZeros(to, depth_, VectorsOf(columns) * kLanes, inverses);
    return is_paired;
  }

  void Multiply(const Strip& strip, const Panel& panel, bool are_paired, int64_t column) {
    const bool ends = part_ + 1 == parts_.count;
    Tile tile{strip.rows, &panel, 1, column, std::min(product_.units - column, kWidth),
              part_ > 0 || product_.adds};
    if (ends && product_.bias) tile.bias = product_.bias + column;
    if (ends) tile.activation = product_.activation;
    for (int64_t i = 0; i < strip.count; ++i) AskForRow<1>(strip.rows[i].to + column, tile.columns);
    if (are_paired && strip.count > 0) Pick(strip.count, VectorsOf(tile.columns))(tile);
    for (int64_t i = 0; i < strip.count && !are_paired; ++i)
      MultiplyAlone((strip.rows[i].to - product_.to) / product_.to_stride, panel, false, tile);
    for (int64_t row : strip.others) MultiplyAlone(row, panel, are_paired, tile);
    for (int64_t row : strip.zeros)
      if (are_paired)
        HandOutZeros(row, tile);
      else
        MultiplyAlone(row, panel, false, tile);
  }

  /* What zeros make with numbers that are finite. */
  void HandOutZeros(int64_t number, const Tile& tile) {
    static constexpr float kZeros[kWidth] = {};
    Row row;
    row.to = product_.to + number * product_.to_stride;
    HandOut(row, tile, kZeros);
  }

  /* Number by number. */
  void MultiplyAlone(int64_t number, const Panel& panel, bool are_paired, const Tile& tile) {
    const ByDepth left = Left();
    const float* from = left.Row(parts_.At(part_)) + number * left.column_stride;
    std::vector<float> gathered;
    for (int64_t p = 0; p < depth_ && left.row_stride != 1; ++p)
      gathered.push_back(from[p * left.row_stride]);
    Row row;
    row.from[0] = gathered.empty() ? from : gathered.data();
    row.to = product_.to + number * product_.to_stride;
    MultiplyOne(row, &panel, &of_rows_, are_paired, tile);
  }

  const Product& product_;
  const Parts parts_;
  const int64_t stride_, slice_;  // numbers from one copied row to the next; of the depth that one thread notes
  const int threads_;
  int64_t chunk_;  // rows that are copied at a time
  float *at_, *scales_, *of_left_, *of_right_;
  std::vector<Strip> strips_;
  Numbers columns_, slices_, blocks_, tasks_;
  // Of the part and the rows that are being multiplied.
  int64_t part_ = 0, first_ = 0, depth_ = 0, rows_ = 0;
  const float *packed_ = nullptr, *of_rows_ = nullptr;
};

bool MultiplyPaired(const Product& product, int threads) {
  Multiplier multiplier(product, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
  multiplier.Run();
  return true;
}

bool Pack(const Matrix& right, int64_t depth, int64_t units, float* packed) {
  const Parts parts(depth, units);
  const ByDepth by_depth(right, !right.is_transposed, units);
  bool is_paired = true;
  for (int64_t part = 0; part < parts.count; ++part, packed += parts.SizeOf(part - 1)) {
    const int64_t k = parts.DepthOf(part);
    const float* from = by_depth.Row(parts.At(part));
    Prepare(from, by_depth.row_stride, by_depth.column_stride, k, units, packed);
    for (int64_t j = 0; j < units; j += kWidth) {
      is_paired = PackPaired(from, by_depth.row_stride, by_depth.column_stride, k, units, j, 1, packed) &&
                  is_paired;
      const int64_t width = VectorsOf(units - j) * kLanes;
      SilenceZeros(packed + Padded(k) * j, k, width, packed + Places(k, units).inverses + j);
    }
  }
  return is_paired;
}

int64_t PackedSize(int64_t depth, int64_t units) {
  const Parts parts(depth, units);
  return parts.Place(parts.count);
}

}  // namespace

const Means& InPairs() {
  static constexpr Means found = {PackedSize, Pack, MultiplyPaired};
  return found;
}

}  // namespace graphopt::dense
