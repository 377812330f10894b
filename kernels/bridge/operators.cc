/*
 * Registers graphopt's operators with MXNet.
 *
 * Why not MXNet's lib_api.h: an operator registered through it never learns whether to write or to
 * add (grad_req="add" comes out wrong), and keeps all of its inputs and outputs for backward.
 */
#include <pthread.h>

#include <utility>

#include "attention_operator.h"
#include "batch_dot.h"
#include "batch_norm_operator.h"
#include "clip.h"
#include "convolutions_operator.h"
#include "dense_operator.h"
#include "dropout_operator.h"
#include "executor_operator.h"
#include "fused.h"
#include "fused_blocked.h"
#include "fused_cuda.h"
#include "holding.h"
#include "interleaved.h"
#include "keeping_operator.h"
#include "kept.h"
#include "legacy.h"
#include "mended.h"
#include "product_operator.h"
#include "pushing.h"
#include "recurrence_operator.h"
#include "schedule_operator.h"
#include "small_operator.h"
#include "small_step.h"
#include "tiles.h"
#include "tree_operator.h"
#include "types.h"
#include "update.h"
#include "versions.h"
#include "written.h"

namespace graphopt {

void Register() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  if (registry->fmap_.count("graphopt_fused")) return;
  nnvm::Op& fused = registry->__REGISTER_OR_GET__("graphopt_fused");
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_fused");
  nnvm::Op& alone = registry->__REGISTER_OR_GET__(std::string("_backward_graphopt_fused") + kAlone);
  DescribeFused(&fused, &backward, &alone);
  // Operators of an MXNet with CUDA have this one; in others it does no harm.
  const bool has_gpus = nnvm::Op::GetAttrMap("FCompute<gpu>") != nullptr;
  SetAttribute<mxnet::FCompute>(fused, "FCompute<cpu>", LegacyFunction(&Forward));
  SetAttribute<nnvm::FGradient>(fused, "FGradient", LegacyFunction(&FusedGradient));
  DescribeLayouts(fused, LegacyFunction(&ForwardOnArrays));
  if (has_gpus) SetAttribute<mxnet::FCompute>(fused, "FCompute<gpu>", LegacyFunction(&ForwardOnGpu));
  for (nnvm::Op* op : {&backward, &alone}) {
    SetAttribute<mxnet::FCompute>(*op, "FCompute<cpu>", LegacyFunction(&Backward));
    DescribeLayouts(*op, LegacyFunction(&BackwardOnArrays));
    if (has_gpus) SetAttribute<mxnet::FCompute>(*op, "FCompute<gpu>", LegacyFunction(&BackwardOnGpu));
  }
  nnvm::Op& batch_dot = registry->__REGISTER_OR_GET__("graphopt_batch_dot");
  batch_dot.set_num_inputs(2).set_num_outputs(1);
  SetAttribute<mxnet::FInferShape>(batch_dot, "FInferShape", LegacyFunction(&BatchDotShape));
  SetAttribute<nnvm::FInferType>(batch_dot, "FInferType", LegacyFunction(&BatchDotType));
  SetAttribute<mxnet::FCompute>(batch_dot, "FCompute<cpu>", LegacyFunction(&BatchDot));
  SetAttribute<nnvm::FGradient>(batch_dot, "FGradient", LegacyFunction(&UnlessZeros<BatchDotGradient>));
  nnvm::Op& recurrence = registry->__REGISTER_OR_GET__("graphopt_recurrence");
  recurrence.get_num_inputs = LegacyFunction(&RecurrenceInputs);
  recurrence.get_num_outputs = LegacyFunction(&RecurrenceOutputs);
  SetAttribute<mxnet::FInferShape>(recurrence, "FInferShape", LegacyFunction(&RecurrenceShape));
  SetAttribute<nnvm::FInferType>(recurrence, "FInferType", LegacyFunction(&RecurrenceType));
  SetAttribute<mxnet::FCompute>(recurrence, "FCompute<cpu>", LegacyFunction(&RecurrenceForward));
  SetAttribute<nnvm::FInplaceOption>(recurrence, "FInplaceOption",
                                     LegacyFunction(&RecurrencePairs));
  SetAttribute<nnvm::FGradient>(recurrence, "FGradient", LegacyFunction(&RecurrenceGradient));
  nnvm::Op& back = registry->__REGISTER_OR_GET__("_backward_graphopt_recurrence");
  back.get_num_inputs = LegacyFunction(&RecurrenceBackwardInputs);
  back.get_num_outputs = LegacyFunction(&RecurrenceBackwardOutputs);
  SetAttribute<mxnet::FInferShape>(back, "FInferShape", LegacyFunction(&RecurrenceBackwardShape));
  SetAttribute<nnvm::FInferType>(back, "FInferType", LegacyFunction(&RecurrenceBackwardType));
  SetAttribute<mxnet::FCompute>(back, "FCompute<cpu>", LegacyFunction(&RecurrenceBackward));
  nnvm::Op& tree = registry->__REGISTER_OR_GET__("graphopt_tree");
  tree.get_num_inputs = LegacyFunction(&TreeInputs);
  tree.get_num_outputs = LegacyFunction(&TreeOutputs);
  SetAttribute<mxnet::FInferShape>(tree, "FInferShape", LegacyFunction(&TreeShapes));
  SetAttribute<nnvm::FInferType>(tree, "FInferType", LegacyFunction(&TreeTypes));
  SetAttribute<mxnet::FCompute>(tree, "FCompute<cpu>", LegacyFunction(&TreeForward));
  SetAttribute<nnvm::FGradient>(tree, "FGradient", LegacyFunction(&TreeGradient));
  nnvm::Op& down = registry->__REGISTER_OR_GET__("_backward_graphopt_tree");
  down.get_num_inputs = LegacyFunction(&TreeBackwardInputs);
  down.get_num_outputs = LegacyFunction(&TreeInputs);
  SetAttribute<nnvm::TIsBackward>(down, "TIsBackward", true);
  SetAttribute<mxnet::FCompute>(down, "FCompute<cpu>", LegacyFunction(&TreeBackward));
  nnvm::Op& schedule = registry->__REGISTER_OR_GET__("graphopt_schedule");
  schedule.get_num_inputs = LegacyFunction(&ScheduleInputs);
  schedule.get_num_outputs = LegacyFunction(&ScheduleOutputs);
  SetAttribute<mxnet::FInferShape>(schedule, "FInferShape", LegacyFunction(&ScheduleShapes));
  SetAttribute<nnvm::FInferType>(schedule, "FInferType", LegacyFunction(&ScheduleTypes));
  SetAttribute<mxnet::FCompute>(schedule, "FCompute<cpu>", LegacyFunction(&ScheduleForward));
  SetAttribute<nnvm::FGradient>(schedule, "FGradient", LegacyFunction(&UnlessZeros<ScheduleGradient>));
  nnvm::Op& unschedule = registry->__REGISTER_OR_GET__("_backward_graphopt_schedule");
  unschedule.get_num_inputs = LegacyFunction(&ScheduleBackwardInputs);
  unschedule.get_num_outputs = LegacyFunction(&ScheduleInputs);
  SetAttribute<nnvm::TIsBackward>(unschedule, "TIsBackward", true);
  SetAttribute<mxnet::FCompute>(unschedule, "FCompute<cpu>", LegacyFunction(&ScheduleBackward));
  RegisterConvolutions();
  RegisterProduct();
  RegisterDense();
  RegisterDropout();
  RegisterInterleaved();
  RegisterAttention();
  RegisterBatchNorm();
  RegisterKeeping();
  RegisterSmall();
  RegisterExecutor();
  MendOperators();
}

}  // namespace graphopt

