/*
 * The products of tiles.h with matrices that recurrences and trees pack.
 */
#include "tiles.h"

#include <cstdlib>
#include <cstring>

#include "tile_outer.h"
#include "tile_probe.h"

#if GRAPHOPT_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace graphopt::tiles {
namespace {

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
      IsWanted("fp16") && AreThere() && (Features().has_halves || TryHalves());
  return found;
}

int UsualFactor() { return HaveHalves() ? 1 / kUnscale<Halves> : 1; }

namespace {

template <typename F>
const Products<float> kProductsOf = {kPanelColumns, true,    false,       PackedSize<F>,
                                     ReadSize<F>,   Pack<F>, Multiply<F>, MultiplyAlike<F>,
                                     Outer<F>};

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
