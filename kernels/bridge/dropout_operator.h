/*
 * The operator graphopt_dropout: MXNet's Dropout of float32 by a seed that is an input; see dropout.h.
 *
 * Attributes: `p`, the probability that an element is dropped; `salt`, which tells the masks of one seed apart. Inputs:
 * data, and the seed, int32 of shape (2,). As MXNet's it returns its input where the call is no training, and so does its
 * gradient where backward is none.
 */
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "arrays.h"
#include "dropout.h"
#include "legacy.h"
#include "recurrence_shapes.h"

namespace graphopt {

constexpr double kDropoutNs = 0.3;  // an element

bool DropoutShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Settle(attrs, 1, Shaped({2}), &(*in)[1]);
  mxnet::TShape &data = (*in)[0], &made = (*out)[0];
  if (!mxnet::shape_is_known(data)) data = made;
  made = data;
  if (out->size() > 1) (*out)[1] = Shaped({2});
  return mxnet::shape_is_known(data);
}

bool DropoutType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  for (size_t i = 0; i < in->size(); ++i) {
    const int wanted = i ? mshadow::kInt32 : mshadow::kFloat32;
    if ((*in)[i] == -1) (*in)[i] = wanted;
    if ((*in)[i] != wanted) Fail("node " + attrs.name + " drops float32 by a seed of int32");
  }
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = (*in)[i];
  return true;
}

dropout::Mask MaskOf(const NodeAttrs& attrs, const TBlob& seed) {
  const double dropped = std::stod(TextOf(attrs, "p", "0.5"));
  if (!(dropped >= 0 && dropped < 1)) Fail("node " + attrs.name + " drops a share of 0 to 1, not 1");
  auto words = static_cast<const int32_t*>(seed.dptr_);
  const uint64_t joined = static_cast<uint64_t>(static_cast<uint32_t>(words[0])) << 32 | static_cast<uint32_t>(words[1]);
  const uint64_t salt = std::stoull(TextOf(attrs, "salt", "0"));
  return {joined + salt * 0xd1342543de82ef95u, static_cast<float>(1 - dropped)};
}

/* to = from times the mask, or from itself outside of training; or it is added. */
void DropElements(const NodeAttrs& attrs, const TBlob& seed, const TBlob& from, const TBlob& to, bool is_train,
                  OpReqType request, int threads) {
  const int64_t count = from.shape_.Size();
  if (request == mxnet::kNullOp || count == 0) return;
  auto read = static_cast<const float*>(from.dptr_);
  auto made = static_cast<float*>(to.dptr_);
  const bool adds = request == mxnet::kAddTo;
  if (is_train) {
    dropout::Apply(MaskOf(attrs, seed), read, made, count, adds, threads);
  } else if (adds) {
    for (int64_t i = 0; i < count; ++i) made[i] += read[i];
  } else if (read != made) {
    std::memcpy(made, read, count * sizeof(float));
  }
}

/* Of forward and backward: the first input times the mask; a seed has no gradient. */
void Dropout(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
             const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (outputs.size() > 1 && requests[1] != mxnet::kNullOp && requests[1] != mxnet::kAddTo)
    std::memset(outputs[1].dptr_, 0, Bytes(outputs[1]));
  const int64_t count = inputs[0].shape_.Size();
  DropElements(attrs, inputs[1], inputs[0], outputs[0], context.is_train, requests[0],
               Threads(kDropoutNs * count, count));
}

std::vector<std::pair<int, int>> DropoutPairs(const NodeAttrs&) { return {{0, 0}}; }

std::vector<NodeEntry> DropoutGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  std::vector<std::pair<std::string, std::string>> attrs;
  attrs.emplace_back("p", TextOf(node->attrs, "p", "0.5"));
  attrs.emplace_back("salt", TextOf(node->attrs, "salt", "0"));
  ObjectPtr made = MakeNode("_backward_graphopt_dropout", node->attrs.name + "_backward", attrs);
  View(made).inputs = {heads[0], View(node).inputs[1]};
  return {NodeEntry(made, 0, 0), NodeEntry(made, 1, 0)};
}

void RegisterDropout() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  for (const char* name : {"graphopt_dropout", "_backward_graphopt_dropout"}) {
    nnvm::Op& op = registry->__REGISTER_OR_GET__(name);
    const bool is_forward = name[0] == 'g';
    op.set_num_inputs(2).set_num_outputs(is_forward ? 1 : 2);
    SetAttribute<mxnet::FInferShape>(op, "FInferShape", LegacyFunction(&DropoutShape));
    SetAttribute<nnvm::FInferType>(op, "FInferType", LegacyFunction(&DropoutType));
    SetAttribute<nnvm::FInplaceOption>(op, "FInplaceOption", LegacyFunction(&DropoutPairs));
    SetAttribute<mxnet::FCompute>(op, "FCompute<cpu>", LegacyFunction(&Dropout));
    if (is_forward)
      SetAttribute<nnvm::FGradient>(op, "FGradient", LegacyFunction(&UnlessZeros<DropoutGradient>));
  }
}

}  // namespace graphopt
