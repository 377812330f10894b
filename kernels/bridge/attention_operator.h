/*
 * The operators graphopt_attention and _backward_graphopt_attention; see attention.h.
 */
#pragma once

#include <cstring>
#include <vector>

#include "attention_gradient.h"

namespace graphopt {

uint32_t AttentionInputs(const NodeAttrs& attrs) { return Attention(attrs).inputs(); }
uint32_t AttentionBackwardInputs(const NodeAttrs& attrs) { return Attention(attrs).inputs() + 1; }

bool AttentionShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const Attention node(attrs);
  if (node.drops) Settle(attrs, in->size() - 1, Shaped({2}), &in->back());
  if (!AllKnown(*in)) return false;
  const AttentionSizes sizes(attrs, node, in->data());
  (*out)[0] = node.mixed.ShapeOf(sizes.products, sizes.rows, sizes.values.columns);
  return true;
}

bool AttentionBackwardShape(const NodeAttrs&, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = (*in)[i + 1];
  return AllKnown(*in) && AllKnown(*out);
}

/* Of the inputs, from the `first` on. */
void SettleTypes(const NodeAttrs& attrs, size_t first, std::vector<int>* in) {
  const Attention node(attrs);
  std::vector<int> wanted(node.arrays, mshadow::kFloat32);
  for (int64_t i = 0; i < static_cast<int64_t>(node.kernel->inputs.size()); ++i)
    if (i != node.scores) wanted.push_back(node.kernel->inputs[i].dtype);
  if (node.drops) wanted.push_back(mshadow::kInt32);
  for (size_t i = 0; i < wanted.size(); ++i) {
    int& type = (*in)[first + i];
    if (type == -1) type = wanted[i];
    if (type != wanted[i])
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has type code " + std::to_string(type) +
           ", not " + std::to_string(wanted[i]));
  }
}

bool AttentionType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  SettleTypes(attrs, 0, in);
  (*out)[0] = mshadow::kFloat32;
  return true;
}

bool AttentionBackwardType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  (*in)[0] = TypeOfHead(attrs, (*in)[0], mshadow::kFloat32);
  SettleTypes(attrs, 1, in);
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = (*in)[i + 1];
  return true;
}

void AttentionForward(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
                      const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (requests[0] == mxnet::kNullOp) return;
  const bool adds = requests[0] == mxnet::kAddTo;
  const Attention node(attrs);
  const AttentionCall call(attrs, node, inputs, 0, context.is_train);
  if (call.sizes.IsEmpty()) {
    if (!adds) std::memset(outputs[0].dptr_, 0, Bytes(outputs[0]));
    return;
  }
  RunAttention(call, node.mixed.In(outputs[0].shape_), static_cast<float*>(outputs[0].dptr_), adds);
}

/* Inputs: the gradient of the result, and the inputs. */
void AttentionBackward(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
                       const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  const Attention node(attrs);
  const AttentionCall call(attrs, node, inputs, 1, context.is_train);
  Plan* plan = FindPlan(attrs, true);
  std::vector<bool> is_computed(outputs.size(), false);
  std::fill_n(is_computed.begin(), node.arrays, true);
  for (const Operand& output : plan->outputs)
    if (output.index != node.scores) is_computed[node.InputOf(output.index)] = true;
  const bool is_empty = call.sizes.IsEmpty();
  for (size_t i = 0; i < outputs.size(); ++i)
    if ((is_empty || !is_computed[i]) && requests[i] != mxnet::kNullOp && requests[i] != mxnet::kAddTo)
      std::memset(outputs[i].dptr_, 0, Bytes(outputs[i]));
  if (is_empty) return;
  auto wanted = [&](const Site& place) {
    const OpReqType request = requests[place.input];
    float* at = request == mxnet::kNullOp ? nullptr : static_cast<float*>(outputs[place.input].dptr_);
    return Sink{at, request == mxnet::kAddTo};
  };
  AttentionGradients asked{node.mixed.In(inputs[0].shape_), static_cast<const float*>(inputs[0].dptr_), plan};
  asked.made = plan->outputs.size();
  asked.queries = wanted(node.queries);
  asked.keys = wanted(node.keys);
  asked.values = wanted(node.values);
  for (const Operand& operand : plan->inputs)
    asked.operands.push_back(operand.source == kInput && operand.index != node.scores
                                 ? &inputs[1 + node.InputOf(operand.index)]
                                 : nullptr);
  for (size_t i = 0; i < plan->outputs.size(); ++i) {
    const int64_t of = plan->outputs[i].index;
    if (of == node.scores) asked.made = i;
    asked.outputs.push_back(of == node.scores ? nullptr : &outputs[node.InputOf(of)]);
    asked.requests.push_back(of == node.scores ? mxnet::kWriteTo : requests[node.InputOf(of)]);
  }
  if (asked.made == plan->outputs.size())
    Fail("node " + attrs.name + " has a kernel without a gradient of scores");
  RunAttentionBackward(call, asked);
}

std::vector<NodeEntry> AttentionGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  std::vector<std::pair<std::string, std::string>> attrs;
  for (const char* key : {"spec", "scores", "queries", "keys", "values", "mixed", "scaled", "heads", "p", "salt"})
    if (node->attrs.dict.count(key)) attrs.emplace_back(key, TextOf(node->attrs, key, ""));
  return GradientsByInputs("_backward_graphopt_attention", node, heads[0], attrs);
}

void RegisterAttention() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& op = registry->__REGISTER_OR_GET__("graphopt_attention");
  op.get_num_inputs = LegacyFunction(&AttentionInputs);
  op.set_num_outputs(1);
  SetAttribute<mxnet::FInferShape>(op, "FInferShape", LegacyFunction(&AttentionShape));
  SetAttribute<nnvm::FInferType>(op, "FInferType", LegacyFunction(&AttentionType));
  SetAttribute<mxnet::FCompute>(op, "FCompute<cpu>", LegacyFunction(&AttentionForward));
  SetAttribute<nnvm::FGradient>(op, "FGradient", LegacyFunction(&UnlessZeros<AttentionGradient>));
  nnvm::Op& back = registry->__REGISTER_OR_GET__("_backward_graphopt_attention");
  back.get_num_inputs = LegacyFunction(&AttentionBackwardInputs);
  back.get_num_outputs = LegacyFunction(&AttentionInputs);
  SetAttribute<mxnet::FInferShape>(back, "FInferShape", LegacyFunction(&AttentionBackwardShape));
  SetAttribute<nnvm::FInferType>(back, "FInferType", LegacyFunction(&AttentionBackwardType));
  SetAttribute<mxnet::FCompute>(back, "FCompute<cpu>", LegacyFunction(&AttentionBackward));
}

}  // namespace graphopt
