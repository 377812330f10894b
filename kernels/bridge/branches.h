/*
 * Gradients that MXNet's cond and while_loop leave unwritten.
 *
 * MXNet's backward writes the gradients of what the branch taken reads, and of a loop without a step only those of its
 * variables. All others are memory as it was found. A value that is computed before a cond is an input of each branch
 * that reads it, so one of the two is always such, and the sum of both is the value's gradient.
 */
#pragma once

#include <vector>

#include "legacy.h"

namespace graphopt {

mxnet::FStatefulComputeEx plain_cond_gradient, plain_loop_gradient;

/* As `plain`, but what it does not write is zero. */
template <mxnet::FStatefulComputeEx& plain>
void ZerosUnlessWritten(const mxnet::OpStatePtr& state, const mxnet::OpContext& context,
                        const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                        const std::vector<NDArray>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (requests[i] != mxnet::kWriteTo) continue;
    NDArray gradient = outputs[i];
    gradient = 0.0f;
  }
  plain(state, context, inputs, requests, outputs);
}

/* MXNet has one function for CPUs and GPUs. */
void ReplaceOnAllDevices(const char* op, mxnet::FStatefulComputeEx* plain, const mxnet::FStatefulComputeEx& ours) {
  const nnvm::Op* found = nnvm::Op::Get(op);
  *plain = nnvm::Op::GetAttr<mxnet::FStatefulComputeEx>("FStatefulComputeEx<cpu>")[found];
  for (const char* device : {"FStatefulComputeEx<cpu>", "FStatefulComputeEx<gpu>"})
    if (nnvm::Op::GetAttrMap(device) != nullptr) SetAttribute<mxnet::FStatefulComputeEx>(*found, device, ours);
}

void WriteAllGradients() {
  ReplaceOnAllDevices("_backward_cond", &plain_cond_gradient,
                      LegacyFunction(&ZerosUnlessWritten<plain_cond_gradient>));
  ReplaceOnAllDevices("_backward_while_loop", &plain_loop_gradient,
                      LegacyFunction(&ZerosUnlessWritten<plain_loop_gradient>));
}

}  // namespace graphopt
