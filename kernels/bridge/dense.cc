/*
 * The products of dense.h.
 */
#include "dense.h"

#include <atomic>
#include <memory>

#include "tile_blocks.h"

#if GRAPHOPT_TILES

namespace graphopt::dense {
namespace {

using namespace tiles;

constexpr int64_t kMostDepth = 768;   // of a part; rows of as many panels have to stay near
constexpr int64_t kChunk = 256;       // rows of a task at most
constexpr int64_t kTasksEach = 4;     // that a thread should find
constexpr int64_t kMostKept = 16 << 20;  // bfloat16 of a thread's buffer, unless a call needs more

/* The depth, cut into parts of whole steps; panels of a part lie side by side. */
struct Parts {
  int64_t depth, count;

  explicit Parts(int64_t depth) : depth(depth), count(std::max<int64_t>(1, Ceil(depth, kMostDepth))) {}
  int64_t At(int64_t part) const {
    return part == count ? depth : depth / kStep * part / count * kStep;
  }
  Depth Of(int64_t part) const { return Depth(At(part + 1) - At(part)); }
  /* Where panels of a part begin, if there are so many of each. */
  int64_t Place(int64_t part, int64_t panels) const {
    int64_t place = 0;
    for (int64_t before = 0; before < part; ++before) place += Of(before).Size() * panels;
    return place;
  }
};

/* Panel `panel` of the right operand, in all parts; whether it could be split. */
bool SplitRight(const Matrix& right, const Parts& parts, int64_t units, int64_t panel, Bits* packed) {
  const int64_t panels = Ceil(units, kBlock), column = panel * kBlock;
  const int64_t columns = std::min(kBlock, units - column);
  Fault fault;
  for (int64_t part = 0; part < parts.count; ++part) {
    const Depth depth = parts.Of(part);
    const int64_t first = parts.At(part);
    Bits* to = packed + parts.Place(part, panels) + panel * depth.Size();
    if (right.is_transposed)
      SplitRowsAsColumns(right.at + column * right.stride + first, right.stride, columns, depth, to,
                         &fault);
    else
      SplitPanel([&](int64_t p) { return right.at + (first + p) * right.stride + column; }, depth,
                 columns, kRightParts, to, &fault);
  }
  return !fault.IsThere();
}

/* A panel's numbers, put together again: (depth, 32). */
void Join(const Bits* panel, const Depth& depth, float* to) {
  auto number = [](Bits bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float found;
    __builtin_memcpy(&found, &word, sizeof(found));
    return found;
  };
  // Of a number in a row of pairs.
  auto place = [](int64_t p, int64_t column) {
    return column / kSide * kTile + p % kStep / 2 * kStep + column % kSide * 2 + p % 2;
  };
  for (int64_t p = 0; p < depth.numbers; ++p)
    for (int64_t column = 0; column < kBlock; ++column) {
      float parts[kParts];
      for (int part = 0; part < kParts; ++part) {
        const Bits* at = panel + p / kStep * kStepSize + part * kPair + place(p, column);
        if (p / kStep >= depth.steps) {
          int turn = 0;
          while (kRightParts[turn] != part) ++turn;
          const int64_t t = turn * depth.rest + p - depth.Rest();
          at = panel + depth.steps * kStepSize + t / kStep * kPair + place(t, column);
        }
        parts[part] = number(*at);
      }
      to[p * kBlock + column] = parts[0] + (parts[1] + parts[2]);
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
    chunk_ = chunk;
    part_ = part;
    const Depth depth = parts_.Of(part);
    const int64_t p = parts_.At(part);
    Fault fault;
    for (int64_t row = first_; row < last_; row += kBlock)
      SplitLeft(row, p, depth, left_ + (row - first_) / kBlock * depth.Size(), &fault);
    is_split_ = !fault.IsThere();
  }

  /* A block of rows from `row`, of the depth from `first`. */
  void SplitLeft(int64_t row, int64_t first, const Depth& depth, Bits* to, Fault* fault) {
    const Matrix& left = product_.left;
    const int64_t count = std::min(kBlock, last_ - row);
    if (left.is_transposed) {
      SplitPanel([&](int64_t p) { return left.at + (first + p) * left.stride + row; }, depth, count,
                 kLeftParts, to, fault);
      return TurnTiles(to, depth.Size() / kTile);
    }
    for (int64_t i = 0; i < count; ++i)
      SplitRow(left.at + (row + i) * left.stride + first, depth, to + TileRow(i), fault);
  }

  void Multiply(int64_t part, int64_t panel) {
    const Depth depth = parts_.Of(part);
    const int64_t column = panel * kBlock;
    const Bits* right = packed_ + parts_.Place(part, plan_.panels) + panel * depth.Size();
    const bool ends = part + 1 == parts_.count;
    Target target{nullptr, column, 0, std::min(kBlock, product_.units - column),
                  part > 0 || product_.adds};
    if (ends && product_.bias) target.bias = product_.bias + column;
    if (ends) target.activation = product_.activation;
    if (!is_split_) return MultiplyJoined(part, right, target);
    for (int64_t row = first_; row < last_; row += kBlock) {
      target.to = to_ + (row - first_);
      target.rows = std::min(kBlock, last_ - row);
      const Operands operands{left_ + (row - first_) / kBlock * depth.Size(), right, depth};
      MultiplyBlock(&operands, 1, target, &pending_);
    }
  }

  /* Without the unit, number by number. */
  void MultiplyJoined(int64_t part, const Bits* right, Target target) {
    pending_.HandOut(kBlock);
    const Depth depth = parts_.Of(part);
    const Matrix& left = product_.left;
    const int64_t first = parts_.At(part);
    std::unique_ptr<float[]> joined(new float[depth.numbers * kBlock]);
    Join(right, depth, joined.get());
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
  const Parts parts_;
  const Bits* packed_;
  const Configured configured_;
  Bits* left_;
  float* to_[kChunk + kBlock];
  int64_t first_ = 0, last_ = 0, chunk_ = -1, part_ = -1;
  bool is_split_ = true;
  Pending pending_;
};

}  // namespace

int64_t PackedSize(int64_t depth, int64_t units) {
  const Parts parts(depth);
  return parts.Place(parts.count, Ceil(units, kBlock)) / 2;
}

bool Pack(const Matrix& right, int64_t depth, int64_t units, float* packed) {
  const Parts parts(depth);
  bool is_split = true;
  for (int64_t panel = 0; panel < Ceil(units, kBlock); ++panel)
    is_split = SplitRight(right, parts, units, panel, reinterpret_cast<Bits*>(packed)) && is_split;
  return is_split;
}

bool Multiply(const Product& product, int threads) {
  static thread_local std::vector<Bits> kept;
  const Plan plan(product, threads);
  const Parts parts(product.depth);
  auto packed = reinterpret_cast<const Bits*>(product.packed);
  Bits* own = packed ? nullptr : Kept(&kept, 2 * PackedSize(product.depth, product.units));
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
      Worker worker(product, plan, own ? own : packed);
      for (int64_t next; (next = task.fetch_add(1)) < plan.tasks();) worker.Run(next);
    }
  }
  return is_split;
}

