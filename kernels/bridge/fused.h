/*
 * The operators graphopt_fused and _backward_graphopt_fused.
 *
 * A fused operator's attribute `spec` says what it computes. Python turns a spec into a plan (what the
 * operands are, fused_plan.h) and a compiled kernel, which walks tiles of rows (fused_run.h). Nothing of
 * Python runs in a call, once a kernel is compiled.
 */
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fused_run.h"

namespace graphopt {

mxnet::TShape ShapeOf(const Operand& operand, const std::vector<int64_t>& axes) {
  mxnet::TShape shape(static_cast<int>(operand.axes.size()), -1);
  for (size_t d = 0; d < operand.axes.size(); ++d)
    shape[d] = operand.axes[d] < 0 ? 1 : axes[operand.axes[d]];
  return shape;
}

/* Extents of axes by what the node states, and by the shapes that are known. */
std::vector<int64_t> AxesOf(const NodeAttrs& attrs, const Plan& plan,
                            const mxnet::ShapeVector& in) {
  std::vector<int64_t> axes = StatedExtents(attrs, plan);
  for (size_t i = 0; i < in.size(); ++i) {
    auto whose = [&] { return "input " + std::to_string(i) + " of node " + attrs.name; };
    if (mxnet::shape_is_known(in[i])) Fit(plan.inputs[i], in[i], whose, &axes);
  }
  return axes;
}

/* What a kernel computes in: elements, -1 as long as extents are not known. */
mxnet::TShape FusedScratchShape(Plan* plan, const std::vector<int64_t>& axes) {
  mxnet::TShape shape(1, -1);
  if (std::all_of(axes.begin(), axes.end(), [](int64_t extent) { return extent >= 0; }))
    shape[0] = PlannedElements(TilingOf(SpaceOf(plan, axes)), plan->item_size);
  return shape;
}

int ScratchType(const Plan& plan) {
  return plan.item_size == 4 ? mshadow::kFloat32 : mshadow::kFloat64;
}

bool AllKnown(const mxnet::ShapeVector& shapes) {
  return std::all_of(shapes.begin(), shapes.end(),
                     [](const mxnet::TShape& shape) { return mxnet::shape_is_known(shape); });
}

bool InferShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Plan* plan = FindPlan(attrs, false);
  std::vector<int64_t> axes = AxesOf(attrs, *plan, *in);
  for (size_t i = 0; i < plan->outputs.size(); ++i) {
    mxnet::TShape shape = ShapeOf(plan->outputs[i], axes);
    if ((*out)[i].ndim() >= 0 && (*out)[i] != shape && mxnet::shape_is_known(shape) &&
        mxnet::shape_is_known((*out)[i]))
      Fail("output " + std::to_string(i) + " of node " + attrs.name + " has another shape there");
    (*out)[i] = shape;
  }
  if (plan->has_scratch) out->back() = FusedScratchShape(plan, axes);
  return AllKnown(*in) && AllKnown(*out);
}

/* Of a backward node whose inputs tell all extents. */
bool BackwardShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Plan *forward = FindPlan(attrs, false), *plan = FindPlan(attrs, true);
  std::vector<int64_t> axes = AxesOf(attrs, *plan, *in);
  for (size_t i = 0; i < in->size(); ++i) {
    const mxnet::TShape wanted = ShapeOf(plan->inputs[i], axes);
    RequireSizeOfHead(attrs, (*in)[i], wanted);
    (*in)[i] = wanted;
  }
  for (size_t i = 0; i < forward->inputs.size(); ++i)
    (*out)[i] = ShapeOf(forward->inputs[i], axes);
  if (HasBackwardScratch(attrs, *plan)) out->back() = FusedScratchShape(plan, axes);
  return AllKnown(*in) && AllKnown(*out);
}

bool InferType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  Plan* plan = FindPlan(attrs, false);
  for (size_t i = 0; i < in->size(); ++i) {
    if ((*in)[i] == -1) (*in)[i] = plan->inputs[i].dtype;
    if ((*in)[i] != plan->inputs[i].dtype)
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has type code " +
           std::to_string((*in)[i]) + "; its kernel was made for " +
           std::to_string(plan->inputs[i].dtype));
  }
  for (size_t i = 0; i < plan->outputs.size(); ++i) (*out)[i] = plan->outputs[i].dtype;
  if (plan->has_scratch) out->back() = ScratchType(*plan);
  return true;
}

bool BackwardType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  Plan *forward = FindPlan(attrs, false), *plan = FindPlan(attrs, true);
  for (size_t i = 0; i < in->size(); ++i) (*in)[i] = TypeOfHead(attrs, (*in)[i], plan->inputs[i].dtype);
  for (size_t i = 0; i < forward->inputs.size(); ++i) (*out)[i] = forward->inputs[i].dtype;
  if (HasBackwardScratch(attrs, *plan)) out->back() = ScratchType(*plan);
  return true;
}

