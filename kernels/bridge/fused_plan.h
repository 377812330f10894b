/*
 * Plans and kernels of fused operators, as Python describes them.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "answers.h"
#include "legacy.h"

namespace graphopt {

using Function = void (*)(const int64_t* pointers, const int64_t* strides, int64_t rows,
                          int64_t length, int64_t scratch);

/* What is filled in by Python, and how many numbers these are; see graphopt/kernels/plan.py for their order. */
using DescribeCallback = void (*)(const char* spec, int backward, int64_t* out, int64_t capacity, int64_t* count);
/* Compiles; answers with the address of the kernel. */
using CompileCallback = void (*)(const char* spec, int backward, int64_t* address);

enum Source { kHead = 0, kInput = 1, kOutput = 2 };

struct Operand {
  int dtype;
  bool adds;       // summed over some axes: the kernel adds to it
  int source;      // of backward inputs: a Source
  int index;       // which of them; of outputs: which output, or which input it is the gradient of
  std::vector<int> axes;
};

struct Plan {
  int rank = 0, groups = 0;
  bool whole_rows = false;  // rows must not be cut: they hold reductions
  int item_size = 4;        // of what it computes in
  double cost = 1;          // nanoseconds an element
  int64_t scratch_rows = 0;
  bool by_columns = false;  // neighbouring rows lie side by side; see kernels/emit/columns.py
  int64_t waiting = 0;      // values of each row that wait in memory then
  std::vector<int> group;   // of each axis
  std::vector<Operand> inputs, outputs;
  std::vector<std::pair<int, int>> pairs;  // an input and an output that may be one array
  bool is_flat = false;      // each element comes from those at the same place, and from numbers
  bool is_by_channels = false;  // and from those of the same channel; IsByChannel
  bool has_scratch = false;  // what it computes in is an output more, which MXNet plans
  std::atomic<Function> function{nullptr};
  std::string spec;
  bool backward = false;
  std::mutex compiling;
};

DescribeCallback describe = nullptr;
CompileCallback compile = nullptr;

std::mutex plans_mutex;
std::unordered_map<std::string, Plan*> plans[2];

bool NeedsScratch(const Plan& plan) {
  return plan.scratch_rows > 0 || plan.waiting > 0 || std::any_of(plan.outputs.begin(), plan.outputs.end(),
                                              [](const Operand& output) { return output.adds; });
}

/* Whether the inputs tell all extents. Of backward, head gradients do not count: an executor learns
 * their shapes from the operators that read them. */
bool KnowsShapes(const Plan& plan) {
  std::vector<bool> known(plan.rank, false);
  for (const Operand& input : plan.inputs)
    for (int axis : input.axes)
      if (axis >= 0 && input.source != kHead) known[axis] = true;
  return std::all_of(known.begin(), known.end(), [](bool axis) { return axis; });
}

/* Whether an operand runs along all axes, in their order. */
bool IsFull(const Operand& operand, int rank) {
  for (int d = 0; d < static_cast<int>(operand.axes.size()); ++d)
    if (operand.axes[d] != d) return false;
  return static_cast<int>(operand.axes.size()) == rank;
}

bool IsNumber(const Operand& operand) {
  return std::all_of(operand.axes.begin(), operand.axes.end(), [](int axis) { return axis < 0; });
}

/* Whether an operand has its numbers in the same order if channels, axis 1, lie in blocks behind all other
 * axes: it does not run along them, or along nothing behind them; see kernels/blocks.py. */
bool IsByChannel(const Operand& operand) {
  auto channels = std::find(operand.axes.begin(), operand.axes.end(), 1);
  return channels == operand.axes.end() ||
         std::all_of(channels + 1, operand.axes.end(), [](int axis) { return axis < 0; });
}

template <typename Test>
bool AllOperands(const Plan& plan, const Test& test) {
  return std::all_of(plan.inputs.begin(), plan.inputs.end(), test) &&
         std::all_of(plan.outputs.begin(), plan.outputs.end(), test);
}

bool IsFlat(const Plan& plan) {
  return !plan.whole_rows && AllOperands(plan, [&plan](const Operand& operand) {
    return !operand.adds && (IsNumber(operand) || IsFull(operand, plan.rank));
  });
}

