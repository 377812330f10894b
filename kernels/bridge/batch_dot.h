/*
 * graphopt_batch_dot: many small matrix products, a thread each, by the kernels of product.h.
 *
 * MXNet's batch_dot computes one product after the other and has all threads share each of them. For
 * matrices as small as attention's, they wait for each other longer than they compute.
 */
#pragma once

#include <atomic>
#include <cstring>

#include "fused.h"
#include "product.h"

namespace graphopt {

bool BatchDotShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const mxnet::TShape &a = (*in)[0], &b = (*in)[1];
  if (!mxnet::shape_is_known(a) || !mxnet::shape_is_known(b)) return false;
  bool ta = Flag(attrs, "transpose_a"), tb = Flag(attrs, "transpose_b");
  if (a.ndim() != 3 || b.ndim() != 3 || a[0] != b[0] || a[ta ? 1 : 2] != b[tb ? 2 : 1])
    Fail("the inputs of node " + attrs.name + " are no matrices that can be multiplied");
  mxnet::TShape shape(3, 0);
  shape[0] = a[0];
  shape[1] = a[ta ? 2 : 1];
  shape[2] = b[tb ? 1 : 2];
  (*out)[0] = shape;
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

void BatchDot(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
              const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (requests[0] == mxnet::kNullOp) return;
  bool ta = Flag(attrs, "transpose_a"), tb = Flag(attrs, "transpose_b");
  const mxnet::TShape &a = inputs[0].shape_, &b = inputs[1].shape_, &c = outputs[0].shape_;
  const int64_t batch = c[0], m = c[1], n = c[2], k = a[ta ? 1 : 2];
  const bool adds = requests[0] == mxnet::kAddTo;
  auto x = static_cast<const float*>(inputs[0].dptr_);
  auto y = static_cast<const float*>(inputs[1].dptr_);
  auto z = static_cast<float*>(outputs[0].dptr_);
  if (k == 0 && !adds) std::memset(z, 0, batch * m * n * sizeof(float));
  if (m == 0 || n == 0 || k == 0) return;
  const double nanoseconds = 0.02 * batch * m * n * k;
  const int threads = Threads(nanoseconds, batch);
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < batch;)
    product::Multiply(m, k, n, {x + i * m * k, ta}, {y + i * k * n, tb}, z + i * m * n, adds);
}

NodeEntry MakeBatchDot(const std::string& name, const NodeEntry& a, const NodeEntry& b, bool ta,
                       bool tb) {
  ObjectPtr made = MakeNode("graphopt_batch_dot", name,
                            {{"transpose_a", ta ? "True" : "False"},
                             {"transpose_b", tb ? "True" : "False"}});
  View(made).inputs = {a, b};
  return NodeEntry(made, 0, 0);
}

std::vector<NodeEntry> BatchDotGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  bool ta = Flag(attrs, "transpose_a"), tb = Flag(attrs, "transpose_b");
  const NodeEntry &a = View(node).inputs[0], &b = View(node).inputs[1], &g = heads[0];
  std::string left = attrs.name + "_backward_lhs", right = attrs.name + "_backward_rhs";
  return {ta ? MakeBatchDot(left, b, g, tb, true) : MakeBatchDot(left, g, b, false, !tb),
          tb ? MakeBatchDot(right, g, a, true, ta) : MakeBatchDot(right, a, g, !ta, false)};
}

}  // namespace graphopt
