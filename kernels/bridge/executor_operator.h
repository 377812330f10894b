/*
 * The operators graphopt_executor and _backward_graphopt_executor: a forward and a backward of one of
 * MXNet's executors, for autograd.
 *
 * MXNet's executor recomputes what is marked, and its memory can be shared with others; but autograd
 * knows nothing of it. These operators hand a call's arrays to an executor and its results and
 * gradients back. They run in the thread that calls them, where the executor pushes its own operators
 * to the engine: what a later call writes is ordered behind.
 *
 * Attribute: `binding`, a number that AddBinding gave. Inputs: the arguments of the binding, in its
 * order; outputs: those of the executor. Backward reads gradients of the outputs only: all else is in
 * the memory of the executor, which nobody else may use until the tape is gone. Bindings with one
 * pool share memory, so one call at a time has it.
 */
#pragma once

#include <mxnet/ndarray.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "caller.h"
#include "legacy.h"
#include "versions.h"

namespace graphopt {

using mxnet::NDArray;
using mxnet::OpStatePtr;

/* Whether somebody needs what is in the memory. */
struct Pool {
  std::atomic<bool> is_taken{false};
};

/* An executor and what it was bound to. */
struct Binding {
  ExecutorHandle executor = nullptr;
  std::vector<NDArray> arguments;
  std::vector<NDArray> gradients;     // none where nobody asked for one
  std::vector<bool> is_users;         // whether a gradient's array is the user's
  std::vector<NDArray> outputs;
  std::vector<NDArray> states;        // the user's, such as running statistics
  std::shared_ptr<Pool> pool;

  ~Binding() { MXExecutorFree(executor); }
};

/* Things by number. What was removed is known for as long as somebody else has it: a tape may be all
 * that is left of a call. */
template <typename T>
class Numbered {
 public:
  int64_t Add(std::shared_ptr<T> what) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto at = known_.begin(); at != known_.end();)
      at = at->second.expired() ? known_.erase(at) : std::next(at);
    known_[++last_] = what;
    owned_[last_] = std::move(what);
    return last_;
  }
  std::shared_ptr<T> Find(int64_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = known_.find(number);
    return found == known_.end() ? nullptr : found->second.lock();
  }
  int64_t Users(int64_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = known_.find(number);
    return found == known_.end() ? 0 : found->second.use_count();
  }
  void Remove(int64_t number) {
    std::shared_ptr<T> last;  // what it holds is freed without the lock
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = owned_.find(number);
    if (found == owned_.end()) return;
    last = std::move(found->second);
    owned_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<T>> owned_;
  std::unordered_map<int64_t, std::weak_ptr<T>> known_;
  int64_t last_ = 0;
};

// Never destroyed: threads may still be in calls as the process ends.
Numbered<Binding>& bindings = *new Numbered<Binding>;
Numbered<Pool>& pools = *new Numbered<Pool>;

std::shared_ptr<Binding> BindingOf(const NodeAttrs& attrs) {
  auto number = attrs.dict.find("binding");
  std::shared_ptr<Binding> found;
  if (number != attrs.dict.end())
    found = bindings.Find(std::strtoll(number->second.c_str(), nullptr, 10));
  if (!found) Fail("node " + attrs.name + " has no executor: it cannot be saved or traced");
  return found;
}

/* Whether a backward would bring a gradient to what an array came from. Autograd leaves a node with an
 * array that it has seen once, also where nobody wants a gradient of it. */
bool WantsGradient(const NDArray& array) {
  struct Info {  // as mxnet::Imperative::AGInfo begins
    mxnet::Context context;
    OpReqType request;
  };
  std::unordered_set<const nnvm::Node*> seen;
  std::vector<ObjectPtr> pending{array.entry_.node};
  while (!pending.empty()) {
    ObjectPtr node = std::move(pending.back());
    pending.pop_back();
    if (node == nullptr || !seen.insert(node.get()).second) continue;
    const LegacyNode& view = View(node);
    if (view.info.empty()) continue;  // its backward is over
    if (static_cast<const Info*>(view.info.data_.pheap)->request != mxnet::kNullOp) return true;
    for (const NodeEntry& input : view.inputs) pending.push_back(input.node);
  }
  return false;
}

/* A call, from its forward until its tape is gone. */
class RunningCall {
 public:
  explicit RunningCall(std::shared_ptr<Binding> binding) : binding_(std::move(binding)) {
    if (binding_->pool->is_taken.exchange(true)) {
      binding_.reset();
      Fail("the memory of an executor is in use by another call");
    }
  }
  ~RunningCall() {
    if (binding_) binding_->pool->is_taken = false;
  }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  Binding& binding() { return *binding_; }

  /* Values that are computed again have to come out as in forward, and MXNet's executor has one mode. */
  bool is_training = false;

