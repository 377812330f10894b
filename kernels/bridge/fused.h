/*
 * The operators graphopt_fused and _backward_graphopt_fused.
 *
 * A fused operator's attribute `spec` says what it computes. Python turns a spec into a plan (what the
 * operands are) and a compiled kernel (which walks tiles of rows); this file cuts the iteration
 * space into tiles, shares them among OpenMP threads and honours MXNet's write requests. Nothing of
 * Python runs in a call, once a kernel is compiled.
 */
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "legacy.h"

namespace graphopt {

// ---------------------------------------------------------------------------------------------
// Plans and kernels, as Python describes them

using Function = int (*)(void* result, void** exception, const int64_t* pointers,
                         const int64_t* strides, int64_t rows, int64_t length, int64_t scratch);

/* What is filled in by Python; see graphopt/kernels/plan.py for the order of the numbers. */
using DescribeCallback = int64_t (*)(const char* spec, int backward, int64_t* out, int64_t capacity);
/* Compiles; returns the address of the kernel and its scratch rows, or 0. */
using CompileCallback = int64_t (*)(const char* spec, int backward, int64_t* scratch_rows);

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
  std::vector<int> group;   // of each axis
  std::vector<Operand> inputs, outputs;
  std::atomic<Function> function{nullptr};
  int64_t scratch_rows = 0;
  std::string spec;
  bool backward = false;
  std::mutex compiling;
};

DescribeCallback describe = nullptr;
CompileCallback compile = nullptr;
thread_local std::string python_error;

std::mutex plans_mutex;
std::unordered_map<std::string, Plan*> plans[2];
std::atomic<bool> forked{false};

Plan* MakePlan(const std::string& spec, bool backward) {
  std::vector<int64_t> numbers(1 << 14);
  int64_t count = describe(spec.c_str(), backward, numbers.data(), numbers.size());
  if (count <= 0) Fail(python_error);
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
  return plan;
}

Plan* FindPlan(const NodeAttrs& attrs, bool backward) {
  auto found = attrs.dict.find("spec");
  if (found == attrs.dict.end()) Fail("node " + attrs.name + " has no attribute 'spec'");
  {
    std::lock_guard<std::mutex> lock(plans_mutex);
    auto known = plans[backward].find(found->second);
    if (known != plans[backward].end()) return known->second;
  }
  // Not under the lock: Python may run other threads, which may get here too.
  Plan* made = MakePlan(found->second, backward);
  std::lock_guard<std::mutex> lock(plans_mutex);
  auto [place, is_new] = plans[backward].emplace(found->second, made);
  if (!is_new) delete made;
  return place->second;
}

Function Ready(Plan* plan) {
  Function function = plan->function.load(std::memory_order_acquire);
  if (function) return function;
  // Nobody holds Python's lock here, so whoever compiles can get it.
  std::lock_guard<std::mutex> lock(plan->compiling);
  function = plan->function.load(std::memory_order_acquire);
  if (function) return function;
  int64_t rows = 0;
  int64_t address = compile(plan->spec.c_str(), plan->backward, &rows);
  if (!address) Fail(python_error);
  plan->scratch_rows = rows;
  function = reinterpret_cast<Function>(address);
  plan->function.store(function, std::memory_order_release);
  return function;
}

// ---------------------------------------------------------------------------------------------
// Running a kernel over its iteration space

constexpr int64_t kTileElements = 16384;  // a few times the level-1 cache
constexpr int64_t kMaxSlots = 32;         // partial sums; fixed, so that threads change no bit
constexpr double kParallelNs = 12000;     // work below this is done by one thread

constexpr int64_t kMaxKept = 16 << 20;

int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Memory of the calling thread, kept from call to call unless it is much. */
char* Arena(int64_t bytes) {
  static thread_local std::vector<char> memory;
  if (static_cast<int64_t>(memory.size()) > std::max(bytes + 64, kMaxKept))
    std::vector<char>().swap(memory);
  if (static_cast<int64_t>(memory.size()) < bytes + 64) memory.resize(bytes + 64);
  auto address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<char*>((address + 63) / 64 * 64);
}

