/*
 * graphopt_interleaved_dot: the products of attention whose operands are interleaved, a thread each.
 *
 * MXNet has them as _contrib_interleaved_matmul_<kind>, which multiply matrix after matrix, each with
 * all threads. Attributes: `kind`, one of the four below; `heads`. D being columns of a head, and
 * products being batch * heads:
 *   selfatt_qk(qkv)           (rows, batch, heads * 3 * D) -> (products, rows, rows), over sqrt(D)
 *   selfatt_valatt(qkv, att)  att (products, rows, rows) -> (rows, batch, heads * D)
 *   encdec_qk(q, kv)          (rows, batch, heads * D), (others, batch, heads * 2 * D)
 *                             -> (products, rows, others), over sqrt(D)
 *   encdec_valatt(kv, att)    att (products, rows, others) -> (rows, batch, heads * D)
 */
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "arrays.h"
#include "legacy.h"
#include "products.h"
#include "stack.h"

namespace graphopt {

/* Which of the four products a node computes, and the sizes of its operands. */
struct InterleavedKind {
  bool is_self, makes_scores;
  int64_t heads, rows, others, batch, columns;
  int64_t products() const { return batch * heads; }
  int64_t parts() const { return is_self ? 3 : 2; }
  Stack queries() const { return Interleaved(rows, products(), is_self ? 3 : 1, 0, columns); }
  Stack keys() const { return Interleaved(others, products(), parts(), parts() - 2, columns); }
  Stack values() const { return Interleaved(others, products(), parts(), parts() - 1, columns); }
  Stack scores() const { return Adjacent(products(), rows, others); }
  Stack mixed() const { return Interleaved(rows, products(), 1, 0, columns); }
};

uint32_t InterleavedInputs(const NodeAttrs& attrs) {
  return TextOf(attrs, "kind", "") == "selfatt_qk" ? 1 : 2;
}
uint32_t InterleavedBackwardInputs(const NodeAttrs& attrs) { return InterleavedInputs(attrs) + 1; }

/* What a node computes from inputs of these shapes; fails where they do not fit each other. */
InterleavedKind InterleavedOf(const NodeAttrs& attrs, const mxnet::TShape& first,
                              const mxnet::TShape* second) {
  const std::string kind = TextOf(attrs, "kind", "");
  InterleavedKind found{};
  found.is_self = kind.compare(0, 8, "selfatt_") == 0;
  found.makes_scores = kind.size() > 3 && kind.compare(kind.size() - 3, 3, "_qk") == 0;
  if (kind != "selfatt_qk" && kind != "selfatt_valatt" && kind != "encdec_qk" && kind != "encdec_valatt")
    Fail("node " + attrs.name + " has the kind '" + kind + "', which is none of its four");
  found.heads = std::stoll(TextOf(attrs, "heads", "0"));
  const std::string who = "the inputs of node " + attrs.name + " (" + kind + ") ";
  const bool has_queries = !found.is_self && found.makes_scores;
  const mxnet::TShape& keys = has_queries ? *second : first;
  if (first.ndim() != 3 || (second && second->ndim() != 3)) Fail(who + "have to have 3 axes each");
  if (found.heads < 1 || keys[2] % (found.parts() * found.heads))
    Fail(who + "are no whole number of heads of " + std::to_string(found.parts()) + " parts");
  found.others = keys[0];
  found.batch = keys[1];
  found.columns = keys[2] / found.parts() / found.heads;
  found.rows = found.is_self ? found.others : found.makes_scores ? first[0] : (*second)[1];
  const bool fits = has_queries ? first[1] == found.batch && first[2] == found.heads * found.columns
                    : second ? (*second)[0] == found.products() && (*second)[1] == found.rows &&
                                   (*second)[2] == found.others
                             : true;
  if (!fits) Fail(who + "do not fit each other");
  return found;
}

bool InterleavedShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  for (const mxnet::TShape& shape : *in)
    if (!mxnet::shape_is_known(shape)) return false;
  const InterleavedKind found = InterleavedOf(attrs, (*in)[0], in->size() > 1 ? &(*in)[1] : nullptr);
  (*out)[0] = found.makes_scores ? Shaped({found.products(), found.rows, found.others})
                                 : Shaped({found.rows, found.batch, found.heads * found.columns});
  return true;
}

bool InterleavedType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  for (auto* types : {in, out})
    for (int& type : *types) {
      if (type == -1) type = mshadow::kFloat32;
      if (type != mshadow::kFloat32) Fail("node " + attrs.name + " multiplies float32 only");
    }
  return true;
}

