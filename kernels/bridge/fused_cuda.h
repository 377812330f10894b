/*
 * graphopt_fused and _backward_graphopt_fused on NVIDIA GPUs. Python plans launches for the extents
 * of a call when they are new; a call after that looks them up and puts them on MXNet's stream.
 */
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda.h"
#include "fused.h"

namespace graphopt {

/* Answers with the address of cuda::OwnLaunches, which are the asker's from then on: for a spec, forward or backward, extents of its
 * axes, whether operands are aligned, a request for each output, and the GPU. */
using LaunchesCallback = void (*)(const char* spec, int backward, int axes, const int64_t* extents,
                                  int aligned, int outputs, const int* requests,
                                  const int64_t* device, int64_t* address);

LaunchesCallback describe_launches = nullptr;

constexpr uintptr_t kGpuAccess = 16;  // what vectors of a kernel begin at, if operands are aligned

/* As many as Python keeps plans. Where calls have ever other extents all are forgotten then, and those that
 * are still in use planned again. */
constexpr size_t kMostLaunches = 4096;

using KeptLaunches = std::shared_ptr<const cuda::OwnLaunches>;

std::mutex launches_mutex;
std::map<std::pair<Plan*, std::vector<int64_t>>, KeptLaunches> known_launches;

KeptLaunches LaunchesOf(Plan* plan, const std::vector<int64_t>& axes, bool aligned,
                                 const std::vector<int>& requests, const cuda::Device& device) {
  const int64_t about[] = {device.processors, device.major, device.minor};
  std::vector<int64_t> key(axes);
  key.push_back(aligned);
  key.insert(key.end(), requests.begin(), requests.end());
  key.insert(key.end(), about, about + 3);
  {
    std::lock_guard<std::mutex> lock(launches_mutex);
    auto found = known_launches.find({plan, key});
    if (found != known_launches.end()) return found->second;
  }
  // Not under the lock: Python may run other threads, which may get here too.
  const int64_t address =
      Answer(describe_launches, plan->spec.c_str(), plan->backward, axes.size(), axes.data(),
             aligned, requests.size(), requests.data(), about);
  const KeptLaunches launches(reinterpret_cast<const cuda::OwnLaunches*>(address));
  std::lock_guard<std::mutex> lock(launches_mutex);
  if (known_launches.size() >= kMostLaunches) known_launches.clear();
  known_launches.emplace(std::make_pair(plan, std::move(key)), launches);
  return launches;
}

/* As Run, on the GPU whose number is `ordinal`. */
void RunOnGpu(Plan* plan, const std::vector<const TBlob*>& inputs,
              const std::vector<const TBlob*>& outputs, const std::vector<OpReqType>& requests,
              int ordinal, void* stream) {
  if (std::all_of(requests.begin(), requests.end(),
                  [](OpReqType r) { return r == mxnet::kNullOp; }))
    return;
  std::vector<int64_t> axes(plan->rank, -1), places;
  bool aligned = true;
  auto add = [&](const Operand& operand, const TBlob& blob) {
    auto whose = [&] {
      return "operand " + std::to_string(places.size()) + " of kernel " + plan->spec;
    };
    Fit(operand, blob.shape_, whose, &axes);
    places.push_back(reinterpret_cast<int64_t>(blob.dptr_));
    aligned = aligned && reinterpret_cast<uintptr_t>(blob.dptr_) % kGpuAccess == 0;
  };
  for (size_t i = 0; i < inputs.size(); ++i) add(plan->inputs[i], *inputs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) add(plan->outputs[i], *outputs[i]);
  CheckTold(*plan, axes);
  std::vector<int> wanted;
  for (OpReqType request : requests)
    wanted.push_back(request == mxnet::kWriteInplace ? mxnet::kWriteTo : request);
  const cuda::Device device = cuda::Current(ordinal);
  const KeptLaunches kept = LaunchesOf(plan, axes, aligned, wanted, device);  // meanwhile
  cuda::Run(kept->launches(), places.data(), stream);
}

/* MXNet's stream of a call. MXNet's own structure begins with CUDA's; its header hides that from
 * compilers without CUDA. */
void* StreamOf(const mxnet::OpContext& context) {
  void* stream = context.run_ctx.stream;
  return stream ? *static_cast<void**>(stream) : nullptr;
}

void ForwardOnGpu(const NodeAttrs& attrs, const mxnet::OpContext& context,
                  const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                  const std::vector<TBlob>& outputs) {
  const Call call = ForwardCall(attrs, inputs, requests, outputs);
  RunOnGpu(call.plan, call.in, call.out, call.wanted, context.run_ctx.ctx.dev_id,
           StreamOf(context));
}

void BackwardOnGpu(const NodeAttrs& attrs, const mxnet::OpContext& context,
                   const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                   const std::vector<TBlob>& outputs) {
  const Call call = BackwardCall(attrs, inputs, requests, outputs);
  const int ordinal = context.run_ctx.ctx.dev_id;
  void* stream = StreamOf(context);
  if (!call.zeroed.empty()) cuda::Current(ordinal);
  for (const TBlob* blob : call.zeroed)
    cuda::Zero(reinterpret_cast<int64_t>(blob->dptr_), Bytes(*blob), stream);
  RunOnGpu(call.plan, call.in, call.out, call.wanted, ordinal, stream);
}

}  // namespace graphopt