int ItemSize(int dtype) {
  switch (dtype) {
    case mshadow::kFloat64: case mshadow::kInt64: return 8;
    case mshadow::kFloat32: case mshadow::kInt32: return 4;
    case mshadow::kFloat16: return 2;
    default: return 1;
  }
}

float HalfToFloat(uint16_t half) { return static_cast<float>(mshadow::half::half_t::Binary(half)); }
uint16_t FloatToHalf(float value) { return mshadow::half::half_t(value).half_; }

double Read(const char* at, int dtype, int64_t i) {
  switch (dtype) {
    case mshadow::kFloat64: return reinterpret_cast<const double*>(at)[i];
    case mshadow::kFloat16: return HalfToFloat(reinterpret_cast<const uint16_t*>(at)[i]);
    default: return reinterpret_cast<const float*>(at)[i];
  }
}

void Write(char* at, int dtype, int64_t i, double value) {
  switch (dtype) {
    case mshadow::kFloat64: reinterpret_cast<double*>(at)[i] = value; break;
    case mshadow::kFloat16: reinterpret_cast<uint16_t*>(at)[i] = FloatToHalf(value); break;
    default: reinterpret_cast<float*>(at)[i] = static_cast<float>(value);
  }
}

/* What a call works on: sizes, and where each operand lies. */
struct Space {
  Plan* plan;
  std::vector<int64_t> extents;                // of groups
  std::vector<const TBlob*> operands;          // inputs, then outputs
  std::vector<OpReqType> requests;             // of outputs
  std::vector<std::vector<int64_t>> strides;   // [operand][group], in elements
  int64_t rows = 1, length = 1, inner_rows = 1;

  const Operand& Describe(size_t i) const {
    size_t n = plan->inputs.size();
    return i < n ? plan->inputs[i] : plan->outputs[i - n];
  }
};

void Measure(Space* space) {
  const Plan& plan = *space->plan;
  std::vector<int64_t> axes(plan.rank, -1);
  for (size_t i = 0; i < space->operands.size(); ++i) {
    const Operand& operand = space->Describe(i);
    const mxnet::TShape& shape = space->operands[i]->shape_;
    if (shape.ndim() != static_cast<int>(operand.axes.size()))
      Fail("operand " + std::to_string(i) + " has " + std::to_string(shape.ndim()) + " axes, not " +
           std::to_string(operand.axes.size()) + ", in kernel " + plan.spec);
    for (int d = 0; d < shape.ndim(); ++d) {
      int axis = operand.axes[d];
      bool fits = axis < 0 ? shape[d] == 1 : axes[axis] < 0 || axes[axis] == shape[d];
      if (!fits)
        Fail("operand " + std::to_string(i) + " does not fit the others in kernel " + plan.spec);
      if (axis >= 0) axes[axis] = shape[d];
    }
  }
  space->extents.assign(std::max(plan.groups, 1), 1);
  for (int axis = 0; axis < plan.rank; ++axis)
    space->extents[plan.group[axis]] *= axes[axis] < 0 ? 1 : axes[axis];
  size_t groups = space->extents.size();
  space->length = space->extents[groups - 1];
  for (size_t g = 0; g + 1 < groups; ++g) space->rows *= space->extents[g];
  space->inner_rows = groups >= 2 ? space->extents[groups - 2] : 1;
  for (size_t i = 0; i < space->operands.size(); ++i) {
    std::vector<bool> covered(groups, false);
    for (int axis : space->Describe(i).axes)
      if (axis >= 0) covered[plan.group[axis]] = true;
    std::vector<int64_t> strides(groups, 0);
    int64_t step = 1;
    for (size_t g = groups; g-- > 0;)
      if (covered[g]) { strides[g] = step; step *= space->extents[g]; }
    space->strides.push_back(strides);
  }
}

/* Where to write: an output itself, memory to add up in, or a row nobody reads. */
struct Target {
  char* base;
  bool is_dummy;
};

