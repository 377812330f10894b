/*
 * graphopt_batch_dot: many small matrix products, a thread each, by the kernels of product.h; some rows
 * of one where there are fewer products than threads.
 *
 * MXNet's batch_dot computes one product after the other and has all threads share each of them. For
 * matrices as small as attention's, they wait for each other longer than they compute.
 *
 * Matrices lie one behind the other, (products, rows, columns), or, where heads_a, heads_b or heads_out
 * says so, as the heads of attention do: (batch, rows, heads, columns), products being batch * heads.
 */
#pragma once

#include <cstring>

#include "fused.h"
#include "products.h"
#include "stack.h"

namespace graphopt {

/* `heads` as the attribute says, or 0 for matrices one behind the other. */
int64_t HeadsOf(const NodeAttrs& attrs, const char* key) {
  auto found = attrs.dict.find(key);
  return found == attrs.dict.end() ? 0 : std::stoll(found->second);
}

Stack StackOf(const NodeAttrs& attrs, const char* key, const mxnet::TShape& shape) {
  const int64_t heads = HeadsOf(attrs, key);
  if (heads == 0 && shape.ndim() == 3) return Adjacent(shape[0], shape[1], shape[2]);
  if (heads > 0 && shape.ndim() == 4 && shape[2] == heads)
    return SideBySide(shape[0], shape[1], heads, shape[3]);
  Fail("node " + attrs.name + " reads matrices (products, rows, columns), or (batch, rows, heads, "
       "columns) where attribute '" + key + "' has the number of heads");
}

/* The operands of a product, and what it has to be. */
struct BatchProduct {
  Stack a, b;
  bool ta, tb;
  int64_t rows() const { return ta ? a.columns : a.rows; }
  int64_t depth() const { return ta ? a.rows : a.columns; }
  int64_t columns() const { return tb ? b.rows : b.columns; }
};

BatchProduct ProductOf(const NodeAttrs& attrs, const mxnet::TShape& a, const mxnet::TShape& b) {
  BatchProduct found{StackOf(attrs, "heads_a", a), StackOf(attrs, "heads_b", b),
                     Flag(attrs, "transpose_a"), Flag(attrs, "transpose_b")};
  if (found.a.products != found.b.products ||
      found.depth() != (found.tb ? found.b.columns : found.b.rows))
    Fail("the inputs of node " + attrs.name + " are no matrices that can be multiplied");
  return found;
}

bool BatchDotShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const mxnet::TShape &a = (*in)[0], &b = (*in)[1];
  if (!mxnet::shape_is_known(a) || !mxnet::shape_is_known(b)) return false;
  const BatchProduct product = ProductOf(attrs, a, b);
  const int64_t heads = HeadsOf(attrs, "heads_out"), products = product.a.products;
  if (heads < 0 || (heads && products % heads))
    Fail("node " + attrs.name + " makes " + std::to_string(products) +
         " matrices, which are no whole number of " + std::to_string(heads) + " heads");
  (*out)[0] = heads ? Shaped({products / heads, product.rows(), heads, product.columns()})
                    : Shaped({products, product.rows(), product.columns()});
  return true;
}

bool BatchDotType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  for (int& type : *in) {
    if (type == -1) type = mshadow::kFloat32;
    if (type != mshadow::kFloat32) Fail("node " + attrs.name + " multiplies float32 only");
  }
  (*out)[0] = mshadow::kFloat32;
  return true;
}

/* All rows of a product, or as few as give every thread something to do where products are few. */
int64_t RowsOfATask(int64_t rows, int64_t products) {
  constexpr int64_t kFewest = 32;
  const int64_t pieces = std::min(omp_get_max_threads() / std::max<int64_t>(products, 1), rows / kFewest);
  return pieces < 2 ? rows : (rows + pieces - 1) / pieces;
}

void BatchDot(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
              const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (requests[0] == mxnet::kNullOp) return;
  const BatchProduct product = ProductOf(attrs, inputs[0].shape_, inputs[1].shape_);
  const Stack c = StackOf(attrs, "heads_out", outputs[0].shape_);
  const int64_t m = product.rows(), n = product.columns(), k = product.depth();
  const bool adds = requests[0] == mxnet::kAddTo;
  auto x = static_cast<const float*>(inputs[0].dptr_);
  auto y = static_cast<const float*>(inputs[1].dptr_);
  auto z = static_cast<float*>(outputs[0].dptr_);
  if (k == 0 && !adds) std::memset(z, 0, outputs[0].shape_.Size() * sizeof(float));
  if (m == 0 || n == 0 || k == 0) return;
  const int64_t height = RowsOfATask(m, c.products), pieces = (m + height - 1) / height;
  EachProduct(0.02 * height * n * k, c.products * pieces, [&](int64_t task) {
    const int64_t i = task / pieces, row = task % pieces * height, rows = std::min(height, m - row);
    const float* from = x + product.a.At(i) + (product.ta ? row : row * product.a.stride);
    MultiplyOne(rows, k, n, {from, product.a.stride, product.ta},
                {y + product.b.At(i), product.b.stride, product.tb}, z + c.At(i) + row * c.stride, c.stride,
                adds);
  });
}

/* One side of a gradient's product: where it comes from, and the heads that it lies in. */
struct Side {
  const NodeEntry& from;
  int64_t heads;
};

NodeEntry MakeBatchDot(const std::string& name, const Side& a, const Side& b, bool ta, bool tb,
                       int64_t heads_out) {
  std::vector<std::pair<std::string, std::string>> attrs{{"transpose_a", ta ? "True" : "False"},
                                                         {"transpose_b", tb ? "True" : "False"}};
  if (a.heads) attrs.emplace_back("heads_a", std::to_string(a.heads));
  if (b.heads) attrs.emplace_back("heads_b", std::to_string(b.heads));
  if (heads_out) attrs.emplace_back("heads_out", std::to_string(heads_out));
  ObjectPtr made = MakeNode("graphopt_batch_dot", name, attrs);
  View(made).inputs = {a.from, b.from};
  return NodeEntry(made, 0, 0);
}

std::vector<NodeEntry> BatchDotGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  const bool ta = Flag(attrs, "transpose_a"), tb = Flag(attrs, "transpose_b");
  const Side a{View(node).inputs[0], HeadsOf(attrs, "heads_a")};
  const Side b{View(node).inputs[1], HeadsOf(attrs, "heads_b")};
  const Side g{heads[0], HeadsOf(attrs, "heads_out")};
  const std::string left = attrs.name + "_backward_lhs", right = attrs.name + "_backward_rhs";
  return {ta ? MakeBatchDot(left, b, g, tb, true, a.heads)
             : MakeBatchDot(left, g, b, false, !tb, a.heads),
          tb ? MakeBatchDot(right, g, a, true, ta, b.heads)
             : MakeBatchDot(right, a, g, !ta, false, b.heads)};
}

}  // namespace graphopt