  /* The executor computes gradients in the memory of what it read for them. */
  void StartBackward() {
    if (is_done_)
      Fail("backward ran a second time through one call of a net with a memory budget, which keeps"
           " nothing for that: leave out retain_graph, or call the net again");
    is_done_ = true;
  }

 private:
  std::shared_ptr<Binding> binding_;
  bool is_done_ = false;
};

bool IsSame(const NDArray& one, const NDArray& other) {
  return one.ptr_ == other.ptr_ && one.byte_offset_ == other.byte_offset_;
}

/* Whether an array is a part or another shape of one that oneDNN may have laid out when it is written: CopyFromTo fails
 * there. */
bool MayShareLayout(const NDArray& array) { return array.ctx().dev_mask() == mshadow::cpu::kDevMask && array.IsView(); }

void Assign(const NDArray& from, const NDArray& to) {
  if (MayShareLayout(from))
    RunOnEngine("_copy", {}, {from}, {mxnet::kWriteTo}, {to});
  else
    mxnet::CopyFromTo(from, &to);
}

/* The array itself, or a copy of its own memory. */
NDArray WithoutLayout(const NDArray& array) {
  if (!MayShareLayout(array)) return array;
  NDArray copy(array.shape(), array.ctx(), false, array.dtype());
  Assign(array, copy);
  return copy;
}

void CheckCall(int result) {
  if (result != 0) Fail(MXGetLastError());
}

/* Has the engine count a write to states behind all that was started: an executor's operators count as readers of
 * the states that they write. */
void NoteStatesWritten(const std::vector<NDArray>& states) {
  std::vector<Variable*> once;
  for (const NDArray& state : states) once.push_back(VariableOf(const_cast<NDArray*>(&state)));
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  if (once.empty()) return;
  mxnet::Context context = states[0].ctx();
  mxnet::FnProperty property = mxnet::FnProperty::kNormal;
  CheckCall(MXEnginePushSync([](void*, void*) {}, nullptr, nullptr, &context, nullptr, 0, once.data(), once.size(),
                             &property, 0, "graphopt_states_written"));
}

uint32_t ExecutorInputs(const NodeAttrs& attrs) { return BindingOf(attrs)->arguments.size(); }
uint32_t ExecutorOutputs(const NodeAttrs& attrs) { return BindingOf(attrs)->outputs.size(); }

bool ExecutorShapes(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  std::shared_ptr<Binding> binding = BindingOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) (*in)[i] = binding->arguments[i].shape();
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = binding->outputs[i].shape();
  return true;
}

bool ExecutorTypes(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  std::shared_ptr<Binding> binding = BindingOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) (*in)[i] = binding->arguments[i].dtype();
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = binding->outputs[i].dtype();
  return true;
}

bool ExecutorStorage(const NodeAttrs&, int, mxnet::DispatchMode* mode, std::vector<int>* in,
                     std::vector<int>* out) {
  for (int& kind : *in) kind = mxnet::kDefaultStorage;
  for (int& kind : *out) kind = mxnet::kDefaultStorage;
  *mode = mxnet::DispatchMode::kFComputeEx;
  return true;
}

mxnet::ExecType ExecutorWhere(const NodeAttrs&) { return mxnet::ExecType::kSubgraphExec; }

OpStatePtr ExecutorState(const NodeAttrs& attrs, mxnet::Context, const mxnet::ShapeVector&,
                         const std::vector<int>&) {
  return OpStatePtr::Create<RunningCall>(BindingOf(attrs));
}

void ExecutorForward(const OpStatePtr& state, const mxnet::OpContext& context,
                     const std::vector<NDArray>& inputs, const std::vector<OpReqType>&,
                     const std::vector<NDArray>& outputs) {
  RunningCall& call = state.get_state<RunningCall>();
  Binding& binding = call.binding();
  call.is_training = context.is_train;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!IsSame(inputs[i], binding.arguments[i]))
      Assign(inputs[i], binding.arguments[i]);
  CheckCall(MXExecutorForward(binding.executor, context.is_train));
  for (size_t i = 0; i < outputs.size(); ++i) mxnet::CopyFromTo(binding.outputs[i], &outputs[i]);
}

