/*
 * The products of dense.h by the matrix unit.
 *
 * The right operand is split once, by all threads together, into panels of 32 columns. A task is some rows
 * of the left operand and some panels; it splits its rows, which then stay in the second-level cache while
 * the panels pass by.
 */
#include "dense.h"

#include <atomic>
#include <memory>
#include <type_traits>

#include "tile_blocks.h"
#include "tiles.h"

#if GRAPHOPT_TILES

namespace graphopt::dense {
namespace {

using namespace tiles;

constexpr int64_t kMostDepth = 768;   // of a part; rows of as many panels have to stay near
constexpr int64_t kChunk = 256;       // rows of a task at most
constexpr int64_t kTasksEach = 4;     // that a thread should find
constexpr int64_t kMostKept = 16 << 20;  // small numbers of a thread's buffer, unless a call needs more

/* The depth, cut into parts of whole steps; panels of a part lie side by side. Behind the last one is what
 * products with each of their columns have to be multiplied by. */
template <typename F>
struct Parts {
  int64_t depth, count;

  explicit Parts(int64_t depth) : depth(depth), count(std::max<int64_t>(1, Ceil(depth, kMostDepth))) {}
  int64_t At(int64_t part) const {
    return part == count ? depth : depth / kStep * part / count * kStep;
  }
  Depth<F> Of(int64_t part) const { return Depth<F>(At(part + 1) - At(part)); }
  /* Where panels of a part begin, if there are so many of each. */
  int64_t Place(int64_t part, int64_t panels) const {
    int64_t place = 0;
    for (int64_t before = 0; before < part; ++before) place += Of(before).Size() * panels;
    return place;
  }
  int64_t Size(int64_t panels) const {
    return Place(count, panels) + 2 * count * panels * kBlock;
  }
  template <typename Packed>  // Bits, or const Bits
  auto FactorsAt(Packed* packed, int64_t part, int64_t panel, int64_t panels) const {
    using Factor = std::conditional_t<std::is_const_v<Packed>, const float, float>;
    return reinterpret_cast<Factor*>(packed + Place(count, panels)) + (part * panels + panel) * kBlock;
  }
};

/* Panel `panel` of the right operand, in all parts; whether it could be split. */
template <typename F>
bool SplitRight(const Matrix& right, const Parts<F>& parts, int64_t units, int64_t panel, Bits* packed) {
  const int64_t panels = Ceil(units, kBlock), column = panel * kBlock;
  const int64_t columns = std::min(kBlock, units - column);
  bool is_split = true;
  for (int64_t part = 0; part < parts.count; ++part) {
    const Depth<F> depth = parts.Of(part);
    const int64_t first = parts.At(part);
    Bits* to = packed + parts.Place(part, panels) + panel * depth.Size();
    auto row_at = [&](int64_t p) { return right.at + (first + p) * right.stride + column; };
    const Scales scales =
        right.is_transposed
            ? SplitTransposed<F>(right.at + column * right.stride + first, right.stride, columns, depth, to)
            : SplitPanel<F, false>(row_at, depth, columns, to);
    is_split = is_split && !scales.is_fault;
    float* factors = parts.FactorsAt(packed, part, panel, panels);
    for (int64_t i = 0; i < kBlock; ++i) factors[i] = kUnscale<F> * scales.factors[i];
  }
  return is_split;
}

/* A panel's numbers, put together again and multiplied by factors of their columns: (depth, 32). */
template <typename F>
void Join(const Bits* panel, const Depth<F>& depth, const float* factors, float* to) {
  constexpr float kEvery = 1 << F::kUsualOfRows;  // that rows would have been multiplied by
  // Of a number in a row of pairs.
  auto place = [](int64_t p, int64_t column) {
    return column / kSide * kTile + p % kStep / 2 * kStep + column % kSide * 2 + p % 2;
  };
  for (int64_t p = 0; p < depth.numbers; ++p)
    for (int64_t column = 0; column < kBlock; ++column) {
      float sum = 0;
      for (int part = F::kParts; part-- > 0;) {
        const Bits* at = panel + p / kStep * depth.kStepSize + part * kPair + place(p, column);
        if (p / kStep >= depth.steps) {
          int turn = 0;
          while (F::kRight[turn] != part) ++turn;
          const int64_t t = turn * depth.rest + p - depth.Rest();
          at = panel + depth.steps * depth.kStepSize + t / kStep * kPair + place(t, column);
        }
        sum += F::NumberOf(*at);
      }
      to[p * kBlock + column] = sum * (kEvery * factors[column]);
    }
}

/* Memory of a thread. */
Bits* Kept(std::vector<Bits>* kept, int64_t size) {
  if (static_cast<int64_t>(kept->size()) > std::max(size + kStep, kMostKept))
    std::vector<Bits>().swap(*kept);
  return Aligned(kept, size);
}

/* How a product is shared among threads. */
struct Plan {
  int64_t panels, chunk, chunks, team, teams;