/* A matrix times a factor, row behind row, in memory of this thread that the next call with `slot` takes. */
inline const float* ScaledCopy(const Stack& stack, const float* from, float factor, int slot) {
  static thread_local std::vector<float> kept[2];
  std::vector<float>& room = kept[slot];
  if (room.size() < static_cast<size_t>(stack.rows * stack.columns)) room.resize(stack.rows * stack.columns);
  CopyScaled(from, stack.stride, stack.rows, stack.columns, factor, room.data());
  return room.data();
}

/* Zeros in all parts of a product but the `count` parts from `first` on. */
inline void ClearOthers(const Stack& stack, int64_t parts, int64_t first, int64_t count, int64_t product,
                        float* at) {
  at += product * parts * stack.columns;
  for (int64_t i = 0; i < stack.rows; ++i, at += stack.stride) {
    std::memset(at, 0, first * stack.columns * sizeof(float));
    std::memset(at + (first + count) * stack.columns, 0,
                (parts - first - count) * stack.columns * sizeof(float));
  }
}

/* `body(product)` for each, of which every one is `count` multiplications of matrices. */
template <class Body>
void EachProduct(const InterleavedKind& kind, int64_t count, const Body& body) {
  EachProduct(0.02 * kind.rows * kind.others * kind.columns * count, kind.products(), body);
}

inline product::Matrix At(const Stack& stack, const float* data, int64_t i, bool is_transposed = false) {
  return {data + stack.At(i), stack.stride, is_transposed};
}

void InterleavedDot(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
                    const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (requests[0] == mxnet::kNullOp) return;
  const InterleavedKind kind =
      InterleavedOf(attrs, inputs[0].shape_, inputs.size() > 1 ? &inputs[1].shape_ : nullptr);
  const bool adds = requests[0] == mxnet::kAddTo;
  const int64_t m = kind.rows, n = kind.others, k = kind.columns;
  auto first = static_cast<const float*>(inputs[0].dptr_);
  auto last = static_cast<const float*>(inputs.back().dptr_);
  auto to = static_cast<float*>(outputs[0].dptr_);
  if (!adds && (kind.makes_scores ? k : n) == 0) std::memset(to, 0, Bytes(outputs[0]));
  if (m == 0 || n == 0 || k == 0) return;
  if (kind.makes_scores) {
    const Stack q = kind.queries(), keys = kind.keys(), scores = kind.scores();
    const float factor = 1 / std::sqrt(static_cast<float>(k));
    EachProduct(kind, 1, [&](int64_t i) {
      const float* scaled = ScaledCopy(q, first + q.At(i), factor, 0);
      MultiplyOne(m, k, n, {scaled, k, false}, At(keys, last, i, true), to + scores.At(i), n, adds);
    });
  } else {
    const Stack values = kind.values(), scores = kind.scores(), mixed = kind.mixed();
    EachProduct(kind, 1, [&](int64_t i) {
      MultiplyOne(m, n, k, At(scores, last, i), At(values, first, i), to + mixed.At(i), mixed.stride, adds);
    });
  }
}

/* What a gradient is written to, or null. */
inline float* Wanted(const std::vector<TBlob>& outputs, const std::vector<OpReqType>& requests, size_t i) {
  return requests[i] == mxnet::kNullOp ? nullptr : static_cast<float*>(outputs[i].dptr_);
}

/* Gradients of queries and keys: of scores times keys, and of transposed scores times queries. */
void ScoresBackward(const InterleavedKind& kind, const std::vector<TBlob>& inputs,
                    const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  const Stack q = kind.queries(), keys = kind.keys(), scores = kind.scores();
  const int64_t m = kind.rows, n = kind.others, k = kind.columns, parts = kind.parts();
  const size_t last = outputs.size() - 1;
  const float factor = 1 / std::sqrt(static_cast<float>(k));
  auto grad = static_cast<const float*>(inputs[0].dptr_);
  auto of_queries = static_cast<const float*>(inputs[1].dptr_);
  auto of_keys = static_cast<const float*>(inputs.back().dptr_);
  float *to_queries = Wanted(outputs, requests, 0), *to_keys = Wanted(outputs, requests, last);
  const bool adds_queries = requests[0] == mxnet::kAddTo, adds_keys = requests[last] == mxnet::kAddTo;
  EachProduct(kind, 2, [&](int64_t i) {
    if (to_keys && !adds_keys) ClearOthers(keys, parts, 0, parts - 1, i, to_keys);  // values'
    if (to_queries)
      MultiplyOne(m, n, k, At(scores, grad, i), {ScaledCopy(keys, of_keys + keys.At(i), factor, 0), k, false},
                  to_queries + q.At(i), q.stride, adds_queries);
    if (to_keys)
      MultiplyOne(n, m, k, At(scores, grad, i, true), {ScaledCopy(q, of_queries + q.At(i), factor, 1), k, false},
                  to_keys + keys.At(i), keys.stride, adds_keys);
  });
}

