/*
 * The operators graphopt_small and _backward_graphopt_small: a graph of small_training.h, run by the thread that calls
 * MXNet where nothing has to be waited for.
 *
 * Attributes: `graph`, the number of a graph of this process; `learns`, whether what backward needs is kept, as an output
 * more. They are called by the imperative interface only, which autograd records, and are in no Symbol.
 */
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "caller.h"
#include "small_training.h"

namespace graphopt {

constexpr const char* kSmall = "graphopt_small";
constexpr const char* kSmallBackward = "_backward_graphopt_small";
constexpr const char* kSmallHigher = "_backward_graphopt_small_higher";
constexpr const char* kOnEngine = "_on_engine";  // behind these names: run by the engine, with arrays that are sparse

/* A graph, as long as the engine that made it is there, a call of it runs, or autograd has one recorded. */
using SmallShared = std::shared_ptr<const SmallTraining>;

/* Graphs of this process by number. */
class SmallGraphs {
 public:
  static int64_t Add(std::unique_ptr<SmallTraining> graph) {
    std::lock_guard<std::mutex> lock(mutex());
    const SmallShared made(std::move(graph));
    known().push_back({made, made});
    return known().size() - 1;
  }
  /* Its engine is gone. */
  static void Release(size_t number) {
    SmallShared last;  // freed without the lock
    std::lock_guard<std::mutex> lock(mutex());
    last.swap(known()[number].of_engine);
  }
  static SmallShared At(size_t number) {
    std::lock_guard<std::mutex> lock(mutex());
    SmallShared found = number < known().size() ? known()[number].graph.lock() : nullptr;
    if (!found) Fail("a small graph is of another process, or its engine is gone");
    return found;
  }

 private:
  struct Known {
    SmallShared of_engine;
    std::weak_ptr<const SmallTraining> graph;
  };
  static std::mutex& mutex() {
    static std::mutex made;
    return made;
  }
  static std::vector<Known>& known() {
    static auto& made = *new std::vector<Known>;  // never destroyed: threads may be in calls as the process ends
    return made;
  }
};

/* What a node's attributes say, read once for each. */
struct SmallAttrs {
  SmallShared graph;
  bool learns;
};

void ParseSmall(NodeAttrs* attrs) {
  reinterpret_cast<LegacyNode*>(attrs)->parsed =
      SmallAttrs{SmallGraphs::At(std::stoull(AttributeOf(*attrs, "graph"))), Flag(*attrs, "learns")};
}

const SmallAttrs& SmallOf(const NodeAttrs& attrs) {
  return dmlc::unsafe_get<SmallAttrs>(reinterpret_cast<const LegacyNode*>(&attrs)->parsed);
}
const SmallTraining& GraphOf(const NodeAttrs& attrs) { return *SmallOf(attrs).graph; }

uint32_t SmallInputs(const NodeAttrs& attrs) { return GraphOf(attrs).inputs(); }
uint32_t SmallVisible(const NodeAttrs& attrs) { return GraphOf(attrs).outputs(); }
uint32_t SmallOutputs(const NodeAttrs& attrs) { return SmallVisible(attrs) + SmallOf(attrs).learns; }
/* Gradients of outputs, inputs, outputs and the stash. */
uint32_t SmallBackwardInputs(const NodeAttrs& attrs) { return 2 * SmallVisible(attrs) + SmallInputs(attrs) + 1; }

void SettleSmall(const NodeAttrs& attrs, const TBlob& blob, const char* what, mxnet::TShape* shape) {
  if (mxnet::shape_is_known(*shape) && *shape != blob.shape_)
    Fail(std::string("an ") + what + " of node " + attrs.name + " has another shape there");
  *shape = blob.shape_;
}

bool SmallShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const SmallTraining& graph = GraphOf(attrs);
  for (int64_t i = 0; i < graph.inputs(); ++i) SettleSmall(attrs, graph.input(i), "input", &(*in)[i]);
  for (int64_t i = 0; i < graph.outputs(); ++i) SettleSmall(attrs, graph.output(i), "output", &(*out)[i]);
  if (SmallOf(attrs).learns) out->back() = Shaped({graph.stash_floats()});
  return true;
}