void ExecutorBackward(const OpStatePtr& state, const mxnet::OpContext& context,
                      const std::vector<NDArray>& heads, const std::vector<OpReqType>& requests,
                      const std::vector<NDArray>& outputs) {
  RunningCall& call = state.get_state<RunningCall>();
  Binding& binding = call.binding();
  if (context.need_grad)
    Fail("a net with a memory budget has no gradient of its gradient: leave out create_graph, or call"
         " the net without a budget");
  if (call.is_training && !context.is_train)
    Fail("backward of a net with a memory budget runs in the mode of its call, which was training:"
         " leave out train_mode=False, or call the net under autograd.record(train_mode=False)");
  call.StartBackward();
  // The executor writes to the user's gradients even where they are to stay, or to be added to.
  std::vector<NDArray> before(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    NDArray& own = binding.gradients[i];
    if (own.is_none()) {
      if (requests[i] != mxnet::kNullOp)
        Fail("input " + std::to_string(i) + " got no gradient: it was recorded after the call");
      continue;
    }
    bool is_target = requests[i] != mxnet::kAddTo && requests[i] != mxnet::kNullOp &&
                     IsSame(outputs[i], own);
    if (binding.is_users[i] && !is_target) before[i] = own.Copy(own.ctx());
  }
  std::vector<NDArray> given;
  std::vector<NDArrayHandle> handles;
  for (const NDArray& head : heads) given.push_back(WithoutLayout(head));
  for (NDArray& head : given) handles.push_back(&head);
  CheckCall(
      MXExecutorBackwardEx(binding.executor, handles.size(), handles.data(), context.is_train));
  NoteStatesWritten(binding.states);
  for (size_t i = 0; i < outputs.size(); ++i) {
    NDArray& own = binding.gradients[i];
    if (own.is_none()) continue;
    bool is_same = IsSame(outputs[i], own);
    NDArray target = outputs[i];
    if (requests[i] == mxnet::kAddTo)
      mxnet::ElementwiseSum({is_same ? before[i] : target, own}, &target);
    else if (requests[i] != mxnet::kNullOp && !is_same)
      mxnet::CopyFromTo(own, &target);
    bool is_to_stay = requests[i] == mxnet::kNullOp || !is_same;
    if (!before[i].is_none() && is_to_stay) mxnet::CopyFromTo(before[i], &own);
  }
}

std::vector<NodeEntry> ExecutorGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  std::shared_ptr<Binding> binding = BindingOf(attrs);
  ObjectPtr made = MakeNode("_backward_graphopt_executor", attrs.name + "_backward",
                            {{"binding", attrs.dict.at("binding")}});
  LegacyNode& backward = View(made);
  backward.control_deps.push_back(node);
  for (const NodeEntry& head : heads) backward.inputs.push_back(head);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < binding->arguments.size(); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

void RegisterExecutor() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__("graphopt_executor");
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_executor");
  forward.get_num_inputs = LegacyFunction(&ExecutorInputs);
  forward.get_num_outputs = LegacyFunction(&ExecutorOutputs);
  SetAttribute<mxnet::FInferShape>(forward, "FInferShape", LegacyFunction(&ExecutorShapes));
  SetAttribute<nnvm::FInferType>(forward, "FInferType", LegacyFunction(&ExecutorTypes));
  SetAttribute<mxnet::FCreateOpState>(forward, "FCreateOpState", LegacyFunction(&ExecutorState));
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&ExecutorGradient));
  backward.get_num_inputs = LegacyFunction(&ExecutorOutputs);
  backward.get_num_outputs = LegacyFunction(&ExecutorInputs);
  SetAttribute<nnvm::TIsBackward>(backward, "TIsBackward", true);
  SetAttribute<bool>(backward, "TIsLayerOpBackward", true);
  for (nnvm::Op* op : {&forward, &backward}) {
    SetAttribute<mxnet::FInferStorageType>(*op, "FInferStorageType",
                                           LegacyFunction(&ExecutorStorage));
    SetAttribute<mxnet::FExecType>(*op, "FExecType", LegacyFunction(&ExecutorWhere));
    // Arrays come as they are: whatever layout oneDNN gave them, the executor can read it.
    SetAttribute<bool>(*op, "TIsMKLDNN", true);
    auto compute = LegacyFunction(op == &forward ? &ExecutorForward : &ExecutorBackward);
    for (const char* device : {"FStatefulComputeEx<cpu>", "FStatefulComputeEx<gpu>"})
      if (nnvm::Op::GetAttrMap(device) != nullptr)
        SetAttribute<mxnet::FStatefulComputeEx>(*op, device, compute);
  }
}

/* Takes over an executor; arrays are handles of MXNet, a gradient may be null. */
int64_t AddBinding(int64_t pool, ExecutorHandle executor, int arguments, NDArrayHandle* argument,
                   NDArrayHandle* gradient, const int* is_users, int outputs,
                   NDArrayHandle* output, int states, NDArrayHandle* state) {
  auto made = std::make_shared<Binding>();
  made->executor = executor;
  made->pool = pools.Find(pool);
  for (int i = 0; i < arguments; ++i) {
    made->arguments.push_back(*static_cast<NDArray*>(argument[i]));
    made->gradients.push_back(gradient[i] ? *static_cast<NDArray*>(gradient[i]) : NDArray());
    made->is_users.push_back(is_users[i]);
  }
  for (int i = 0; i < outputs; ++i) made->outputs.push_back(*static_cast<NDArray*>(output[i]));
  for (int i = 0; i < states; ++i) made->states.push_back(*static_cast<NDArray*>(state[i]));
  return bindings.Add(std::move(made));
}

}  // namespace graphopt
