/*
 * Operators that the thread which calls MXNet runs, for arrays so small that computing takes less time than waking a
 * thread of MXNet's engine.
 *
 * MXNet calls an operator of this ExecType at once, in the thread that calls it. Here it is pushed to the engine as
 * asynchronous, which the engine runs in the same thread where nothing has to be waited for, and in one of its own
 * otherwise. Executors take this ExecType for a copy, so no Symbol may have such an operator.
 */
#pragma once

#include <dlfcn.h>
#include <mxnet/imperative.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fused.h"
#include "keeping_operator.h"
#include "versions.h"

namespace graphopt {

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

using Variables = std::vector<Variable*>;

Variables VariablesOf(const std::vector<NDArray>& arrays) {
  Variables found;
  for (const NDArray& array : arrays) found.push_back(ChunkOf(array)->variable);
  return found;
}

/* Has the engine run a function of `made`, which it then lets go of. If `is_small` in this thread, where nothing that it
 * reads or writes has to be waited for. */
void Push(EngineSyncFunc run, void* made, EngineFuncParamDeleter forget, Variables every, Variables written,
          bool is_small, const char* name) {
  for (Variables* found : {&every, &written}) {
    std::sort(found->begin(), found->end());
    found->erase(std::unique(found->begin(), found->end()), found->end());
  }
  Variables read;
  std::set_difference(every.begin(), every.end(), written.begin(), written.end(), std::back_inserter(read));
  mxnet::Context context = mxnet::Context::CPU();
  mxnet::FnProperty property = is_small ? mxnet::FnProperty::kAsync : mxnet::FnProperty::kNormal;
  if (MXEnginePushSync(run, made, forget, &context, read.data(), read.size(), written.data(), written.size(),
                       &property, 0, name) != 0)
    Fail(MXGetLastError());
}

bool AreDense(const std::vector<NDArray>& arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const NDArray& array) {
    return array.storage_type() == mxnet::kDefaultStorage;
  });
}

/* Has MXNet run an operator that its engine runs, with dense arrays beside sparse ones. */
void RunOnEngine(const std::string& op, const std::vector<std::pair<std::string, std::string>>& attrs,
                 const std::vector<NDArray>& in, const std::vector<OpReqType>& requests,
                 const std::vector<NDArray>& out) {
  const ObjectPtr node = MakeNode(op.c_str(), op, attrs);
  auto handles = [](const std::vector<NDArray>& arrays) {
    std::vector<NDArray*> found;
    for (const NDArray& array : arrays) found.push_back(const_cast<NDArray*>(&array));
    return found;
  };
  mxnet::Imperative::Get()->InvokeOp(mxnet::Context::CPU(), node->attrs, handles(in), handles(out), requests,
                                     mxnet::DispatchMode::kFCompute, mxnet::OpStatePtr());
}

/* What there is may be sparse all the same: the gradients that a user has attached. */
bool StorageByCaller(const NodeAttrs&, int, mxnet::DispatchMode* mode, std::vector<int>* in, std::vector<int>* out) {
  for (auto kinds : {in, out})
    for (int& kind : *kinds)
      if (kind == mxnet::kUndefinedStorage) kind = mxnet::kDefaultStorage;
  *mode = mxnet::DispatchMode::kFComputeEx;
  return true;
}

mxnet::ExecType RunByCaller(const NodeAttrs&) { return mxnet::ExecType::kCrossDeviceCopy; }

}  // namespace graphopt