  Plan(const Product& product, int threads) {
    panels = Ceil(product.units, kBlock);
    chunks = std::max<int64_t>(1, Ceil(product.rows, kChunk));
    chunk = Ceil(Ceil(product.rows, chunks), kBlock) * kBlock;
    chunks = Ceil(product.rows, chunk);
    teams = std::min(panels, Ceil(threads > 1 ? kTasksEach * threads : 1, chunks));
    team = Ceil(panels, teams);
    teams = Ceil(panels, team);
  }
  int64_t tasks() const { return chunks * teams; }
};

/* Computes tasks of a product; one for each thread. */
template <typename F>
class Worker {
 public:
  Worker(const Product& product, const Plan& plan, const Bits* packed)
      : product_(product), plan_(plan), parts_(product.depth), packed_(packed) {
    static thread_local std::vector<Bits> kept;
    int64_t most = 0;
    for (int64_t part = 0; part < parts_.count; ++part)
      most = std::max(most, parts_.Of(part).Size());
    left_ = Kept(&kept, plan.chunk / kBlock * most);
  }

  void Run(int64_t task) {
    const int64_t chunk = task / plan_.teams, team = task % plan_.teams;
    first_ = chunk * plan_.chunk;
    last_ = std::min(product_.rows, first_ + plan_.chunk);
    for (int64_t row = first_; row < last_; ++row)
      to_[row - first_] = product_.to + row * product_.to_stride;
    for (int64_t part = 0; part < parts_.count; ++part) {
      const int64_t begin = team * plan_.team, end = std::min(plan_.panels, begin + plan_.team);
      Split(chunk, part);
      for (int64_t panel = begin; panel < end; ++panel) Multiply(part, panel);
    }
    pending_.HandOut(kBlock);
  }

 private:
  /* The chunk's rows in a part of the depth, unless they are there already. */
  void Split(int64_t chunk, int64_t part) {
    if (chunk_ == chunk && part_ == part) return;
    pending_.HandOut(kBlock);  // by the factors of the rows that were there
    chunk_ = chunk;
    part_ = part;
    const Depth<F> depth = parts_.Of(part);
    const int64_t p = parts_.At(part);
    is_split_ = true;
    for (int64_t row = first_; row < last_; row += kBlock) {
      bool& is_scaled = is_scaled_[(row - first_) / kBlock];
      is_scaled = false;
      SplitLeft(row, p, depth, left_ + (row - first_) / kBlock * depth.Size());
      for (int64_t r = row - first_; r < std::min(row + kBlock, last_) - first_; ++r) {
        is_scaled = is_scaled || factors_[r] != 1;
        is_split_ = is_split_ && factors_[r] == factors_[r];
      }
    }
  }

  /* A block of rows from `row`, of the depth from `first`. */
  void SplitLeft(int64_t row, int64_t first, const Depth<F>& depth, Bits* to) {
    const Matrix& left = product_.left;
    const int64_t count = std::min(kBlock, last_ - row);
    float* factors = factors_ + (row - first_);
    if (left.is_transposed) {
      auto row_at = [&](int64_t p) { return left.at + (first + p) * left.stride + row; };
      const Scales scales = SplitPanel<F, true>(row_at, depth, count, to);
      std::copy(scales.factors, scales.factors + count, factors);
      if (scales.is_fault) *factors = std::numeric_limits<float>::quiet_NaN();
      return TurnTiles(to, depth.Size() / kTile);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* from = left.at + (row + i) * left.stride + first;
      factors[i] = SplitScaled<F>(
          [&](float scale, typename F::Fault* fault) {
            SplitRow<F>(from, depth, scale, to + TileRow(i), fault);
          },
          [&](Extent* extent) { extent->NoteRow(from, depth.numbers); });
    }
  }