/* Gradients of values and of attention's weights. */
void MixedBackward(const InterleavedKind& kind, const std::vector<TBlob>& inputs,
                   const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  const Stack values = kind.values(), scores = kind.scores(), mixed = kind.mixed();
  const int64_t m = kind.rows, n = kind.others, k = kind.columns, parts = kind.parts();
  auto grad = static_cast<const float*>(inputs[0].dptr_);
  auto of_values = static_cast<const float*>(inputs[1].dptr_);
  auto weights = static_cast<const float*>(inputs[2].dptr_);
  float *to_values = Wanted(outputs, requests, 0), *to_weights = Wanted(outputs, requests, 1);
  const bool adds_values = requests[0] == mxnet::kAddTo, adds_weights = requests[1] == mxnet::kAddTo;
  EachProduct(kind, 2, [&](int64_t i) {
    if (to_values && !adds_values) ClearOthers(values, parts, parts - 1, 1, i, to_values);
    if (to_values)
      MultiplyOne(n, m, k, At(scores, weights, i, true), At(mixed, grad, i), to_values + values.At(i),
                  values.stride, adds_values);
    if (to_weights)
      MultiplyOne(m, k, n, At(mixed, grad, i), At(values, of_values, i, true), to_weights + scores.At(i), n,
                  adds_weights);
  });
}

void InterleavedBackward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
                         const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  const InterleavedKind kind =
      InterleavedOf(attrs, inputs[1].shape_, inputs.size() > 2 ? &inputs[2].shape_ : nullptr);
  if (kind.rows == 0 || kind.others == 0 || kind.columns == 0) {
    for (size_t i = 0; i < outputs.size(); ++i)
      if (requests[i] != mxnet::kNullOp && requests[i] != mxnet::kAddTo)
        std::memset(outputs[i].dptr_, 0, Bytes(outputs[i]));
    return;
  }
  (kind.makes_scores ? ScoresBackward : MixedBackward)(kind, inputs, requests, outputs);
}

bool InterleavedBackwardShape(const NodeAttrs&, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = (*in)[i + 1];
  return mxnet::shape_is_known(in->back());
}

std::vector<NodeEntry> InterleavedGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  return GradientsByInputs("_backward_graphopt_interleaved_dot", node, heads[0],
                           {{"kind", TextOf(node->attrs, "kind", "")},
                            {"heads", TextOf(node->attrs, "heads", "0")}});
}

void RegisterInterleaved() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& op = registry->__REGISTER_OR_GET__("graphopt_interleaved_dot");
  op.get_num_inputs = LegacyFunction(&InterleavedInputs);
  op.set_num_outputs(1);
  SetAttribute<mxnet::FInferShape>(op, "FInferShape", LegacyFunction(&InterleavedShape));
  SetAttribute<nnvm::FInferType>(op, "FInferType", LegacyFunction(&InterleavedType));
  SetAttribute<mxnet::FCompute>(op, "FCompute<cpu>", LegacyFunction(&InterleavedDot));
  SetAttribute<nnvm::FGradient>(op, "FGradient", LegacyFunction(&UnlessZeros<InterleavedGradient>));
  nnvm::Op& back = registry->__REGISTER_OR_GET__("_backward_graphopt_interleaved_dot");
  back.get_num_inputs = LegacyFunction(&InterleavedBackwardInputs);
  back.get_num_outputs = LegacyFunction(&InterleavedInputs);
  SetAttribute<mxnet::FInferShape>(back, "FInferShape", LegacyFunction(&InterleavedBackwardShape));
  SetAttribute<nnvm::FInferType>(back, "FInferType", LegacyFunction(&InterleavedType));
  SetAttribute<mxnet::FCompute>(back, "FCompute<cpu>", LegacyFunction(&InterleavedBackward));
}

}  // namespace graphopt
