/*
 * The operator graphopt_carry: its first input, on the way to what runs a training graph, so that the gradient of it
 * passes here last, behind all of that graph's backward; there MXNet's engine is told that states were written.
 *
 * MXNet's CachedOp, where it plans ahead, counts as readers of states those of its operators that write them. What reads
 * a state behind backward would not wait for them, and no count would show that it was written.
 *
 * Attribute: `states`, how many there are. Inputs: an array of float32 that is learned, and the states; backward reads
 * the gradient of the output, and writes nothing to the states.
 */
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "legacy.h"

namespace graphopt {

uint32_t CarryInputs(const NodeAttrs& attrs) { return 1 + std::stoul(AttributeOf(attrs, "states")); }

bool CarryShape(const NodeAttrs&, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  (*out)[0] = (*in)[0];
  return mxnet::shape_is_known((*out)[0]);
}

bool CarryType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  if ((*in)[0] != mshadow::kFloat32) Fail("node " + attrs.name + " carries float32");
  (*out)[0] = (*in)[0];
  return true;
}

void Carry(const NodeAttrs&, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
           const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (requests[0] == mxnet::kNullOp) return;
  auto from = static_cast<const float*>(inputs[0].dptr_);
  auto to = static_cast<float*>(outputs[0].dptr_);
  const int64_t count = inputs[0].shape_.Size();
  if (requests[0] != mxnet::kAddTo)
    std::memcpy(to, from, count * sizeof(float));
  else
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

std::vector<uint32_t> CarryWrites(const NodeAttrs& attrs) {
  std::vector<uint32_t> states(CarryInputs(attrs) - 1);
  for (uint32_t i = 0; i < states.size(); ++i) states[i] = 1 + i;
  return states;
}

std::vector<NodeEntry> CarryGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  ObjectPtr made = MakeNode("_backward_graphopt_carry", node->attrs.name + "_backward",
                            {{"states", AttributeOf(node->attrs, "states")}});
  std::vector<NodeEntry> read = View(node).inputs;
  std::vector<NodeEntry> gradients{NodeEntry(made, 0, 0)};
  ObjectPtr none = MakeNode("_NoGradient", "NoGradient", {});
  for (size_t i = 1; i < read.size(); ++i) gradients.emplace_back(none, 0, 0);
  read[0] = heads[0];
  View(made).inputs = read;
  return gradients;
}

void RegisterCarry() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__("graphopt_carry");
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_carry");
  for (nnvm::Op* op : {&forward, &backward}) {
    op->get_num_inputs = LegacyFunction(&CarryInputs);
    op->set_num_outputs(1);
    SetAttribute<mxnet::FInferShape>(*op, "FInferShape", LegacyFunction(&CarryShape));
    SetAttribute<nnvm::FInferType>(*op, "FInferType", LegacyFunction(&CarryType));
    SetAttribute<mxnet::FCompute>(*op, "FCompute<cpu>", LegacyFunction(&Carry));
  }
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&UnlessZeros<CarryGradient>));
  SetAttribute<nnvm::FMutateInputs>(backward, "FMutateInputs", LegacyFunction(&CarryWrites));
}

}  // namespace graphopt