/* What a node asks of its kernel. */
struct Call {
  Plan* plan;
  std::vector<const TBlob*> in, out;
  std::vector<OpReqType> wanted;
  std::vector<const TBlob*> zeroed;  // gradients that are zero
  const TBlob* scratch = nullptr;    // what to compute in, as MXNet planned it
  int most_threads = std::numeric_limits<int>::max();
};

Call ForwardCall(Plan* plan, const std::vector<TBlob>& inputs,
                 const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  Call call;
  call.plan = plan;
  for (const TBlob& blob : inputs) call.in.push_back(&blob);
  for (size_t i = 0; i < call.plan->outputs.size(); ++i) {
    call.out.push_back(&outputs[i]);
    call.wanted.push_back(requests[i]);
  }
  if (call.plan->has_scratch) call.scratch = &outputs.back();
  return call;
}

/* Inputs: those of the plan; outputs: a gradient for every forward input. */
Call BackwardCall(Plan* plan, bool has_scratch, const std::vector<TBlob>& inputs,
                  const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  Call call;
  call.plan = plan;
  const size_t gradients = outputs.size() - has_scratch;
  std::vector<bool> computed(gradients, false);
  for (const TBlob& blob : inputs) call.in.push_back(&blob);
  for (const Operand& operand : call.plan->outputs) {
    call.out.push_back(&outputs[operand.index]);
    call.wanted.push_back(requests[operand.index]);
    computed[operand.index] = true;
  }
  for (size_t i = 0; i < gradients; ++i)
    if (!computed[i] && (requests[i] == mxnet::kWriteTo || requests[i] == mxnet::kWriteInplace))
      call.zeroed.push_back(&outputs[i]);
  if (has_scratch) call.scratch = &outputs.back();
  return call;
}

Call ForwardCall(const NodeAttrs& attrs, const std::vector<TBlob>& inputs,
                 const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  return ForwardCall(FindPlan(attrs, false), inputs, requests, outputs);
}

Call BackwardCall(const NodeAttrs& attrs, const std::vector<TBlob>& inputs,
                  const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  Plan* plan = FindPlan(attrs, true);
  return BackwardCall(plan, HasBackwardScratch(attrs, *plan), inputs, requests, outputs);
}

void Run(const Call& call) {
  for (const TBlob* blob : call.zeroed) std::memset(blob->dptr_, 0, Bytes(*blob));
  if (!call.out.empty())
    Run(call.plan, call.in, call.out, call.wanted, call.scratch, call.most_threads);
}

void Forward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
             const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  Run(ForwardCall(attrs, inputs, requests, outputs));
}

void Backward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
              const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  Run(BackwardCall(attrs, inputs, requests, outputs));
}

uint32_t NumInputs(const NodeAttrs& attrs) { return FindPlan(attrs, false)->inputs.size(); }
uint32_t NumVisibleOutputs(const NodeAttrs& attrs) {
  return FindPlan(attrs, false)->outputs.size();
}
uint32_t NumOutputs(const NodeAttrs& attrs) {
  return NumVisibleOutputs(attrs) + FindPlan(attrs, false)->has_scratch;
}
/* As MXNet names them, which counts those that nobody sees. */
std::vector<std::string> OutputNames(const NodeAttrs& attrs) {
  const uint32_t count = NumVisibleOutputs(attrs);
  std::vector<std::string> names;
  for (uint32_t i = 0; i < count; ++i)
    names.push_back(count == 1 ? "output" : "output" + std::to_string(i));
  if (NumOutputs(attrs) > count) names.push_back("scratch");
  return names;
}

uint32_t NumBackwardInputs(const NodeAttrs& attrs) { return FindPlan(attrs, true)->inputs.size(); }
uint32_t NumBackwardOutputs(const NodeAttrs& attrs) {
  return NumInputs(attrs) + HasBackwardScratch(attrs, *FindPlan(attrs, true));
}

/* Pairs of an input and an output that MXNet may give one array; none where Python wants them
 * `apart`. */
std::vector<std::pair<int, int>> Pairs(const NodeAttrs& attrs) {
  if (Flag(attrs, "apart")) return {};
  return FindPlan(attrs, false)->pairs;
}

std::vector<std::pair<int, int>> BackwardPairs(const NodeAttrs& attrs) {
  Plan* plan = FindPlan(attrs, true);
  std::vector<std::pair<int, int>> pairs;
  for (auto [input, output] : plan->pairs)
    pairs.emplace_back(input, plan->outputs[output].index);
  return pairs;
}