#pragma GCC visibility push(default)
extern "C" {

/* Whether versions can be read; `array` and `same` share their memory, `other` does not. */
int graphopt_variables_fit(void* array, void* same, void* other) {
  return graphopt::VariablesFit(array, same, other);
}

/* Has the engine write down how often arrays were written, when all that was started before is done.
 * To be given back by graphopt_versions_free; null if it fails. */
void* graphopt_versions_note(void** arrays, int64_t count) {
  try {
    return graphopt::NoteVersions(arrays, count);
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return nullptr;
  }
}

/* Waits for what was noted, and puts one number for each array into `counts`. */
void graphopt_versions_read(void* noted, uint64_t* counts) {
  graphopt::ReadVersions(noted, counts);
}

void graphopt_versions_free(void* noted) { graphopt::FreeVersions(noted); }

/* How many arrays lie in the memory of one, those of operators that are still to run among them. */
int64_t graphopt_memory_users(void* array) { return graphopt::ChunkOf(*static_cast<mxnet::NDArray*>(array)).use_count(); }

/* A number for the memory of an array, which views of it share; another one may get it later. 0 if it has none. */
int64_t graphopt_memory_of(void* array) {
  const bool is_there = *static_cast<std::shared_ptr<graphopt::LegacyChunk>*>(array) != nullptr;
  return is_there ? reinterpret_cast<int64_t>(graphopt::VariableOf(array)) : 0;
}

int graphopt_have_one_memory(void* array, void* other) {
  return graphopt::VariableOf(array) == graphopt::VariableOf(other);
}

/* Whether an array is a part of another one, or has its memory in another shape. */
int graphopt_is_view(void* array) { return static_cast<mxnet::NDArray*>(array)->IsView(); }

/* Whether autograd knows of an array, as a variable or as what was computed of one; not one that it has noted as an
 * input without gradient. */
int graphopt_has_history(void* array) {
  const nnvm::ObjectPtr& node = static_cast<mxnet::NDArray*>(array)->entry_.node;
  if (!node) return false;
  const graphopt::LegacyNode& known = graphopt::View(node);
  if (known.info.empty()) return false;
  return known.op || dmlc::unsafe_get<mxnet::Imperative::AGInfo>(known.info).grad_req != mxnet::kNullOp;
}

/* Lets nobody write to arrays until graphopt_release; waits for who does. `laid_out` tells of each whether oneDNN has
 * laid it out in an order of its own. What is to be given back goes to `held`, which has to be null: an interrupt may
 * keep the caller from what this returns, which is -1 if it fails. */
int graphopt_hold(void** arrays, int64_t count, int* laid_out, graphopt::Holding** held) {
  try {
    *held = graphopt::Holding::Of(arrays, count);
    for (int64_t i = 0; i < count; ++i) laid_out[i] = graphopt::IsLaidOut(arrays[i]);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* Gives back what is held, if anything is. */
void graphopt_release(graphopt::Holding** held) { delete std::exchange(*held, nullptr); }

/* Has MXNet's engine be handed one operation at a time; 0 if it is none that is known. */
int graphopt_push_in_turns() { return graphopt::Pushing::Begin(); }

/* Puts how often each array was written into `counts`, waiting for what is being written; -1 if that
 * failed. */
int graphopt_count_writes(void** arrays, int64_t count, uint64_t* counts) {
  try {
    graphopt::CountWrites(arrays, count, counts);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* Has what is started later on arrays wait for all that was started on them; -1 if that failed. */
int graphopt_note_written(void** arrays, int64_t count) {
  try {
    std::vector<mxnet::NDArray> states;
    for (int64_t i = 0; i < count; ++i) states.push_back(*static_cast<mxnet::NDArray*>(arrays[i]));
    graphopt::NoteStatesWritten(states);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* Whether an array is not as often written as `counts` says; also if writing one failed. */
int graphopt_is_written(void** arrays, int64_t count, const uint64_t* counts) {
  try {
    return graphopt::IsWritten(arrays, count, counts);
  } catch (const std::exception&) {
    return 1;
  }
}

uint64_t graphopt_digest(const void* data, int64_t bytes) { return graphopt::Digest(data, bytes); }

/* Puts a number for what all arrays hold into `digest`, waiting for what is being written; -1 if that failed. */
int graphopt_digest_arrays(void** arrays, int64_t count, uint64_t* digest) {
  try {
    *digest = graphopt::DigestOf(arrays, count);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* Whether `symbol`, the sum of the variable x with itself, looks as this file expects. */
int graphopt_layout_fits(void* symbol) {
  auto& outputs = *static_cast<std::vector<nnvm::NodeEntry>*>(symbol);
  if (outputs.size() != 1) return 0;
  graphopt::LegacyNode& node = graphopt::View(outputs[0].node);
  auto begin = reinterpret_cast<char*>(node.inputs.data());
  auto end = reinterpret_cast<char*>(node.inputs._M_impl._M_finish);
  if (end - begin != 2 * static_cast<ptrdiff_t>(sizeof(nnvm::NodeEntry))) return 0;
  if (node.inputs[0].node.get() != node.inputs[1].node.get()) return 0;
  return graphopt::View(node.inputs[0].node).name == "x" && node.control_deps.empty();
}

/* Registers the operators; returns a message if that fails. */
const char* graphopt_register(graphopt::DescribeCallback describe,
                              graphopt::CompileCallback compile,
                              graphopt::LaunchesCallback describe_launches) {
  static std::string message;
  try {
    graphopt::describe = describe;
    graphopt::compile = compile;
    graphopt::describe_launches = describe_launches;
    graphopt::Register();
    // The workers of OpenMP do not survive a fork.
    pthread_atfork(nullptr, nullptr, [] { graphopt::forked = true; });
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

/* Called from within a callback that fails: why. */
void graphopt_set_error(const char* message) { graphopt::python_error = message; }

/* Runs a kernel on plain arrays, on a GPU if its number is not negative: for tests without MXNet.
 * Returns 0 on success. */
int graphopt_run(const char* spec, int backward, void** data, const int64_t* shapes, int count,
                 const int* requests, int gpu) {
  try {
    nnvm::NodeAttrs attrs;
    attrs.dict["spec"] = spec;
    graphopt::Plan* plan = graphopt::FindPlan(attrs, backward);
    std::vector<mxnet::TBlob> blobs;
    std::vector<const mxnet::TBlob*> in, out;
    std::vector<mxnet::OpReqType> wanted;
    size_t n_inputs = plan->inputs.size();
    blobs.reserve(count);
    for (int i = 0; i < count; ++i) {
      const auto& operand = static_cast<size_t>(i) < n_inputs ? plan->inputs[i]
                                                              : plan->outputs[i - n_inputs];
      mxnet::TShape shape(static_cast<int>(operand.axes.size()), 0);
      for (int d = 0; d < shape.ndim(); ++d) shape[d] = *shapes++;
      mxnet::TBlob blob;
      blob.dptr_ = data[i];
      blob.shape_ = shape;
      blob.type_flag_ = operand.dtype;
      blobs.push_back(blob);
    }
    for (int i = 0; i < count; ++i)
      (static_cast<size_t>(i) < n_inputs ? in : out).push_back(&blobs[i]);
    for (size_t i = 0; i < out.size(); ++i)
      wanted.push_back(static_cast<mxnet::OpReqType>(requests[i]));
    if (gpu < 0)
      graphopt::Run(plan, in, out, wanted, nullptr);
    else
      graphopt::RunOnGpu(plan, in, out, wanted, gpu, nullptr);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* See types.h. */
int64_t graphopt_types(void** arrays, int64_t count, int64_t* to, int64_t room) {
  return graphopt::WriteTypes(arrays, count, to, room);
}

/* See small_graph.h; for inference to be given back by graphopt_graph_free. Numbers are negative, or not 0, where
 * something failed. */
void* graphopt_graph_new(int learns) {
  if (learns) return static_cast<graphopt::SmallGraph*>(new graphopt::SmallTraining);
  return static_cast<graphopt::SmallGraph*>(new graphopt::SmallInference);
}
void graphopt_graph_free(void* graph) { delete static_cast<graphopt::SmallGraph*>(graph); }

int64_t graphopt_graph_array(void* graph, int dtype, const int64_t* extents, int axes, int role, void* fixed) {
  return static_cast<graphopt::SmallGraph*>(graph)->Add(dtype, graphopt::ShapeFrom(extents, axes),
                                                        static_cast<graphopt::SmallGraph::Role>(role), fixed);
}

int64_t graphopt_graph_view(void* graph, int64_t of, const int64_t* extents, int axes) {
  return static_cast<graphopt::SmallGraph*>(graph)->AddView(of, graphopt::ShapeFrom(extents, axes));
}

int graphopt_graph_node(void* graph, int kind, const char* name, const char** keys, const char** values,
                        int attributes, const int64_t* in, int inputs, const int64_t* out, int outputs, int learns) {
  try {
    nnvm::NodeAttrs attrs;
    attrs.name = name;
    for (int i = 0; i < attributes; ++i) attrs.dict[keys[i]] = values[i];
    static_cast<graphopt::SmallGraph*>(graph)->AddNode(static_cast<graphopt::SmallGraph::Kind>(kind), std::move(attrs),
                                                       {in, in + inputs}, {out, out + outputs}, learns);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

int graphopt_graph_run(void* graph, void** given, int64_t inputs) {
  try {
    static_cast<graphopt::SmallInference*>(static_cast<graphopt::SmallGraph*>(graph))->Run(given, inputs);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* The number of a graph that learns, for graphopt_small; its engine gives it back by graphopt_graph_release. */
int64_t graphopt_graph_finish(void* graph, const int64_t* outputs, int count, int is_small) {
  std::unique_ptr<graphopt::SmallTraining> made(
      static_cast<graphopt::SmallTraining*>(static_cast<graphopt::SmallGraph*>(graph)));
  made->SetOutputs({outputs, outputs + count});
  if (!is_small) made->SetLarge();
  return graphopt::SmallGraphs::Add(std::move(made));
}

void graphopt_graph_release(int64_t graph) { graphopt::SmallGraphs::Release(graph); }

/* Floats of what a graph that learns keeps for backward. */
int64_t graphopt_graph_stash(int64_t graph) {
  try {
    return graphopt::SmallGraphs::At(graph)->stash_floats();
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* See small_operator.h: what an executor calls. */
int graphopt_graph_forward(int64_t graph, void** in, void** out, int is_train) {
  try {
    graphopt::PushForward(graphopt::SmallGraphs::At(graph), in, out, is_train);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

int graphopt_graph_backward(int64_t graph, void** heads, void** in, void** out, void** gradients,
                            const int* requests) {
  try {
    graphopt::PushBackward(graphopt::SmallGraphs::At(graph), heads, in, out, gradients, requests);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* See update.h: whether all weights have new gradients; -1 where that failed. */
int graphopt_are_fresh(void** weights, int64_t count) {
  try {
    return graphopt::AreFresh(weights, count);
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* See update.h: `arrays` of each weight, and `shared` numbers in front of the `own` ones of each. */
int graphopt_update(const char* const* specs, void** handles, int64_t weights, int64_t arrays, const double* numbers,
                    int64_t shared, int64_t own) {
  try {
    graphopt::PushUpdate({specs, handles, weights, arrays, numbers, shared, own});
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* See clip.h: the norm of some arrays goes to `total`, an array of one element. */
int graphopt_clip(const char* squares, const char* scaling, void** handles, int64_t count, void* total, double most) {
  try {
    graphopt::PushClip(squares, scaling, handles, count, total, most);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* See small_step.h: the graph of that number, what it reads, their gradients or null, what it makes, and the update as
 * of graphopt_update. */
int graphopt_step(int64_t graph, void** inputs, void** gradients, void** outputs, const char* const* specs,
                  void** handles, int64_t weights, int64_t arrays, const double* numbers, int64_t shared, int64_t own) {
  try {
    graphopt::PushStep(graphopt::SmallGraphs::At(graph), inputs, gradients, outputs,
                       {specs, handles, weights, arrays, numbers, shared, own});
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* How many channels make a block. */
int64_t graphopt_lanes() { return graphopt::blocked::BlockLanes(); }

/* Threads that a call which is worth it runs on. */
int graphopt_threads() { return graphopt::Threads(1e9, 1 << 20); }

/* Size of an input of convolutions once packed, or -1. */
int64_t graphopt_packed_size(const char* spec, int64_t input) {
  try {
    return graphopt::ConvolutionsBy(spec).packed.at(input).Size();
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* Packs what an input of convolutions is. */
int graphopt_pack(const char* spec, int64_t input, const float* numbers, float* packed) {
  try {
    graphopt::PackInput(graphopt::ConvolutionsBy(spec), input, numbers, packed);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* Runs convolutions on plain arrays, parameters packed; see TimeConvolutions. */
int graphopt_run_convolutions(const char* spec, const float** inputs, float** outputs, int threads,
                              int times, double* seconds) {
  try {
    graphopt::TimeConvolutions(graphopt::ConvolutionsBy(spec), inputs, outputs, threads, times,
                               seconds);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* Whether there is a matrix unit that this process may use. */
int graphopt_has_matrix_unit() { return graphopt::tiles::AreThere(); }

/* What sums of products are best multiplied by; see tiles.h. */
int graphopt_usual_factor() { return graphopt::tiles::UsualFactor(); }

/* Whether large matrices are best multiplied as dense.h does. */
int graphopt_has_dense() { return graphopt::dense::Best() != nullptr; }

/* Floats of a dense layer's weights once packed, as dense.h does if `tiled`, and packing them from (units,
 * depth); 0 if they cannot be packed. */
int64_t graphopt_packed_product(int64_t depth, int64_t units, int tiled) {
  if (!tiled) return graphopt::product::PackedSize(depth, units);
  const graphopt::dense::Means* best = graphopt::dense::Best();
  return best ? best->packed_size(depth, units) : 0;
}

int graphopt_pack_product(const float* weights, int64_t depth, int64_t units, int tiled,
                          float* packed) {
  if (tiled) {
    const graphopt::dense::Means* best = graphopt::dense::Best();
    return best && best->pack({weights, depth, true}, depth, units, packed);
  }
  graphopt::product::Pack(weights, depth, units, packed);
  return 1;
}

/* Bytes of the packed matrices of a recurrence in inference, or -1. */
int64_t graphopt_kept_bytes(const char* spec, int lengths, int bidirectional, int indexed,
                            int by_vectors) {
  try {
    return graphopt::KeptBytes(spec, lengths, bidirectional, indexed, by_vectors);
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return -1;
  }
}

/* How many directions of recurrences have packed matrices by now. */
int64_t graphopt_count_packs() { return graphopt::CountPacks(); }

/* See layouts.h. */
int64_t graphopt_calls_in_blocks() { return graphopt::calls_in_blocks; }
int64_t graphopt_mended_layouts() { return graphopt::mended_layouts; }

/* How many calls of operators of MXNet were computed here instead. */
int64_t graphopt_mended_calls() { return graphopt::mended_calls; }

/* See recurrence.h. */
int64_t graphopt_rows_beside_products() { return graphopt::rows_beside_products; }

/* Nodes that trees had in all calls by now, of how many something was computed, and nanoseconds of
 * finding levels. */
void graphopt_tree_counts(int64_t* counts) {
  counts[0] = graphopt::tree_nodes;
  counts[1] = graphopt::tree_places;
  counts[2] = graphopt::tree_nanoseconds;
}

/* Memory that one call at a time may have; see executor_operator.h. */
int64_t graphopt_pool_add() { return graphopt::pools.Add(std::make_shared<graphopt::Pool>()); }

void graphopt_pool_remove(int64_t pool) { graphopt::pools.Remove(pool); }

int graphopt_pool_is_taken(int64_t pool) {
  auto found = graphopt::pools.Find(pool);
  return found && found->is_taken;
}

int64_t graphopt_binding_add(int64_t pool, void* executor, int arguments, void** argument,
                             void** gradient, const int* is_users, int outputs, void** output, int states,
                             void** state) {
  return graphopt::AddBinding(pool, executor, arguments, argument, gradient, is_users, outputs,
                              output, states, state);
}

void graphopt_binding_remove(int64_t binding) { graphopt::bindings.Remove(binding); }

/* How many have an executor that was added: its number, and tapes. */
int64_t graphopt_binding_users(int64_t binding) { return graphopt::bindings.Users(binding); }

/* How many have the CachedOp of a handle: the handle, and tapes. */
int64_t graphopt_cached_op_users(void* handle) {
  return handle ? static_cast<std::shared_ptr<void>*>(handle)->use_count() : 0;
}

/* See kept.h; returns 0 on success. */
int graphopt_watch_gradient(const char* op) {
  try {
    graphopt::WatchGradient(op);
    return 0;
  } catch (const std::exception& error) {
    graphopt::python_error = error.what();
    return 1;
  }
}

/* Whether autograd wants a gradient of the array. */
int graphopt_wants_gradient(void* array) {
  return graphopt::WantsGradient(*static_cast<mxnet::NDArray*>(array));
}

/* Whether an array was computed in a graph from which autograd wants nothing any more: its backward is over. */
int graphopt_is_used_up(void* array) {
  const auto& given = *static_cast<mxnet::NDArray*>(array);
  return given.entry_.node != nullptr && !graphopt::WantsGradient(given);
}

const char* graphopt_error() { return graphopt::python_error.c_str(); }
}
#pragma GCC visibility pop
