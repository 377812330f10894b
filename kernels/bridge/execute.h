/*
 * Executes the instructions of a program on some rows: what recurrences over steps and over trees
 * have in common.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "flush.h"
#include "matrix.h"
#include "recurrence.h"

namespace graphopt {

constexpr int64_t kLine = 64;
constexpr int64_t kMostKept = 16 << 20;
constexpr int64_t kShortRow = 64;  // columns
constexpr int64_t kUnits = 8;  // partial gradients that are summed up at the end

inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/* Memory of the calling thread, kept from call to call unless it is much more than is needed now. */
class Arena {
 public:
  char* Reserve(int64_t bytes) {
    if (bytes + kLine > size_ || size_ > std::max(bytes + kLine, kMostKept)) {
      memory_.reset();
      memory_.reset(new char[bytes + kLine]);
      size_ = bytes + kLine;
    }
    auto address = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<char*>((address + kLine - 1) / kLine * kLine);
  }

 private:
  std::unique_ptr<char[]> memory_;
  int64_t size_ = 0;
};

/* Buffers that are to lie in an arena. */
template <typename T>
class Buffers {
 public:
  void Want(T** place, int64_t size) { wanted_.emplace_back(place, size); }

  int64_t Bytes() const {
    int64_t total = 0;
    for (auto& [place, size] : wanted_) total += RoundUp(size * sizeof(T), kLine);
    return total;
  }

  void Take(Arena* arena) { Place(arena->Reserve(Bytes())); }

  /* They lie one behind the other from `at`, which is a multiple of kLine. */
  void Place(char* at) {
    for (auto& [place, size] : wanted_) {
      *place = reinterpret_cast<T*>(at);
      at += RoundUp(size * sizeof(T), kLine);
    }
  }

 private:
  std::vector<std::pair<T**, int64_t>> wanted_;
};

/* Rows of an operand; with an index, row r is number index[r]. */
template <typename T>
struct Located {
  T* at;  // null: nobody wants it
  int64_t stride;
  const int32_t* index = nullptr;

  T* Row(int64_t r) const { return at + (index ? index[r] : r) * stride; }
};

/* Elements of all matrices that programs multiply with. */
inline int64_t ElementsOf(const Program& program) {
  int64_t elements = 0;
  for (const PackOf& pack : program.packs) elements += pack.depth * pack.width;
  return elements;
}

/* A program with its weights once they are packed, and places in a unit's partial gradients. */
template <typename T>
struct Prepared {
  const Program& program;
  const Learned& learned;
  const Products<T>& products;
  std::vector<const T*> packs;
  std::unique_ptr<T[]> memory;
  int64_t packed_bytes = 0, read_bytes = 0;  // of which products read so many
  std::vector<int64_t> matrix_at, vector_at;  // kElsewhere: not among the partial gradients
  int64_t partial_size = 0;
  static constexpr int64_t kElsewhere = -1;

  /* Nothing is packed yet; `elsewhere` has a 1 for each matrix whose gradient is computed elsewhere. */
  Prepared(const Program& program, const Learned& learned, const Products<T>& products,
           const std::vector<bool>& elsewhere = {})
      : program(program), learned(learned), products(products) {
    for (const PackOf& pack : program.packs) {
      pack_at_.push_back(packed_bytes / sizeof(T));
      packed_bytes += RoundUp(products.packed_size(pack.depth, pack.width), kLine) * sizeof(T);
      read_bytes += products.read_size(pack.depth, pack.width) * sizeof(T);
    }
    if (program.backward) Divide(elsewhere);
  }

  /* Packs in memory of its own. */
  Prepared(const Program& program, const Learned& learned, const Products<T>& products, int threads)
      : Prepared(program, learned, products) {
    memory.reset(new T[packed_bytes / sizeof(T) + kLine]);
    Pack(threads, memory.get());
  }

  /* Packs into packed_bytes from `to_all`. */
  void Pack(int threads, T* to_all) {
    for (size_t i = 0; i < pack_at_.size(); ++i) {
      const PackOf& pack = program.packs[i];
      int64_t columns = program.matrix_columns[pack.matrix];
      int64_t by_depth = pack.transposed ? columns : 1, by_width = pack.transposed ? 1 : columns;
      auto matrix = static_cast<const T*>(learned.matrices[pack.matrix]);
      const T* from = matrix + pack.row * columns + pack.column;
      T* to = to_all + pack_at_[i];
      const bool is_long = pack.depth * pack.width > kParallelPack;
      PackWhole(products, from, by_depth, by_width, pack.depth, pack.width, T(pack.times),
                is_long ? threads : 1, to);
    }
    Use(to_all);
  }

  /* Reads what Pack left there. */
  void Use(const T* all) {
    for (int64_t at : pack_at_) packs.push_back(all + at);
  }

  /* Adds what all units found, in their order; partials lie `stride` elements apart. */
  void Collect(const T* partials, int64_t stride, int64_t units, int threads) const {
    for (size_t i = 0; i < program.matrix_rows.size(); ++i)
      if (matrix_at[i] != kElsewhere)
        Add(learned.matrix_gradients[i], partials + matrix_at[i], stride, units,
            program.matrix_rows[i] * program.matrix_columns[i], threads);
    for (size_t i = 0; i < program.vector_widths.size(); ++i)
      Add(learned.vector_gradients[i], partials + vector_at[i], stride, units,
          program.vector_widths[i], threads);
  }