bool SmallType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const SmallTraining& graph = GraphOf(attrs);
  for (int64_t i = 0; i < graph.inputs(); ++i) (*in)[i] = graph.input(i).type_flag_;
  for (int64_t i = 0; i < graph.outputs(); ++i) (*out)[i] = graph.output(i).type_flag_;
  if (SmallOf(attrs).learns) out->back() = mshadow::kFloat32;
  return true;
}

/* What backward reads, in its order: as shapes, or as dtypes. */
template <typename Value, typename Of>
void SmallBackwardFacts(const NodeAttrs& attrs, const Of& of, const Value& stash, std::vector<Value>* in,
                        std::vector<Value>* out) {
  const SmallTraining& graph = GraphOf(attrs);
  std::vector<Value> outputs;
  for (int64_t i = 0; i < graph.outputs(); ++i) outputs.push_back(of(graph.output(i)));
  *in = outputs;
  for (int64_t i = 0; i < graph.inputs(); ++i) SettleGradient(attrs, Value(of(graph.input(i))), &(*out)[i]);
  in->insert(in->end(), out->begin(), out->end());
  in->insert(in->end(), outputs.begin(), outputs.end());
  in->push_back(stash);
}

bool SmallBackwardShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const SmallTraining& graph = GraphOf(attrs);
  for (int64_t i = 0; i < graph.outputs(); ++i) RequireSizeOfHead(attrs, (*in)[i], graph.output(i).shape_);
  SmallBackwardFacts(attrs, [](const TBlob& blob) { return blob.shape_; },
                     Shaped({GraphOf(attrs).stash_floats()}), in, out);
  return true;
}

bool SmallBackwardType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const SmallTraining& graph = GraphOf(attrs);
  for (int64_t i = 0; i < graph.outputs(); ++i) TypeOfHead(attrs, (*in)[i], graph.output(i).type_flag_);
  SmallBackwardFacts<int>(attrs, [](const TBlob& blob) { return blob.type_flag_; }, mshadow::kFloat32, in, out);
  return true;
}

/* A call of either, as the engine runs it. */
struct SmallCall {
  SmallShared graph;
  bool is_backward, is_train;
  std::vector<NDArray> in, out;
  std::vector<OpReqType> requests;
};

std::vector<NDArray> ArraysAt(void** handles, int64_t count) {
  std::vector<NDArray> found;
  for (int64_t i = 0; i < count; ++i) found.push_back(*static_cast<NDArray*>(handles[i]));
  if (!AreDense(found)) Fail("an array of a small graph is not dense");
  return found;
}

void RunSmall(const SmallTraining& graph, bool is_backward, bool is_train, const std::vector<TBlob>& in,
              const std::vector<OpReqType>& requests, const std::vector<TBlob>& out) {
  if (!is_backward) return graph.Forward(in, out, is_train);
  const auto first = in.begin() + graph.outputs(), behind = first + graph.inputs();
  graph.Backward(in.data(), {first, behind}, {behind, in.end()}, requests, out);
}

void RunPushed(void*, void* given) {
  const SmallCall& made = *static_cast<SmallCall*>(given);
  std::vector<NDArray> plain;  // copies live until they have been read
  for (const NDArray& array : made.in) plain.push_back(InPlainOrder(array));
  for (size_t i = 0; i < made.out.size(); ++i)
    if (made.requests[i] != mxnet::kNullOp) PutInPlainOrder(made.out[i]);
  RunSmall(*made.graph, made.is_backward, made.is_train, BlobsOf(plain), made.requests, BlobsOf(made.out));
}

/* Of backward, whose inputs have those of forward behind the gradients of outputs. */
std::vector<uint32_t> WrittenBackward(const SmallTraining& graph) {
  std::vector<uint32_t> found = graph.Written();
  for (uint32_t& input : found) input += graph.outputs();
  return found;
}
std::vector<uint32_t> SmallWrites(const NodeAttrs& attrs) { return WrittenBackward(GraphOf(attrs)); }

