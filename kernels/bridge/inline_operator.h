/*
 * The operators graphopt_fused_inline and _backward_graphopt_fused_inline: graphopt_fused for arrays so
 * small that computing takes less time than waking a thread of MXNet's engine.
 *
 * MXNet calls an operator of this ExecType at once, in the thread that calls the net. Here it is pushed
 * to the engine as asynchronous, which the engine runs in the same thread where nothing has to be
 * waited for, and in one of its own otherwise. Only MXNet's CachedOp that is not static may have these:
 * executors take this ExecType for a copy.
 */
#pragma once

#include <dlfcn.h>
#include <mxnet/imperative.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "fused.h"
#include "keeping_operator.h"
#include "versions.h"

namespace graphopt {

constexpr const char* kInline = "graphopt_fused_inline";
constexpr const char* kInlineBackward = "_backward_graphopt_fused_inline";

struct InlineCall {
  Plan* plan;
  bool is_backward, has_scratch;
  std::vector<NDArray> in, out;
  std::vector<OpReqType> requests;
};

/* The array itself, or a copy where oneDNN has laid it out in a way of its own. */
NDArray InPlainOrder(const NDArray& array) {
  if (!ChunkOf(array)->memory) return array;
  // A method that MXNet's headers show to those who are built with oneDNN.
  using Reorder = NDArray (*)(const NDArray*);
  static const auto reorder =
      reinterpret_cast<Reorder>(dlsym(RTLD_DEFAULT, "_ZNK5mxnet7NDArray15Reorder2DefaultEv"));
  if (!reorder) Fail("this MXNet cannot give back an array that oneDNN has laid out");
  return reorder(&array);
}

/* Lays an array that is written out in MXNet's own order, and with it all that shares its memory. */
void PutInPlainOrder(const NDArray& array) {
  LegacyChunk& chunk = *ChunkOf(array);
  if (!chunk.memory) return;
  const NDArray plain = InPlainOrder(array);
  const LegacyChunk& from = *ChunkOf(plain);
  chunk.memory.reset();
  if (&from != &chunk)
    std::memcpy(chunk.data.dptr, from.data.dptr, std::min(chunk.data.size, from.data.size));
}

void RunInline(void*, void* given) {
  const InlineCall& made = *static_cast<InlineCall*>(given);
  std::vector<NDArray> in;  // copies live until the kernel has read them
  for (const NDArray& array : made.in) in.push_back(InPlainOrder(array));
  for (const NDArray& array : made.out) PutInPlainOrder(array);
  const std::vector<TBlob> from = BlobsOf(in), to = BlobsOf(made.out);
  Call call = made.is_backward
                  ? BackwardCall(made.plan, made.has_scratch, from, made.requests, to)
                  : ForwardCall(made.plan, from, made.requests, to);
  call.most_threads = 1;  // workers of the caller's thread would take cores from MXNet's
  Run(call);
}

std::vector<Variable*> VariablesOf(const std::vector<NDArray>& arrays) {
  std::vector<Variable*> found;
  for (const NDArray& array : arrays) found.push_back(ChunkOf(array)->variable);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void PushInline(std::unique_ptr<InlineCall> call) {
  std::vector<Variable*> written = VariablesOf(call->out), read;
  const std::vector<Variable*> every = VariablesOf(call->in);
  std::set_difference(every.begin(), every.end(), written.begin(), written.end(),
                      std::back_inserter(read));
  mxnet::Context context = mxnet::Context::CPU();
  mxnet::FnProperty property = mxnet::FnProperty::kAsync;
  auto forget = [](void* given) { delete static_cast<InlineCall*>(given); };
  if (MXEnginePushSync(&RunInline, call.release(), forget, &context, read.data(), read.size(),
                       written.data(), written.size(), &property, 0, kInline) != 0)
    Fail(MXGetLastError());
}

bool AreDense(const std::vector<NDArray>& arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const NDArray& array) {
    return array.storage_type() == mxnet::kDefaultStorage;
  });
}

