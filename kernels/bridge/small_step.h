/*
 * A training step of a small graph that ends in losses: forward, backward and the update of its weights, by the thread
 * that calls it where nothing has to be waited for.
 */
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "small_operator.h"
#include "update.h"

namespace graphopt {

struct SmallStep {
  SmallShared graph;
  std::unique_ptr<Update> update;
  std::vector<NDArray> in, out;
  std::vector<NDArray> gradients;  // of the inputs; without an array where nobody wants one
};

/* What is between forward and backward is memory of this thread. */
void RunStep(const SmallStep& step) {
  std::vector<NDArray> plain;  // copies live until they have been read
  for (const NDArray& array : step.in) plain.push_back(InPlainOrder(array));
  for (const NDArray& array : step.out) PutInPlainOrder(array);
  const std::vector<TBlob> in = BlobsOf(plain), out = BlobsOf(step.out);
  step.graph->Forward(in, out, true);
  std::vector<OpReqType> requests;
  std::vector<TBlob> gradients, heads = out;
  for (size_t i = 0; i < in.size(); ++i) {
    const NDArray& gradient = step.gradients[i];
    requests.push_back(gradient.is_none() ? mxnet::kNullOp : mxnet::kWriteTo);
    if (!gradient.is_none()) PutInPlainOrder(gradient);
    gradients.push_back(gradient.is_none() ? TBlob() : gradient.data());
  }
  static thread_local std::vector<float> ones;
  for (const TBlob& head : heads)
    if (ones.size() < head.shape_.Size()) ones.resize(head.shape_.Size(), 1);
  for (TBlob& head : heads) head.dptr_ = ones.data();
  step.graph->Backward(heads.data(), in, out, requests, gradients);
  UpdateRun(*step.update).All();
}

void PushStep(const SmallShared& graph, void** inputs, void** gradients, void** outputs, const UpdateCall& told) {
  std::unique_ptr<SmallStep> step(new SmallStep{graph, UpdateOf(told), {}, {}, {}});
  step->update->is_small = graph->is_small();  // as what comes before it
  for (int64_t i = 0; i < graph->inputs(); ++i) {
    step->in.push_back(*static_cast<NDArray*>(inputs[i]));
    step->gradients.push_back(gradients[i] ? *static_cast<NDArray*>(gradients[i]) : NDArray());
  }
  for (int64_t i = 0; i < graph->outputs(); ++i) {
    step->out.push_back(*static_cast<NDArray*>(outputs[i]));
    if (graph->output(i).type_flag_ != mshadow::kFloat32) Fail("losses of a small step are not float32");
  }
  for (const NDArray& gradient : step->gradients)
    if (!gradient.is_none() && !AreDense({gradient})) Fail("a gradient of a small step is not dense");
  if (!AreDense(step->in)) Fail("an array of a small step is not dense");
  MakeOld(told);
  Variables read = VariablesOf(step->in), written = VariablesOf(step->out);
  for (const NDArray& gradient : step->gradients)
    if (!gradient.is_none()) written.push_back(ChunkOf(gradient)->variable);
  for (uint32_t input : graph->Written()) written.push_back(ChunkOf(step->in[input])->variable);
  AddVariables(*step->update, &read, &written);
  Push([](void*, void* given) { RunStep(*static_cast<SmallStep*>(given)); }, step.release(),
       [](void* given) { delete static_cast<SmallStep*>(given); }, read, written, graph->is_small(), "graphopt_step");
}

}  // namespace graphopt