 private:
  static constexpr int64_t kParallelPack = 64 << 10;  // elements
  std::vector<int64_t> pack_at_;                      // of each pack, in elements

  void Divide(const std::vector<bool>& elsewhere) {
    for (size_t i = 0; i < program.matrix_rows.size(); ++i) {
      if (!elsewhere.empty() && elsewhere[i]) {
        matrix_at.push_back(kElsewhere);
        continue;
      }
      matrix_at.push_back(partial_size);
      partial_size += RoundUp(program.matrix_rows[i] * program.matrix_columns[i], kLine);
    }
    for (int64_t width : program.vector_widths) {
      vector_at.push_back(partial_size);
      partial_size += RoundUp(width, kLine);
    }
  }

  static void Add(void* gradient, const T* from, int64_t stride, int64_t units, int64_t size,
                  int threads) {
    if (!gradient) return;
    auto to = static_cast<T*>(gradient);
#pragma omp parallel for num_threads(threads) if (size > 65536 && threads > 1)
    for (int64_t block = 0; block < size; block += 4096) {
      int64_t end = std::min(size, block + 4096);
      for (int64_t i = block; i < end; ++i) to[i] = units ? from[i] : T(0);
      for (int64_t u = 1; u < units; ++u)
        for (int64_t i = block; i < end; ++i) to[i] += from[u * stride + i];
    }
  }
};

/* Executes instructions on `live_` rows; `Where` is the class derived from this one and knows where
 * operands lie: Located<T> Locate(const Spot&). */
template <typename T, typename Where>
class Executor {
 public:
  /* Adds the gradients of matrices that were noted down. */
  void Flush() {
    for (size_t n = 0; n < p_.steps.size();) {
      const size_t end = n + p_.steps[n].alike;
      if (p_.steps[n].code == kOuter) AddOuter(n, end);
      n = end;
    }
  }

 protected:
  Executor(const Prepared<T>& prepared, Buffers<T>* buffers) : w_(prepared), p_(prepared.program) {
    int64_t dummy = 0, kernel = 0, waiting = 0;
    size_t operands = 1;
    for (const Step& step : p_.steps) {
      dummy = std::max(dummy, step.width);
      operands = std::max(operands, step.spots.size());
      if (step.code != kKernel) continue;
      kernel = std::max(kernel, step.width * p_.kernels[step.which].scratch_rows);
      waiting = std::max(waiting, step.width * p_.kernels[step.which].stages.rows);
    }
    buffers->Want(&nowhere_, dummy);
    buffers->Want(&kernel_scratch_, kernel);
    buffers->Want(&waiting_values_, waiting);
    strides_.resize(operands);
    segments_.resize(p_.steps.size());
  }

  /* Products of the same rows, from step `number` on. */
  void MultiplyAlike(size_t number, int64_t count) {
    Rows<T> rows[kMostFactors];
    PackedMatrix<T> packed[kMostFactors];
    int64_t columns[kMostFactors], found = 0;
    bool adds[kMostFactors];
    const Located<T> from = Find(p_.steps[number].spots[1]);
    for (const Step* step = &p_.steps[number]; step < &p_.steps[number] + count; ++step) {
      const Located<T> to = Find(step->spots[0]);
      if (!to.at) continue;
      rows[found] = {from.at, from.stride, to.at, to.stride, live_, from.index, to.index};
      packed[found] = {w_.packs[step->which], step->depth};
      columns[found] = step->width;
      adds[found++] = step->adds;
    }
    if (found > 0) w_.products.multiply_alike(rows, packed, columns, adds, found);
  }

  /* A step and, if it is a product, all in all `count` that are added to the same columns. */
  void Execute(const Step& step, size_t number, int64_t count = 1) {
    if (step.code == kKernel) return Call(step);
    if (step.code == kOuter) return Note(step, number);
    Located<T> to = Find(step.spots[0]);
    if (!to.at) return;
    if (step.code == kZero) {
      for (int64_t r = 0; r < live_; ++r) std::memset(to.Row(r), 0, step.width * sizeof(T));
      return;
    }
    if (step.code == kProduct) return Multiply(&step, count, to);
    Located<T> from = Find(step.spots[1]);
    for (int64_t r = 0; r < live_; ++r) {
      T* row = to.Row(r);
      const T* other = from.Row(r);
      if (step.code == kCopy)
        std::memcpy(row, other, step.width * sizeof(T));
      else
        for (int64_t j = 0; j < step.width; ++j) row[j] += other[j];
    }
  }

  Located<T> VectorAt(const Spot& spot) const {
    if (spot.place == kVector)
      return {const_cast<T*>(static_cast<const T*>(w_.learned.vectors[spot.index])) + spot.offset,
              0};
    if (!w_.learned.vector_gradients[spot.index]) return {nullptr, 0};
    return {partial_ + w_.vector_at[spot.index] + spot.offset, 0};
  }