/* Walk rows [first, last) and elements [begin, begin + length) of each. */
void Walk(const Space& space, Function function, const std::vector<Target>& targets, int64_t first,
          int64_t last, int64_t begin, int64_t length, char* scratch) {
  size_t n_inputs = space.plan->inputs.size(), count = space.operands.size();
  size_t groups = space.extents.size();
  constexpr size_t kFew = 32;
  int64_t few_pointers[kFew], few_strides[kFew];
  std::vector<int64_t> many;
  int64_t *pointers = few_pointers, *strides = few_strides;
  if (count > kFew) {
    many.resize(2 * count);
    pointers = many.data();
    strides = many.data() + count;
  }
  for (int64_t row = first; row < last;) {
    int64_t within = row % space.inner_rows;
    int64_t rows = std::min(last - row, space.inner_rows - within);
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int64_t>& step = space.strides[i];
      bool dummy = i >= n_inputs && targets[i - n_inputs].is_dummy;
      int64_t offset = dummy ? 0 : begin * step[groups - 1];
      int64_t rest = row;
      for (size_t g = groups - 1; g-- > 0 && !dummy;) {
        offset += rest % space.extents[g] * step[g];
        rest /= space.extents[g];
      }
      const Operand& operand = space.Describe(i);
      const char* base = i < n_inputs ? static_cast<const char*>(space.operands[i]->dptr_)
                                      : targets[i - n_inputs].base;
      bool is_partial = operand.adds && !dummy;
      int size = is_partial ? space.plan->item_size : ItemSize(operand.dtype);
      pointers[i] = reinterpret_cast<int64_t>(base) + offset * size;
      strides[i] = dummy || groups < 2 ? 0 : step[groups - 2];
    }
    int64_t result = 0;
    void* exception = nullptr;
    function(&result, &exception, pointers, strides, rows, length,
             reinterpret_cast<int64_t>(scratch));
    row += rows;
  }
}

int Threads(double nanoseconds, int64_t parts) {
  if (nanoseconds < 2 * kParallelNs || parts < 2 || forked.load()) return 1;
  int64_t useful = static_cast<int64_t>(nanoseconds / kParallelNs);
  return static_cast<int>(std::min({static_cast<int64_t>(omp_get_max_threads()), useful, parts}));
}

/* Write or add what was summed up in `slots` partial results. */
void Combine(const TBlob& out, OpReqType request, const char* partial, int64_t stride,
             int64_t slots, int item_size) {
  int64_t size = out.shape_.Size();
  char* to = static_cast<char*>(out.dptr_);
  bool adds = request == mxnet::kAddTo;
  if (item_size == 4 && out.type_flag_ == mshadow::kFloat32) {
    float* result = reinterpret_cast<float*>(to);
    if (!adds) std::memset(result, 0, size * sizeof(float));
    for (int64_t slot = 0; slot < slots; ++slot) {
      const float* part = reinterpret_cast<const float*>(partial + slot * stride);
      for (int64_t i = 0; i < size; ++i) result[i] += part[i];
    }
    return;
  }
  int from = item_size == 4 ? mshadow::kFloat32 : mshadow::kFloat64;
  for (int64_t i = 0; i < size; ++i) {
    double sum = adds ? Read(to, out.type_flag_, i) : 0;
    for (int64_t slot = 0; slot < slots; ++slot) sum += Read(partial + slot * stride, from, i);
    Write(to, out.type_flag_, i, sum);
  }
}

