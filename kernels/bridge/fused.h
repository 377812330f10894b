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
/* Compiles; returns the address of the kernel, or 0. */
using CompileCallback = int64_t (*)(const char* spec, int backward);

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
  std::vector<int> group;   // of each axis
  std::vector<Operand> inputs, outputs;
  std::vector<std::pair<int, int>> pairs;  // an input and an output that may be one array
  bool has_scratch = false;  // what it computes in is an output more, which MXNet plans
  std::atomic<Function> function{nullptr};
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

bool NeedsScratch(const Plan& plan) {
  return plan.scratch_rows > 0 || std::any_of(plan.outputs.begin(), plan.outputs.end(),
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
  plan->scratch_rows = *at++;
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
  int64_t address = compile(plan->spec.c_str(), plan->backward);
  if (!address) Fail(python_error);
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

constexpr int64_t kLineBytes = 64;  // what vectors like to begin at

int64_t Align(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

template <typename T>
T* Aligned(void* memory) {
  return reinterpret_cast<T*>(Align(reinterpret_cast<uintptr_t>(memory)));
}

/* Memory of the calling thread, kept from call to call unless it is much. */
char* Arena(int64_t bytes) {
  static thread_local std::vector<char> memory;
  if (static_cast<int64_t>(memory.size()) > std::max(bytes + kLineBytes, kMaxKept))
    std::vector<char>().swap(memory);
  if (static_cast<int64_t>(memory.size()) < bytes + kLineBytes) memory.resize(bytes + kLineBytes);
  return Aligned<char>(memory.data());
}

mxnet::TShape Shaped(std::initializer_list<int64_t> extents) {
  mxnet::TShape shape(static_cast<int>(extents.size()), 0);
  int d = 0;
  for (int64_t extent : extents) shape[d++] = extent;
  return shape;
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

int Threads(double nanoseconds, int64_t parts) {
  if (nanoseconds < 2 * kParallelNs || parts < 2 || forked.load()) return 1;
  int64_t useful = static_cast<int64_t>(nanoseconds / kParallelNs);
  return static_cast<int>(std::min({static_cast<int64_t>(omp_get_max_threads()), useful, parts}));
}

/* What a call works on: sizes, and where each operand lies. */
struct Space {
  Plan* plan;
  std::vector<int64_t> extents;                // of groups
  std::vector<const TBlob*> operands;          // inputs, then outputs
  std::vector<std::vector<int64_t>> strides;   // [operand][group], in elements
  int64_t rows = 1, length = 1, inner_rows = 1;

  const Operand& Describe(size_t i) const {
    size_t n = plan->inputs.size();
    return i < n ? plan->inputs[i] : plan->outputs[i - n];
  }

  /* Where an element of a row lies in an operand, in elements. */
  int64_t Offset(size_t operand, int64_t row, int64_t element) const {
    const std::vector<int64_t>& step = strides[operand];
    const size_t last = extents.size() - 1;
    int64_t offset = element * step[last];
    for (size_t g = last; g-- > 0;) {
      offset += row % extents[g] * step[g];
      row /= extents[g];
    }
    return offset;
  }
};

/* Notes the extents of axes by the shape of an operand, of which `Whose` tells in errors. */
template <typename Whose>
void Fit(const Operand& operand, const mxnet::TShape& shape, const Whose& whose,
         std::vector<int64_t>* axes) {
  if (shape.ndim() != static_cast<int>(operand.axes.size()))
    Fail(whose() + " has " + std::to_string(shape.ndim()) + " axes; its kernel was made for " +
         std::to_string(operand.axes.size()));
  for (int d = 0; d < shape.ndim(); ++d) {
    int axis = operand.axes[d];
    bool fits = axis < 0 ? shape[d] == 1 : (*axes)[axis] < 0 || (*axes)[axis] == shape[d];
    if (!fits)
      Fail(whose() + " has extent " + std::to_string(shape[d]) + " on axis " + std::to_string(d) +
           ", which does not fit the other operands of its kernel");
    if (axis >= 0) (*axes)[axis] = shape[d];
  }
}

/* The space of axes whose extents are known. */
Space SpaceOf(Plan* plan, const std::vector<int64_t>& axes) {
  Space space;
  space.plan = plan;
  space.extents.assign(std::max(plan->groups, 1), 1);
  for (int axis = 0; axis < plan->rank; ++axis)
    space.extents[plan->group[axis]] *= axes[axis] < 0 ? 1 : axes[axis];
  size_t groups = space.extents.size();
  space.length = space.extents[groups - 1];
  for (size_t g = 0; g + 1 < groups; ++g) space.rows *= space.extents[g];
  space.inner_rows = groups >= 2 ? space.extents[groups - 2] : 1;
  return space;
}

/* Which groups of axes an operand runs along. */
std::vector<bool> Covered(const Space& space, const Operand& operand) {
  std::vector<bool> covered(space.extents.size(), false);
  for (int axis : operand.axes)
    if (axis >= 0) covered[space.plan->group[axis]] = true;
  return covered;
}

Space Measure(Plan* plan, const std::vector<const TBlob*>& inputs,
              const std::vector<const TBlob*>& outputs) {
  std::vector<int64_t> axes(plan->rank, -1);
  std::vector<const TBlob*> operands = inputs;
  operands.insert(operands.end(), outputs.begin(), outputs.end());
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand =
        i < inputs.size() ? plan->inputs[i] : plan->outputs[i - inputs.size()];
    auto whose = [&] { return "operand " + std::to_string(i) + " of kernel " + plan->spec; };
    Fit(operand, operands[i]->shape_, whose, &axes);
  }
  Space space = SpaceOf(plan, axes);
  space.operands = std::move(operands);
  size_t groups = space.extents.size();
  for (size_t i = 0; i < space.operands.size(); ++i) {
    std::vector<bool> covered = Covered(space, space.Describe(i));
    std::vector<int64_t> strides(groups, 0);
    int64_t step = 1;
    for (size_t g = groups; g-- > 0;)
      if (covered[g]) { strides[g] = step; step *= space.extents[g]; }
    space.strides.push_back(strides);
  }
  return space;
}

/* How the space is cut into tiles, blocks of a long row or several short rows, and what they are
 * computed in: sums of each slot and scratch rows of each thread. */
struct Tiling {
  int64_t block, blocks, tile_rows, tiles, slots;
  bool any_sums = false;
  std::vector<int64_t> sum_at;  // of an output in the sums of a slot, -1 of those not summed up
  int64_t sum_bytes = 0;        // of a slot
  int64_t row_bytes = 0;        // of a thread
  int threads = 1;

  int64_t partial_bytes() const { return any_sums ? slots * sum_bytes : 0; }
  int64_t bytes() const { return partial_bytes() + threads * row_bytes; }
};

/* Asks neither for requests nor for addresses: memory is planned before there are any. */
Tiling TilingOf(const Space& space) {
  const Plan& plan = *space.plan;
  const int64_t length = space.length, rows = space.rows;
  Tiling made;
  made.block = plan.whole_rows || length <= 2 * kTileElements ? std::max<int64_t>(length, 1)
                                                              : kTileElements;
  made.blocks = length == 0 ? 1 : (length + made.block - 1) / made.block;
  made.tile_rows = std::max<int64_t>(1, kTileElements / made.block);
  made.tiles = (rows + made.tile_rows - 1) / made.tile_rows * made.blocks;
  int64_t sum_elements = 0;
  for (const Operand& output : plan.outputs) {
    made.sum_at.push_back(output.adds ? made.sum_bytes : -1);
    if (!output.adds) continue;
    int64_t size = 1;
    std::vector<bool> covered = Covered(space, output);
    for (size_t g = 0; g < covered.size(); ++g)
      if (covered[g]) size *= space.extents[g];
    made.any_sums = true;
    made.sum_bytes += Align(size * plan.item_size);
    sum_elements += size;
  }
  made.slots = made.tiles;
  if (made.any_sums) {
    int64_t worth = rows * length / (4 * std::max<int64_t>(sum_elements, 1));
    made.slots = std::max<int64_t>(1, std::min({kMaxSlots, made.tiles, worth}));
  }
  made.row_bytes = Align(plan.scratch_rows * made.block * plan.item_size);
  made.threads = Threads(plan.cost * rows * length, made.slots);
  return made;
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
      const int64_t offset = dummy ? 0 : space.Offset(i, row, begin);
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

int64_t PlannedBytes(const TBlob& given) {
  return given.shape_.Size() * ItemSize(given.type_flag_) - kLineBytes;  // aligning
}

/* Elements to ask MXNet for. */
int64_t PlannedElements(const Tiling& tiling, int item_size) {
  return (tiling.bytes() + kLineBytes) / item_size;
}

/* MXNet may have been given more threads since memory was planned. */
void FitThreads(int64_t bytes, Tiling* tiling) {
  if (tiling->bytes() <= bytes) return;
  const int64_t threads = tiling->row_bytes > 0
                              ? (bytes - tiling->partial_bytes()) / tiling->row_bytes
                              : 0;
  if (threads < 1) Fail("a kernel was given less memory than it needs");
  tiling->threads = static_cast<int>(threads);
}

/* Adds elements of a tile to an output from `begin` on. */
void AddTile(const TBlob& out, const char* tile, int64_t begin, int64_t count) {
  const int dtype = out.type_flag_;
  char* to = static_cast<char*>(out.dptr_) + begin * ItemSize(dtype);
  if (dtype == mshadow::kFloat32) {
    auto sum = reinterpret_cast<float*>(to);
    auto terms = reinterpret_cast<const float*>(tile);
    for (int64_t i = 0; i < count; ++i) sum[i] += terms[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) Write(to, dtype, i, Read(to, dtype, i) + Read(tile, dtype, i));
}

/* `given`, if it is not null, is what the kernel computes in, as planned. */
void Run(Plan* plan, const std::vector<const TBlob*>& inputs,
         const std::vector<const TBlob*>& outputs, const std::vector<OpReqType>& requests,
         const TBlob* given, int most_threads = std::numeric_limits<int>::max()) {
  if (std::all_of(requests.begin(), requests.end(),
                  [](OpReqType r) { return r == mxnet::kNullOp; }))
    return;
  Function function = Ready(plan);
  const Space space = Measure(plan, inputs, outputs);
  Tiling tiling = TilingOf(space);
  if (given) FitThreads(PlannedBytes(*given), &tiling);
  tiling.threads = std::min(tiling.threads, most_threads);

  // What is asked of outputs shows only now: results to be added, and rows that nobody reads. These are
  // computed in some kilobytes for each thread: a row, and a tile of what is added.
  const size_t n_out = outputs.size();
  int64_t dummy_bytes = 0, thread_bytes = 0;
  std::vector<int64_t> add_at(n_out, -1);
  for (size_t i = 0; i < n_out; ++i) {
    if (tiling.sum_at[i] >= 0) continue;
    if (requests[i] == mxnet::kNullOp) dummy_bytes = Align(tiling.block * 8);
  }
  thread_bytes = dummy_bytes;
  for (size_t i = 0; i < n_out; ++i) {
    if (tiling.sum_at[i] >= 0 || requests[i] != mxnet::kAddTo) continue;
    add_at[i] = thread_bytes;
    thread_bytes += Align(tiling.tile_rows * tiling.block * ItemSize(plan->outputs[i].dtype));
  }
  const int64_t other_bytes = tiling.threads * thread_bytes;
  char* own = Arena(other_bytes + (given ? 0 : tiling.bytes()));
  char* partial = given ? Aligned<char>(given->dptr_) : own + other_bytes;
  char* scratch_rows = partial + tiling.partial_bytes();

  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(tiling.threads) if (tiling.threads > 1)
  {
    int thread = omp_get_thread_num();
    char* scratch = scratch_rows + thread * tiling.row_bytes;
    char* beside = own + thread * thread_bytes;
    std::vector<Target> targets(n_out);
    for (size_t i = 0; i < n_out; ++i) {
      bool dummy = tiling.sum_at[i] < 0 && requests[i] == mxnet::kNullOp;
      targets[i].is_dummy = dummy;
      targets[i].base = dummy ? beside : static_cast<char*>(outputs[i]->dptr_);
    }
    // Whoever is awake takes the next slot: waking a thread can take as long as its share of work.
    for (int64_t slot; (slot = next.fetch_add(1, std::memory_order_relaxed)) < tiling.slots;) {
      if (tiling.any_sums) {
        char* sums = partial + slot * tiling.sum_bytes;
        std::memset(sums, 0, tiling.sum_bytes);
        for (size_t i = 0; i < n_out; ++i)
          if (tiling.sum_at[i] >= 0) targets[i].base = sums + tiling.sum_at[i];
      }
      int64_t first = tiling.any_sums ? tiling.tiles * slot / tiling.slots : slot;
      int64_t last = tiling.any_sums ? tiling.tiles * (slot + 1) / tiling.slots : slot + 1;
      for (int64_t tile = first; tile < last; ++tile) {
        const int64_t row = tile / tiling.blocks * tiling.tile_rows;
        const int64_t begin = tile % tiling.blocks * tiling.block;
        const int64_t end = std::min(row + tiling.tile_rows, space.rows);
        const int64_t length = std::min(tiling.block, space.length - begin);
        // A tile is several whole rows or a part of one, and of what is not summed up one piece.
        for (size_t i = 0; i < n_out; ++i)
          if (add_at[i] >= 0)
            targets[i].base = beside + add_at[i] - space.Offset(inputs.size() + i, row, begin) *
                                                       ItemSize(plan->outputs[i].dtype);
        Walk(space, function, targets, row, end, begin, length, scratch);
        for (size_t i = 0; i < n_out; ++i) {
          if (add_at[i] < 0 || outputs[i]->shape_.Size() == 0) continue;
          const size_t operand = inputs.size() + i;
          const int64_t from = space.Offset(operand, row, begin);
          const int64_t to = space.Offset(operand, end - 1, begin + std::max<int64_t>(length, 1) - 1);
          AddTile(*outputs[i], beside + add_at[i], from, to + 1 - from);
        }
      }
    }
  }
  for (size_t i = 0; i < n_out; ++i) {
    if (tiling.sum_at[i] >= 0 && requests[i] != mxnet::kNullOp)
      Combine(*outputs[i], requests[i], partial + tiling.sum_at[i], tiling.sum_bytes, tiling.slots,
              plan->item_size);
  }
}

// ---------------------------------------------------------------------------------------------
// What MXNet asks of an operator

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
  for (size_t i = 0; i < in->size(); ++i) (*in)[i] = ShapeOf(plan->inputs[i], axes);
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
  for (size_t i = 0; i < in->size(); ++i) (*in)[i] = plan->inputs[i].dtype;
  for (size_t i = 0; i < forward->inputs.size(); ++i) (*out)[i] = forward->inputs[i].dtype;
  if (HasBackwardScratch(attrs, *plan)) out->back() = ScratchType(*plan);
  return true;
}

int64_t Bytes(const TBlob& blob) { return blob.shape_.Size() * ItemSize(blob.type_flag_); }

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

std::vector<NodeEntry> GradientBy(const char* op, const ObjectPtr& node,
                                  const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  Plan* plan = FindPlan(attrs, true);
  std::vector<std::pair<std::string, std::string>> given{{"spec", plan->spec}};
  auto stated = attrs.dict.find(kExtents);
  if (stated != attrs.dict.end()) given.push_back(*stated);
  ObjectPtr made = MakeNode(op, attrs.name + "_backward", given);
  LegacyNode& backward = View(made);
  // Of such a node MXNet takes the shapes from the forward node, and never asks for others.
  if (!HasBackwardScratch(attrs, *plan)) backward.control_deps.push_back(node);
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

std::vector<NodeEntry> Gradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  return GradientBy("_backward_graphopt_fused", node, heads);
}

/* Says of an operator and its gradient all but who runs them. */
void DescribeFused(nnvm::Op* fused, nnvm::Op* backward) {
  fused->get_num_inputs = LegacyFunction(&NumInputs);
  fused->get_num_outputs = LegacyFunction(&NumOutputs);
  SetAttribute<nnvm::FNumVisibleOutputs>(*fused, "FNumVisibleOutputs",
                                         LegacyFunction(&NumVisibleOutputs));
  SetAttribute<nnvm::FListOutputNames>(*fused, "FListOutputNames", LegacyFunction(&OutputNames));
  SetAttribute<nnvm::FInplaceOption>(*fused, "FInplaceOption", LegacyFunction(&Pairs));
  SetAttribute<mxnet::FInferShape>(*fused, "FInferShape", LegacyFunction(&InferShape));
  SetAttribute<nnvm::FInferType>(*fused, "FInferType", LegacyFunction(&InferType));
  backward->get_num_inputs = LegacyFunction(&NumBackwardInputs);
  backward->get_num_outputs = LegacyFunction(&NumBackwardOutputs);
  SetAttribute<nnvm::FInplaceOption>(*backward, "FInplaceOption", LegacyFunction(&BackwardPairs));
  SetAttribute<mxnet::FInferShape>(*backward, "FInferShape", LegacyFunction(&BackwardShape));
  SetAttribute<nnvm::FInferType>(*backward, "FInferType", LegacyFunction(&BackwardType));
  SetAttribute<nnvm::TIsBackward>(*backward, "TIsBackward", true);
}

}  // namespace graphopt