  /* The kernel of a step, in pieces from now on. */
  void Take(const Step& step, Errand* errand, Meanwhile* meanwhile) {
    Point(step);
    meanwhile->Take(p_.kernels[step.which].stages, pointers_, strides_,
                    reinterpret_cast<float*>(waiting_values_), live_, step.width, errand);
  }

  /* The kernel of a step for the rows from `first` on. */
  void Call(const Step& step, int64_t first = 0) {
    Point(step);
    const size_t count = step.spots.size();
    for (size_t i = 0; i < count && first > 0; ++i) {
      if (pointers_[count + i])
        pointers_[count + i] += first * sizeof(int32_t);
      else
        pointers_[i] += first * strides_[i] * static_cast<int64_t>(sizeof(T));
    }
    int64_t rows = live_ - first, width = step.width;
    if (AreOneRow(step)) {
      width *= rows;
      rows = 1;
    }
    p_.kernels[step.which].function(pointers_.data(), strides_.data(), rows, width,
                                    reinterpret_cast<int64_t>(kernel_scratch_));
  }

  const Prepared<T>& w_;
  const Program& p_;
  T* partial_ = nullptr;
  int64_t live_ = 0;
  Meanwhile* meanwhile_ = nullptr;  // what products compute besides

 private:
  Located<T> Find(const Spot& spot) { return static_cast<Where*>(this)->Locate(spot); }

  void Multiply(const Step* steps, int64_t count, const Located<T>& to) {
    Rows<T> rows[kMostFactors];
    PackedMatrix<T> packed[kMostFactors];
    for (int64_t i = 0; i < count; ++i) {
      const Located<T> from = Find(steps[i].spots[1]);
      rows[i] = {from.at, from.stride, to.at, to.stride, live_, from.index, to.index};
      packed[i] = {w_.packs[steps[i].which], steps[i].depth};
    }
    w_.products.multiply(rows, 1, packed, count, steps->width, steps->adds, meanwhile_);
  }

  /* Adds the gradients of matrices that were noted down for some steps with the same left operand. */
  void AddOuter(size_t begin, size_t end) {
    OuterSum<T> sums[kMostFactors];
    int64_t count = 0;
    const std::vector<Segment<T>>* first = nullptr;
    auto add = [&] {
      if (count > 0) w_.products.outer(sums, count, first->size(), p_.steps[begin].width);
      count = 0;
    };
    for (size_t n = begin; n < end; ++n) {
      if (segments_[n].empty()) continue;
      if (count > 0 && !HaveSameLeft(*first, segments_[n])) add();
      if (count == 0) first = &segments_[n];
      const Step& step = p_.steps[n];
      const int64_t columns = p_.matrix_columns[step.which];
      T* const to = partial_ + w_.matrix_at[step.which] + step.row * columns + step.column;
      sums[count++] = {segments_[n].data(), step.depth, to, columns};
    }
    add();
    for (size_t n = begin; n < end; ++n) segments_[n].clear();
  }

  /* Trees leave out products with rows of zeros, so one step may have noted down fewer than another. */
  static bool HaveSameLeft(const std::vector<Segment<T>>& a, const std::vector<Segment<T>>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const Segment<T>& one, const Segment<T>& other) {
                        return one.left == other.left && one.left_stride == other.left_stride &&
                               one.rows == other.rows && one.left_index == other.left_index;
                      });
  }

  /* Finds the operands of a kernel. */
  void Point(const Step& step) {
    const size_t count = step.spots.size();
    pointers_.resize(2 * count);
    for (size_t i = 0; i < count; ++i) {
      Located<T> found = Find(step.spots[i]);
      if (!found.at) found = {nowhere_, 0};
      pointers_[i] = reinterpret_cast<int64_t>(found.at);
      pointers_[count + i] = reinterpret_cast<int64_t>(found.index);
      strides_[i] = found.stride;
    }
  }

  /* Whether rows are too short for vectors, and all operands of the kernel lie row next to row. */
  bool AreOneRow(const Step& step) const {
    if (step.width >= kShortRow || !p_.kernels[step.which].has_one_space) return false;
    const size_t count = step.spots.size();
    for (size_t i = 0; i < count; ++i)
      if (pointers_[count + i] || strides_[i] != step.width) return false;
    return true;
  }

  /* Operands of a matrix's gradient, to be multiplied when there are enough of them. */
  void Note(const Step& step, size_t number) {
    if (!w_.learned.matrix_gradients[step.which]) return;
    if (w_.matrix_at[step.which] == Prepared<T>::kElsewhere) return;
    Located<T> left = Find(step.spots[0]), right = Find(step.spots[1]);
    segments_[number].push_back(
        {left.at, right.at, left.stride, right.stride, live_, left.index, right.index});
  }

  T* nowhere_ = nullptr;
  T* kernel_scratch_ = nullptr;
  T* waiting_values_ = nullptr;
  std::vector<int64_t> pointers_, strides_;
  std::vector<std::vector<Segment<T>>> segments_;
};

}  // namespace graphopt