void Run(Plan* plan, const std::vector<const TBlob*>& inputs,
         const std::vector<const TBlob*>& outputs, const std::vector<OpReqType>& requests) {
  if (std::all_of(requests.begin(), requests.end(),
                  [](OpReqType r) { return r == mxnet::kNullOp; }))
    return;
  Function function = Ready(plan);
  Space space;
  space.plan = plan;
  space.operands = inputs;
  space.operands.insert(space.operands.end(), outputs.begin(), outputs.end());
  space.requests = requests;
  Measure(&space);

  const int64_t length = space.length, rows = space.rows;
  const size_t n_out = outputs.size();
  // Tiles: blocks of a long row, or several short rows.
  int64_t block = plan->whole_rows || length <= 2 * kTileElements ? std::max<int64_t>(length, 1)
                                                                  : kTileElements;
  int64_t blocks = length == 0 ? 1 : (length + block - 1) / block;
  int64_t tile_rows = std::max<int64_t>(1, kTileElements / std::max<int64_t>(block, 1));
  int64_t row_tiles = (rows + tile_rows - 1) / tile_rows;
  int64_t tiles = row_tiles * blocks;

  // Memory: sums of each slot, results to be added, scratch and unread rows of each thread.
  bool any_sums = false;
  int64_t sum_bytes = 0, add_bytes = 0, dummy_bytes = 0, sum_elements = 0;
  std::vector<int64_t> sum_at(n_out, -1), add_at(n_out, -1);
  for (size_t i = 0; i < n_out; ++i) {
    int64_t size = outputs[i]->shape_.Size();
    if (requests[i] == mxnet::kNullOp) {
      dummy_bytes = std::max(dummy_bytes, Align(block * 8));
    } else if (plan->outputs[i].adds) {
      any_sums = true;
      sum_at[i] = sum_bytes;
      sum_bytes += Align(size * plan->item_size);
      sum_elements += size;
    } else if (requests[i] == mxnet::kAddTo) {
      add_at[i] = add_bytes;
      add_bytes += Align(size * ItemSize(plan->outputs[i].dtype));
    }
  }
  int64_t slots = tiles;
  if (any_sums) {
    int64_t worth = rows * length / (4 * std::max<int64_t>(sum_elements, 1));
    slots = std::max<int64_t>(1, std::min({kMaxSlots, tiles, worth}));
  }
  int threads = Threads(plan->cost * rows * length, slots);
  int64_t scratch_bytes = Align(plan->scratch_rows * block * plan->item_size);
  int64_t thread_bytes = scratch_bytes + dummy_bytes;
  int64_t partial_bytes = any_sums ? slots * sum_bytes : 0;
  char* arena = Arena(partial_bytes + add_bytes + threads * thread_bytes);
  char* added = arena + partial_bytes;
  char* own = added + add_bytes;

  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    int thread = omp_get_thread_num();
    char* scratch = own + thread * thread_bytes;
    std::vector<Target> targets(n_out);
    for (size_t i = 0; i < n_out; ++i) {
      bool dummy = requests[i] == mxnet::kNullOp;
      targets[i].is_dummy = dummy;
      targets[i].base = dummy ? scratch + scratch_bytes
                        : add_at[i] >= 0 ? added + add_at[i]
                                         : static_cast<char*>(outputs[i]->dptr_);
    }
    // Whoever is awake takes the next slot: waking a thread can take as long as its share of work.
    for (int64_t slot; (slot = next.fetch_add(1, std::memory_order_relaxed)) < slots;) {
      if (any_sums) {
        std::memset(arena + slot * sum_bytes, 0, sum_bytes);
        for (size_t i = 0; i < n_out; ++i)
          if (sum_at[i] >= 0) targets[i].base = arena + slot * sum_bytes + sum_at[i];
      }
      int64_t first = any_sums ? tiles * slot / slots : slot;
      int64_t last = any_sums ? tiles * (slot + 1) / slots : slot + 1;
      for (int64_t tile = first; tile < last; ++tile) {
        int64_t row = tile / blocks * tile_rows, begin = tile % blocks * block;
        Walk(space, function, targets, row, std::min(row + tile_rows, rows), begin,
             std::min(block, length - begin), scratch);
      }
    }
  }
  for (size_t i = 0; i < n_out; ++i) {
    if (sum_at[i] >= 0)
      Combine(*outputs[i], requests[i], arena + sum_at[i], sum_bytes, slots, plan->item_size);
    if (add_at[i] >= 0) {
      char* to = static_cast<char*>(outputs[i]->dptr_);
      int dtype = outputs[i]->type_flag_;
      for (int64_t j = 0, n = outputs[i]->shape_.Size(); j < n; ++j)
        Write(to, dtype, j, Read(to, dtype, j) + Read(added + add_at[i], dtype, j));
    }
  }
}

// ---------------------------------------------------------------------------------------------
// What MXNet asks of an operator