/* What the name of a gradient's operator ends in where it infers its own shapes, as it has scratch or leaves gradients out.
 *
 * Of an operator that says of itself that it is a gradient MXNet takes the first node it waits for as the
 * forward node, if there is one. Gradients with scratch must not say so, as where eight or more gradients are
 * added up, MXNet has each of them wait for the sum before it; nor may those that have gradients of some inputs only. */
constexpr char kAlone[] = "_alone";

/* Whether backward computes a gradient of an input, as it does not of conditions. */
bool HasGradient(const Plan& backward, int input) {
  return std::any_of(backward.outputs.begin(), backward.outputs.end(),
                     [input](const Operand& output) { return output.index == input; });
}

bool AllHaveGradients(const Plan& backward, int inputs) {
  for (int i = 0; i < inputs; ++i)
    if (!HasGradient(backward, i)) return false;
  return true;
}

std::vector<NodeEntry> GradientBy(const std::string& op, const ObjectPtr& node,
                                  const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  Plan* plan = FindPlan(attrs, true);
  const uint32_t inputs = View(node).inputs.size();
  // Of a node that is not alone MXNet wants to see all gradients, to match them with the forward node's inputs.
  const bool leaves_out = !AllHaveGradients(*plan, inputs) && (KnowsShapes(*plan) || attrs.dict.count(kExtents));
  const bool is_alone = leaves_out || HasBackwardScratch(attrs, *plan);
  std::vector<std::pair<std::string, std::string>> given{{"spec", plan->spec}};
  auto stated = attrs.dict.find(kExtents);
  if (stated != attrs.dict.end()) given.push_back(*stated);
  const std::string name = is_alone ? op + kAlone : op;
  ObjectPtr made = MakeNode(name.c_str(), attrs.name + "_backward", given);
  LegacyNode& backward = View(made);
  // Of such a node MXNet takes the shapes from the forward node, and never asks for others.
  if (!is_alone) backward.control_deps.push_back(node);
  LegacyNode& forward = View(node);
  for (const Operand& operand : plan->inputs) {
    switch (operand.source) {
      case kHead: backward.inputs.push_back(heads[operand.index]); break;
      case kInput: backward.inputs.push_back(forward.inputs[operand.index]); break;
      default: backward.inputs.emplace_back(node, operand.index, 0);
    }
  }
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < inputs; ++i)
    gradients.push_back(leaves_out && !HasGradient(*plan, i) ? ZerosLike(node, i) : NodeEntry(made, i, 0));
  return gradients;
}

std::vector<NodeEntry> Gradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  return GradientBy("_backward_graphopt_fused", node, heads);
}

/* Whether a node computes a loss layer, whose gradient is of its inputs alone. */
bool IsLoss(const ObjectPtr& node) {
  auto spec = node->attrs.dict.find("spec");
  return spec != node->attrs.dict.end() && spec->second.find(" loss_of ") != std::string::npos;
}

/* A loss layer that is read to be looked at only (as through BlockGrad, or its argmax) learns all the same. */
std::vector<NodeEntry> FusedGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  return IsLoss(node) ? Gradient(node, heads) : UnlessZeros<Gradient>(node, heads);
}

/* Says of an operator and its gradients, without and with scratch, all but who runs them. */
void DescribeFused(nnvm::Op* fused, nnvm::Op* backward, nnvm::Op* alone) {
  fused->get_num_inputs = LegacyFunction(&NumInputs);
  fused->get_num_outputs = LegacyFunction(&NumOutputs);
  SetAttribute<nnvm::FNumVisibleOutputs>(*fused, "FNumVisibleOutputs",
                                         LegacyFunction(&NumVisibleOutputs));
  SetAttribute<nnvm::FListOutputNames>(*fused, "FListOutputNames", LegacyFunction(&OutputNames));
  SetAttribute<nnvm::FInplaceOption>(*fused, "FInplaceOption", LegacyFunction(&Pairs));
  SetAttribute<mxnet::FInferShape>(*fused, "FInferShape", LegacyFunction(&InferShape));
  SetAttribute<nnvm::FInferType>(*fused, "FInferType", LegacyFunction(&InferType));
  for (nnvm::Op* op : {backward, alone}) {
    op->get_num_inputs = LegacyFunction(&NumBackwardInputs);
    op->get_num_outputs = LegacyFunction(&NumBackwardOutputs);
    SetAttribute<nnvm::FInplaceOption>(*op, "FInplaceOption", LegacyFunction(&BackwardPairs));
    SetAttribute<mxnet::FInferShape>(*op, "FInferShape", LegacyFunction(&BackwardShape));
    SetAttribute<nnvm::FInferType>(*op, "FInferType", LegacyFunction(&BackwardType));
  }
  SetAttribute<nnvm::TIsBackward>(*backward, "TIsBackward", true);
}

}  // namespace graphopt