  void Multiply(int64_t part, int64_t panel) {
    const Depth<F> depth = parts_.Of(part);
    const int64_t column = panel * kBlock;
    const Bits* right = packed_ + parts_.Place(part, plan_.panels) + panel * depth.Size();
    const bool ends = part + 1 == parts_.count;
    Target target{nullptr, column, 0, std::min(kBlock, product_.units - column),
                  part > 0 || product_.adds};
    if (ends && product_.bias) target.bias = product_.bias + column;
    if (ends) target.activation = product_.activation;
    if constexpr (F::kScales) target.of_columns = parts_.FactorsAt(packed_, part, panel, plan_.panels);
    if (!is_split_) return MultiplyJoined(part, right, target);
    for (int64_t row = first_; row < last_; row += kBlock) {
      target.to = to_ + (row - first_);
      target.rows = std::min(kBlock, last_ - row);
      target.of_rows = is_scaled_[(row - first_) / kBlock] ? factors_ + (row - first_) : nullptr;
      const Operands<F> operands{left_ + (row - first_) / kBlock * depth.Size(), right, depth};
      MultiplyBlock(&operands, 1, target, &pending_);
    }
  }

  /* Without the unit, number by number. */
  void MultiplyJoined(int64_t part, const Bits* right, Target target) {
    const int64_t column = target.column;
    pending_.HandOut(kBlock);
    const Depth<F> depth = parts_.Of(part);
    const Matrix& left = product_.left;
    const int64_t first = parts_.At(part);
    std::unique_ptr<float[]> joined(new float[depth.numbers * kBlock]);
    Join(right, depth, parts_.FactorsAt(packed_, part, column / kBlock, plan_.panels), joined.get());
    target.of_columns = nullptr;
    for (int64_t row = first_; row < last_; ++row) {
      alignas(64) float sums[kBlock] = {};
      for (int64_t p = 0; p < depth.numbers; ++p) {
        const float x = left.is_transposed ? left.at[(first + p) * left.stride + row]
                                           : left.at[row * left.stride + first + p];
        for (int64_t j = 0; j < kBlock; ++j) sums[j] += x * joined[p * kBlock + j];
      }
      target.to = to_ + (row - first_);
      HandAny(target, sums, 0, 1);
    }
  }

  const Product& product_;
  const Plan& plan_;
  const Parts<F> parts_;
  const Bits* packed_;
  const Configured configured_;
  Bits* left_;
  float* to_[kChunk + kBlock];
  // What results of each row have to be multiplied by, and of which blocks not all are one.
  float factors_[kChunk + kBlock];
  bool is_scaled_[kChunk / kBlock + 1];
  int64_t first_ = 0, last_ = 0, chunk_ = -1, part_ = -1;
  bool is_split_ = true;
  Pending pending_;
};

template <typename F>
bool MultiplyIn(const Product& product, int threads) {
  static thread_local std::vector<Bits> kept;
  const Plan plan(product, threads);
  const Parts<F> parts(product.depth);
  auto packed = reinterpret_cast<const Bits*>(product.packed);
  Bits* own = packed ? nullptr : Kept(&kept, parts.Size(plan.panels));
  std::atomic<int64_t> panel{0}, task{0};
  std::atomic<bool> is_split{true};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    if (own) {
      for (int64_t next; (next = panel.fetch_add(1)) < plan.panels;)
        if (!SplitRight(product.right, parts, product.units, next, own)) is_split = false;
#pragma omp barrier
    }
    if (is_split) {
      Worker<F> worker(product, plan, own ? own : packed);
      for (int64_t next; (next = task.fetch_add(1)) < plan.tasks();) worker.Run(next);
    }
  }
  return is_split;
}

template <typename F>
bool PackIn(const Matrix& right, int64_t depth, int64_t units, float* packed) {
  const Parts<F> parts(depth);
  bool is_split = true;
  for (int64_t panel = 0; panel < Ceil(units, kBlock); ++panel)
    is_split = SplitRight(right, parts, units, panel, reinterpret_cast<Bits*>(packed)) && is_split;
  return is_split;
}

int64_t PackedSize(int64_t depth, int64_t units) {
  const int64_t panels = Ceil(units, kBlock);
  return (HaveHalves() ? Parts<Halves>(depth).Size(panels) : Parts<Thirds>(depth).Size(panels)) / 2;
}

bool Pack(const Matrix& right, int64_t depth, int64_t units, float* packed) {
  return HaveHalves() ? PackIn<Halves>(right, depth, units, packed)
                      : PackIn<Thirds>(right, depth, units, packed);
}

bool Multiply(const Product& product, int threads) {
  return HaveHalves() ? MultiplyIn<Halves>(product, threads) : MultiplyIn<Thirds>(product, threads);
}

}  // namespace

const Means& ByTiles() {
  static constexpr Means found = {PackedSize, Pack, Multiply};
  return found;
}

}  // namespace graphopt::dense

#else

namespace graphopt::dense {
const Means& ByTiles() { __builtin_unreachable(); }  // AreThere says so
}  // namespace graphopt::dense

#endif