bool InferShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Plan* plan = FindPlan(attrs, false);
  std::vector<int64_t> axes(plan->rank, -1);
  bool known = true;
  for (size_t i = 0; i < in->size(); ++i) {
    const mxnet::TShape& shape = (*in)[i];
    const Operand& operand = plan->inputs[i];
    if (!mxnet::shape_is_known(shape)) { known = false; continue; }
    if (shape.ndim() != static_cast<int>(operand.axes.size()))
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has " +
           std::to_string(shape.ndim()) + " axes; its kernel was made for " +
           std::to_string(operand.axes.size()));
    for (int d = 0; d < shape.ndim(); ++d) {
      int axis = operand.axes[d];
      bool fits = axis < 0 ? shape[d] == 1 : axes[axis] < 0 || axes[axis] == shape[d];
      if (!fits)
        Fail("input " + std::to_string(i) + " of node " + attrs.name + " has extent " +
             std::to_string(shape[d]) + " on axis " + std::to_string(d) +
             ", which does not fit the other inputs of its kernel");
      if (axis >= 0) axes[axis] = shape[d];
    }
  }
  for (size_t i = 0; i < out->size(); ++i) {
    const Operand& operand = plan->outputs[i];
    mxnet::TShape shape(static_cast<int>(operand.axes.size()), -1);
    for (size_t d = 0; d < operand.axes.size(); ++d)
      shape[d] = operand.axes[d] < 0 ? 1 : axes[operand.axes[d]];
    if ((*out)[i].ndim() >= 0 && (*out)[i] != shape && mxnet::shape_is_known(shape) &&
        mxnet::shape_is_known((*out)[i]))
      Fail("output " + std::to_string(i) + " of node " + attrs.name + " has another shape there");
    (*out)[i] = shape;
    known = known && mxnet::shape_is_known(shape);
  }
  return known;
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
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = plan->outputs[i].dtype;
  return true;
}

void Forward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
             const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  std::vector<const TBlob*> in, out;
  for (const TBlob& blob : inputs) in.push_back(&blob);
  for (const TBlob& blob : outputs) out.push_back(&blob);
  Run(FindPlan(attrs, false), in, out, requests);
}

/* Inputs: those of the plan; outputs: a gradient for every forward input. */
void Backward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
              const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  Plan* plan = FindPlan(attrs, true);
  std::vector<const TBlob*> in, out;
  std::vector<OpReqType> wanted;
  std::vector<bool> computed(outputs.size(), false);
  for (const TBlob& blob : inputs) in.push_back(&blob);
  for (const Operand& operand : plan->outputs) {
    out.push_back(&outputs[operand.index]);
    wanted.push_back(requests[operand.index]);
    computed[operand.index] = true;
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!computed[i] && (requests[i] == mxnet::kWriteTo || requests[i] == mxnet::kWriteInplace))
      std::memset(outputs[i].dptr_, 0, outputs[i].shape_.Size() * ItemSize(outputs[i].type_flag_));
  if (!plan->outputs.empty()) Run(plan, in, out, wanted);
}

uint32_t NumInputs(const NodeAttrs& attrs) { return FindPlan(attrs, false)->inputs.size(); }
uint32_t NumOutputs(const NodeAttrs& attrs) { return FindPlan(attrs, false)->outputs.size(); }
uint32_t NumBackwardInputs(const NodeAttrs& attrs) { return FindPlan(attrs, true)->inputs.size(); }

std::vector<NodeEntry> Gradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  Plan* plan = FindPlan(attrs, true);
  ObjectPtr made = MakeNode("_backward_graphopt_fused", attrs.name + "_backward",
                            {{"spec", plan->spec}});
  LegacyNode& backward = View(made);
  backward.control_deps.push_back(node);
  LegacyNode& forward = View(node);
  for (const Operand& operand : plan->inputs) {
    switch (operand.source) {
      case kHead: backward.inputs.push_back(heads[operand.index]); break;
      case kInput: backward.inputs.push_back(forward.inputs[operand.index]); break;
      default: backward.inputs.emplace_back(node, operand.index, 0);
    }
  }
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < forward.inputs.size(); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

}  // namespace graphopt
