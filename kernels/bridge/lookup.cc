#include "lookup.h"

#include <algorithm>
#include <memory>

#include "execute.h"
#include "tree.h"

namespace graphopt {

Projection ReadProjection(const int64_t** numbers) {
  const int64_t*& at = *numbers;
  Projection made;
  made.width = *at++;
  for (int64_t n = *at++; n > 0; --n, at += 9)
    made.factors.push_back(
        {at[0], at[1] != 0, at[2], at[3], at[4], at[5], at[6], at[7], at[8] != 0});
  return made;
}

RowsInUse FindRows(const std::vector<int32_t>& numbers, int64_t table_rows) {
  RowsInUse found;
  std::vector<int32_t> place(table_rows, -1);
  for (int32_t number : numbers)
    if (number >= 0) place[number] = 0;
  for (int64_t row = 0; row < table_rows; ++row)
    if (place[row] == 0) {
      place[row] = static_cast<int32_t>(found.rows.size());
      found.rows.push_back(static_cast<int32_t>(row));
    }
  found.index.reserve(numbers.size());
  for (int32_t number : numbers) found.index.push_back(number < 0 ? -1 : place[number]);
  return found;
}

namespace {

constexpr int64_t kBlock = 64;    // rows that are multiplied at once
constexpr int64_t kSlice = 128;   // rows of a matrix's gradient that are added to at once

/* Elements of a matrix's part, with the strides between rows and columns of `depth x width`. */
template <typename T>
struct PartOf {
  const T* at;
  int64_t by_depth, by_width;

  PartOf(const Table& table, const Factor& factor) {
    const int64_t columns = table.matrix_columns[factor.matrix];
    at = static_cast<const T*>(table.learned.matrices[factor.matrix]) + factor.row * columns +
         factor.matrix_column;
    by_depth = factor.transposed ? 1 : columns;
    by_width = factor.transposed ? columns : 1;
  }
};

/* to = from times the packed matrix, for all rows in use, block by block. */
template <typename T>
void MultiplyAll(const Rows<T>& all, const T* packed, int64_t depth, int64_t width, bool adds,
                 int threads) {
  const Products<T>& products = ProductsFor<T>(all.rows, depth * width);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 1)
  for (int64_t begin = 0; begin < all.rows; begin += kBlock) {
    Rows<T> block = all;
    block.rows = std::min(kBlock, all.rows - begin);
    if (all.from_index)
      block.from_index += begin;
    else
      block.from += begin * all.from_stride;
    if (all.to_index)
      block.to_index += begin;
    else
      block.to += begin * all.to_stride;
    const PackedMatrix<T> matrix{packed, depth};
    products.multiply(&block, 1, &matrix, 1, width, adds, nullptr);
  }
}

template <typename T>
std::unique_ptr<T[]> Packed(const T* from, int64_t by_depth, int64_t by_width, int64_t depth,
                            int64_t width, int64_t rows) {
  const Products<T>& products = ProductsFor<T>(rows, depth * width);
  std::unique_ptr<T[]> packed(new T[products.packed_size(depth, width)]);
  PackWhole(products, from, by_depth, by_width, depth, width, T(1), 1, packed.get());
  return packed;
}

template <typename T>
void ProjectAs(const Table& table, const RowsInUse& rows, T* projected) {
  const int64_t width = table.projection.width;
  for (const Factor& factor : table.projection.factors) {
    const PartOf<T> part(table, factor);
    auto packed = Packed(part.at, part.by_depth, part.by_width, factor.depth, factor.width,
                         rows.count());
    const Rows<T> all{static_cast<const T*>(table.data) + factor.from,
                      table.columns,
                      projected + factor.column,
                      width,
                      rows.count(),
                      rows.rows.data()};
    MultiplyAll(all, packed.get(), factor.depth, factor.width, factor.adds, table.threads);
  }
}

template <typename T>
void AddTableGradient(const Table& table, const RowsInUse& rows, const T* sums, T* gradient) {
  for (const Factor& factor : table.projection.factors) {
    const PartOf<T> part(table, factor);
    auto packed = Packed(part.at, part.by_width, part.by_depth, factor.width, factor.depth,
                         rows.count());
    const Rows<T> all{sums + factor.column,
                      table.projection.width,
                      gradient + factor.from,
                      table.columns,
                      rows.count(),
                      nullptr,
                      rows.rows.data()};
    MultiplyAll(all, packed.get(), factor.width, factor.depth, true, table.threads);
  }
}

/* Some rows of the gradient of a factor's matrix: the sum of outer products over all rows in use. */
template <typename T>
void AddSlice(const Table& table, const RowsInUse& rows, const Factor& factor, const T* sums,
              int64_t begin, int64_t end) {
  const Located<T> gradients{const_cast<T*>(sums) + factor.column, table.projection.width};
  const Located<T> read{static_cast<T*>(const_cast<void*>(table.data)) + factor.from,
                        table.columns, rows.rows.data()};
  const Located<T>&left = factor.transposed ? gradients : read,
                  &right = factor.transposed ? read : gradients;
  const Segment<T> all{left.at + begin, right.at,  left.stride, right.stride,
                       rows.count(),    left.index, right.index};
  const int64_t columns = table.matrix_columns[factor.matrix];
  auto to = static_cast<T*>(table.learned.matrix_gradients[factor.matrix]) +
            (factor.row + begin) * columns + factor.matrix_column;
  const OuterSum<T> sum{&all, factor.transposed ? factor.depth : factor.width, to, columns};
  ProductsFor<T>(rows.count(), factor.depth * factor.width).outer(&sum, 1, 1, end - begin);
}

template <typename T>
void AddMatrixGradients(const Table& table, const RowsInUse& rows, const T* sums) {
  for (const Factor& factor : table.projection.factors) {
    if (!table.learned.matrix_gradients[factor.matrix]) continue;
    const int64_t height = factor.transposed ? factor.width : factor.depth;
#pragma omp parallel for num_threads(table.threads) if (table.threads > 1) schedule(dynamic, 1)
    for (int64_t begin = 0; begin < height; begin += kSlice)
      AddSlice(table, rows, factor, sums, begin, std::min(begin + kSlice, height));
  }
}

}  // namespace

void Project(const Table& table, const RowsInUse& rows, void* projected) {
  if (table.is_double)
    ProjectAs(table, rows, static_cast<double*>(projected));
  else
    ProjectAs(table, rows, static_cast<float*>(projected));
}

void AddGradients(const Table& table, const RowsInUse& rows, const void* gradients, void* sums,
                  void* table_gradient) {
  SumRows({{gradients, sums, table.projection.width}}, rows.index.data(), rows.index.size(),
          rows.count(), table.is_double, table.threads);
  auto add = [&](auto of) {
    using T = decltype(of);
    auto by_row = static_cast<const T*>(sums);
    if (table_gradient) AddTableGradient(table, rows, by_row, static_cast<T*>(table_gradient));
    AddMatrixGradients(table, rows, by_row);
  };
  if (table.is_double)
    add(double{});
  else
    add(float{});
}

}  // namespace graphopt