void PushSmall(const SmallCall& call) {
  Variables written;
  for (size_t i = 0; i < call.out.size(); ++i)
    if (call.requests[i] != mxnet::kNullOp) written.push_back(ChunkOf(call.out[i])->variable);
  if (call.is_backward)
    for (uint32_t input : WrittenBackward(*call.graph)) written.push_back(ChunkOf(call.in[input])->variable);
  Push(&RunPushed, new SmallCall(call), [](void* made) { delete static_cast<SmallCall*>(made); }, VariablesOf(call.in),
       written, call.graph->is_small(), kSmall);
}

/* An executor's calls: `in` and `out` as SmallTraining has them, the stash behind outputs. */
void PushForward(const SmallShared& graph, void** in, void** out, bool is_train) {
  const std::vector<NDArray> made = ArraysAt(out, graph->outputs() + 1);
  PushSmall({graph, false, is_train, ArraysAt(in, graph->inputs()), made,
             std::vector<OpReqType>(made.size(), mxnet::kWriteTo)});
}

/* `gradients` of inputs; of those without a request any array. */
void PushBackward(const SmallShared& graph, void** heads, void** in, void** out, void** gradients,
                  const int* requests) {
  std::vector<NDArray> read = ArraysAt(heads, graph->outputs());
  for (const NDArray& array : ArraysAt(in, graph->inputs())) read.push_back(array);
  for (const NDArray& array : ArraysAt(out, graph->outputs() + 1)) read.push_back(array);
  SmallCall call{graph, true, true, read, ArraysAt(gradients, graph->inputs()), {}};
  for (int64_t i = 0; i < graph->inputs(); ++i) call.requests.push_back(static_cast<OpReqType>(requests[i]));
  PushSmall(call);
}

void CallSmall(const NodeAttrs& attrs, bool is_backward, bool is_train, const std::vector<NDArray>& in,
               const std::vector<OpReqType>& requests, const std::vector<NDArray>& out) {
  if (!AreDense(in) || !AreDense(out))
    return RunOnEngine(std::string(is_backward ? kSmallBackward : kSmall) + kOnEngine,
                       {{"graph", AttributeOf(attrs, "graph")}, {"learns", TextOf(attrs, "learns", "False")}}, in,
                       requests, out);
  PushSmall({SmallOf(attrs).graph, is_backward, is_train, in, out, requests});
}

void SmallForward(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<NDArray>& in,
                  const std::vector<OpReqType>& requests, const std::vector<NDArray>& out) {
  CallSmall(attrs, false, context.is_train, in, requests, out);
}

void SmallBackward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<NDArray>& in,
                   const std::vector<OpReqType>& requests, const std::vector<NDArray>& out) {
  CallSmall(attrs, true, false, in, requests, out);
}

template <bool kIsBackward>
void SmallOnEngine(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& in,
                   const std::vector<OpReqType>& requests, const std::vector<TBlob>& out) {
  RunSmall(GraphOf(attrs), kIsBackward, context.is_train, in, requests, out);
}

std::vector<NodeEntry> SmallGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  ObjectPtr made = MakeNode(kSmallBackward, node->attrs.name + "_backward",
                            {{"graph", AttributeOf(node->attrs, "graph")}, {"learns", "True"}});
  std::vector<NodeEntry>& read = View(made).inputs;
  const std::vector<NodeEntry>& inputs = View(node).inputs;
  const uint32_t outputs = SmallOutputs(node->attrs);
  read.assign(heads.begin(), heads.begin() + (outputs - 1));
  read.insert(read.end(), inputs.begin(), inputs.end());
  for (uint32_t i = 0; i < outputs; ++i) read.emplace_back(node, i, 0);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < inputs.size(); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

/* Gradients of the gradient, as create_graph asks for: refused where they are computed, as autograd asks for them when it
 * records a gradient. Without them MXNet's own words would name an operator that nobody wrote. */