/* Has MXNet run the operator that its engine runs, with dense arrays beside sparse ones. */
void RunOnEngine(const NodeAttrs& attrs, bool is_backward, const std::vector<NDArray>& in,
                 const std::vector<OpReqType>& requests, const std::vector<NDArray>& out) {
  const ObjectPtr node = MakeNode(is_backward ? "_backward_graphopt_fused" : "graphopt_fused",
                                  attrs.name, {attrs.dict.begin(), attrs.dict.end()});
  auto handles = [](const std::vector<NDArray>& arrays) {
    std::vector<NDArray*> found;
    for (const NDArray& array : arrays) found.push_back(const_cast<NDArray*>(&array));
    return found;
  };
  mxnet::Imperative::Get()->InvokeOp(mxnet::Context::CPU(), node->attrs, handles(in), handles(out),
                                     requests, mxnet::DispatchMode::kFCompute,
                                     mxnet::OpStatePtr());
}

void CallInline(const NodeAttrs& attrs, bool is_backward, const std::vector<NDArray>& in,
                const std::vector<OpReqType>& requests, const std::vector<NDArray>& out) {
  if (!AreDense(in) || !AreDense(out)) return RunOnEngine(attrs, is_backward, in, requests, out);
  Plan* plan = FindPlan(attrs, is_backward);
  const bool has_scratch = is_backward && HasBackwardScratch(attrs, *plan);
  PushInline(std::unique_ptr<InlineCall>(
      new InlineCall{plan, is_backward, has_scratch, in, out, requests}));
}

void InlineForward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<NDArray>& in,
                   const std::vector<OpReqType>& requests, const std::vector<NDArray>& out) {
  CallInline(attrs, false, in, requests, out);
}

void InlineBackward(const NodeAttrs& attrs, const mxnet::OpContext&,
                    const std::vector<NDArray>& in, const std::vector<OpReqType>& requests,
                    const std::vector<NDArray>& out) {
  CallInline(attrs, true, in, requests, out);
}

std::vector<NodeEntry> InlineGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  return GradientBy(kInlineBackward, node, heads);
}

/* What there is may be sparse all the same: the gradients that a user has attached. */
bool InlineStorage(const NodeAttrs&, int, mxnet::DispatchMode* mode, std::vector<int>* in,
                   std::vector<int>* out) {
  for (auto kinds : {in, out})
    for (int& kind : *kinds)
      if (kind == mxnet::kUndefinedStorage) kind = mxnet::kDefaultStorage;
  *mode = mxnet::DispatchMode::kFComputeEx;
  return true;
}

mxnet::ExecType InlineWhere(const NodeAttrs&) { return mxnet::ExecType::kCrossDeviceCopy; }

void RegisterInline() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& fused = registry->__REGISTER_OR_GET__(kInline);
  nnvm::Op& backward = registry->__REGISTER_OR_GET__(kInlineBackward);
  nnvm::Op& alone = registry->__REGISTER_OR_GET__(std::string(kInlineBackward) + kAlone);
  DescribeFused(&fused, &backward, &alone);
  SetAttribute<mxnet::FComputeEx>(fused, "FComputeEx<cpu>", LegacyFunction(&InlineForward));
  SetAttribute<nnvm::FGradient>(fused, "FGradient", LegacyFunction(&InlineGradient));
  for (nnvm::Op* op : {&backward, &alone})
    SetAttribute<mxnet::FComputeEx>(*op, "FComputeEx<cpu>", LegacyFunction(&InlineBackward));
  for (nnvm::Op* op : {&fused, &backward, &alone}) {
    SetAttribute<mxnet::FInferStorageType>(*op, "FInferStorageType",
                                           LegacyFunction(&InlineStorage));
    SetAttribute<mxnet::FExecType>(*op, "FExecType", LegacyFunction(&InlineWhere));
  }
}

}  // namespace graphopt