bool IsByChannels(const Plan& plan) {
  return !plan.whole_rows && plan.rank >= 3 && AllOperands(plan, [&plan](const Operand& operand) {
    return IsFull(operand, plan.rank) || IsByChannel(operand);
  });
}

Plan* MakePlan(const std::string& spec, bool backward) {
  std::vector<int64_t> numbers(1 << 14);
  Answer(describe, spec.c_str(), backward, numbers.data(), numbers.size());
  const int64_t* at = numbers.data();
  auto plan = new Plan();
  plan->spec = spec;
  plan->backward = backward;
  int n_inputs = *at++, n_outputs = *at++;
  plan->rank = *at++;
  plan->groups = *at++;
  plan->whole_rows = *at++;
  plan->item_size = *at++;
  plan->cost = *at++ * 1e-3;
  plan->scratch_rows = *at++;
  plan->by_columns = *at++;
  plan->waiting = *at++;
  for (int i = 0; i < plan->rank; ++i) plan->group.push_back(*at++);
  for (int i = 0; i < n_inputs + n_outputs; ++i) {
    Operand operand;
    operand.dtype = *at++;
    operand.adds = *at++;
    operand.source = *at++;
    operand.index = *at++;
    int ndim = *at++;
    for (int d = 0; d < ndim; ++d) operand.axes.push_back(*at++);
    (i < n_inputs ? plan->inputs : plan->outputs).push_back(operand);
  }
  for (int64_t n = *at++; n > 0; --n, at += 2) plan->pairs.emplace_back(at[0], at[1]);
  plan->is_flat = IsFlat(*plan);
  plan->is_by_channels = IsByChannels(*plan);
  plan->has_scratch = NeedsScratch(*plan) && KnowsShapes(*plan);
  return plan;
}

/* Where Python tells the extents of axes: head gradients cannot be asked for theirs. */
constexpr const char* kExtents = "extents";

/* Extents of axes as the node states them, -1 where it does not. */
std::vector<int64_t> StatedExtents(const NodeAttrs& attrs, const Plan& plan) {
  std::vector<int64_t> axes(plan.rank, -1);
  auto stated = attrs.dict.find(kExtents);
  if (stated == attrs.dict.end()) return axes;
  const char* at = stated->second.c_str();
  for (int64_t& extent : axes) {
    char* end = nullptr;
    extent = std::strtoll(at, &end, 10);
    if (end == at || extent < 0)
      Fail("node " + attrs.name + " states extents " + stated->second + ", where its kernel has " +
           std::to_string(plan.rank) + " axes");
    at = *end == ',' ? end + 1 : end;
  }
  return axes;
}

/* Whether a backward node has the output more. */
bool HasBackwardScratch(const NodeAttrs& attrs, const Plan& plan) {
  return plan.has_scratch || (NeedsScratch(plan) && attrs.dict.count(kExtents));
}

Plan* FindPlan(const std::string& spec, bool backward) {
  {
    std::lock_guard<std::mutex> lock(plans_mutex);
    auto known = plans[backward].find(spec);
    if (known != plans[backward].end()) return known->second;
  }
  // Not under the lock: Python may run other threads, which may get here too.
  Plan* made = MakePlan(spec, backward);
  std::lock_guard<std::mutex> lock(plans_mutex);
  auto [place, is_new] = plans[backward].emplace(spec, made);
  if (!is_new) delete made;
  return place->second;
}

Plan* FindPlan(const NodeAttrs& attrs, bool backward) {
  auto found = attrs.dict.find("spec");
  if (found == attrs.dict.end()) Fail("node " + attrs.name + " has no attribute 'spec'");
  return FindPlan(found->second, backward);
}

/* The same kernel over channels in blocks, with the place in a block as one axis more. */
Plan* PlanInBlocks(const Plan& plan) { return FindPlan("blocks " + plan.spec, plan.backward); }

Function Ready(Plan* plan) {
  Function function = plan->function.load(std::memory_order_acquire);
  if (function) return function;
  std::lock_guard<std::mutex> lock(plan->compiling);
  function = plan->function.load(std::memory_order_acquire);
  if (function) return function;
  function = reinterpret_cast<Function>(Answer(compile, plan->spec.c_str(), plan->backward));
  plan->function.store(function, std::memory_order_release);
  return function;
}

}  // namespace graphopt