std::vector<NodeEntry> SmallHigherGradient(const ObjectPtr& node, const std::vector<NodeEntry>&) {
  ObjectPtr made = MakeNode(kSmallHigher, node->attrs.name, {{"graph", AttributeOf(node->attrs, "graph")}});
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < SmallBackwardInputs(node->attrs); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

template <typename Facts>
bool RefuseSmallHigher(const NodeAttrs& attrs, Facts*, Facts*) {
  Fail("node " + attrs.name + " has no gradients of higher order (create_graph=True), as hybridized nets have none; call "
       "the net that was optimized instead, without hybridizing it");
  return false;
}

void RegisterSmall() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__(kSmall);
  nnvm::Op& forward_there = registry->__REGISTER_OR_GET__(std::string(kSmall) + kOnEngine);
  for (nnvm::Op* op : {&forward, &forward_there}) {
    op->attr_parser = LegacyFunction(&ParseSmall);
    op->get_num_inputs = LegacyFunction(&SmallInputs);
    op->get_num_outputs = LegacyFunction(&SmallOutputs);
    SetAttribute<nnvm::FNumVisibleOutputs>(*op, "FNumVisibleOutputs", LegacyFunction(&SmallVisible));
    SetAttribute<mxnet::FInferShape>(*op, "FInferShape", LegacyFunction(&SmallShape));
    SetAttribute<nnvm::FInferType>(*op, "FInferType", LegacyFunction(&SmallType));
  }
  nnvm::Op& backward = registry->__REGISTER_OR_GET__(kSmallBackward);
  nnvm::Op& backward_there = registry->__REGISTER_OR_GET__(std::string(kSmallBackward) + kOnEngine);
  for (nnvm::Op* op : {&backward, &backward_there}) {
    op->attr_parser = LegacyFunction(&ParseSmall);
    op->get_num_inputs = LegacyFunction(&SmallBackwardInputs);
    op->get_num_outputs = LegacyFunction(&SmallInputs);
    SetAttribute<mxnet::FInferShape>(*op, "FInferShape", LegacyFunction(&SmallBackwardShape));
    SetAttribute<nnvm::FInferType>(*op, "FInferType", LegacyFunction(&SmallBackwardType));
    SetAttribute<nnvm::FMutateInputs>(*op, "FMutateInputs", LegacyFunction(&SmallWrites));
    SetAttribute<nnvm::FGradient>(*op, "FGradient", LegacyFunction(&SmallHigherGradient));
  }
  nnvm::Op& higher = registry->__REGISTER_OR_GET__(kSmallHigher);
  higher.set_num_inputs(0);
  higher.attr_parser = LegacyFunction(&ParseSmall);
  higher.get_num_outputs = LegacyFunction(&SmallBackwardInputs);
  SetAttribute<mxnet::FInferShape>(higher, "FInferShape", LegacyFunction(&RefuseSmallHigher<mxnet::ShapeVector>));
  SetAttribute<nnvm::FInferType>(higher, "FInferType", LegacyFunction(&RefuseSmallHigher<std::vector<int>>));
  SetAttribute<mxnet::FComputeEx>(forward, "FComputeEx<cpu>", LegacyFunction(&SmallForward));
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&SmallGradient));
  SetAttribute<mxnet::FComputeEx>(backward, "FComputeEx<cpu>", LegacyFunction(&SmallBackward));
  SetAttribute<mxnet::FCompute>(forward_there, "FCompute<cpu>", LegacyFunction(&SmallOnEngine<false>));
  SetAttribute<mxnet::FCompute>(backward_there, "FCompute<cpu>", LegacyFunction(&SmallOnEngine<true>));
  for (nnvm::Op* op : {&forward, &backward}) {
    SetAttribute<mxnet::FInferStorageType>(*op, "FInferStorageType", LegacyFunction(&StorageByCaller));
    SetAttribute<mxnet::FExecType>(*op, "FExecType", LegacyFunction(&RunByCaller));
  }
}

}  // namespace graphopt