void SumRows(const float* from, int64_t rows, int64_t columns, float* to, bool adds, int threads) {
  constexpr int64_t kColumns = 64;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t j = 0; j < columns; j += kColumns) {
    __m512 sums[4] = {};
    for (int64_t r = 0; r < rows; ++r)
      for (int v = 0; v < 4; ++v)
        sums[v] = _mm512_add_ps(
            sums[v], _mm512_maskz_loadu_ps(FirstOf(columns - j - v * kSide),
                                           from + r * columns + j + v * kSide));
    for (int v = 0; v < 4; ++v) {
      const __mmask16 mask = FirstOf(columns - j - v * kSide);
      float* at = to + j + v * kSide;
      if (adds) sums[v] = _mm512_add_ps(sums[v], _mm512_maskz_loadu_ps(mask, at));
      _mm512_mask_storeu_ps(at, mask, sums[v]);
    }
  }
}

}  // namespace graphopt::dense

#else

namespace graphopt::dense {
int64_t PackedSize(int64_t, int64_t) { return 0; }
bool Pack(const Matrix&, int64_t, int64_t, float*) { return false; }
bool Multiply(const Product&, int) { return false; }
void SumRows(const float* from, int64_t rows, int64_t columns, float* to, bool adds, int) {
  for (int64_t j = 0; j < columns && !adds; ++j) to[j] = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) to[j] += from[r * columns + j];
}
}  // namespace graphopt::dense

#endif
