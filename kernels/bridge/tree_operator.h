/*
 * The operators graphopt_tree and _backward_graphopt_tree.
 *
 * Attributes: `spec`, what messages and updates compute; `indexed`, nodes share rows; `stash`, the last
 * two outputs are what backward needs.
 *
 * Inputs: rows that updates read and rows that messages read, (nodes, columns) each; if `indexed`, these
 * are (count, columns), followed by the number of each node's row, (nodes,) int32; the structure,
 * parents (nodes,) with -1 for roots or edges (count, 2) from source to target, int32; matrices and
 * vectors of messages, then of updates. Outputs: what updates emit, (nodes, columns) each, and the
 * stashes of updates and of messages. Backward reads gradients of the former, the inputs, the outputs;
 * `unused` has a 1 for each output that has no gradient, 0 for the others.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "recurrence_operator.h"
#include "tree.h"

namespace graphopt {

struct LearnedShape {
  std::vector<int64_t> rows, columns, vectors;
  size_t count() const { return rows.size() + vectors.size(); }
};

struct TreeSignature {
  int dtype = 0;
  TreeShape shape;
  LearnedShape message, update;
  bool indexed = false;

  size_t rows() const { return shape.node_rows.size() + shape.edge_rows.size(); }
  size_t structure() const { return rows() + indexed; }
  size_t inputs() const { return structure() + 1 + message.count() + update.count(); }
  size_t results() const { return shape.emitted.size(); }
  size_t outputs() const { return results() + 2; }  // with the stashes
};

std::unordered_map<std::string, std::unique_ptr<TreeSignature>> tree_signatures[2];
std::unordered_map<std::string, std::unique_ptr<TreeProgram>> tree_programs[4];

/* See graphopt/kernels/tree/encode.py. */
std::unique_ptr<TreeSignature> ReadTreeSignature(const int64_t* at) {
  auto made = std::make_unique<TreeSignature>();
  TreeShape& shape = made->shape;
  made->dtype = *at++;
  shape.node_stash = *at++;
  shape.edge_stash = *at++;
  for (auto table : {&shape.node_rows, &shape.edge_rows, &shape.states, &shape.messages,
                     &shape.reduce, &shape.reduced, &shape.kept, &shape.emitted, &made->message.rows, &made->message.columns,
                     &made->message.vectors, &made->update.rows, &made->update.columns,
                     &made->update.vectors})
    for (int64_t n = *at++; n > 0; --n) table->push_back(*at++);
  return made;
}

const TreeSignature& TreeSignatureOf(const NodeAttrs& attrs) {
  const std::string& spec = SpecOf(attrs);
  bool indexed = Flag(attrs, "indexed");
  return FindOrMake(&tree_signatures[indexed], spec, [&] {
    auto made = ReadTreeSignature(Told(spec, kSignature).data());
    made->indexed = indexed;
    return made;
  });
}

const TreeProgram& TreeProgramOf(const NodeAttrs& attrs, Mode mode) {
  const std::string& spec = SpecOf(attrs);
  return FindOrMake(&tree_programs[mode], spec, [&] {
    std::vector<int64_t> numbers = Told(spec, mode);
    const int64_t* at = numbers.data();
    auto made = std::make_unique<TreeProgram>();
    made->message = ReadProgram(&at);
    made->update = ReadProgram(&at);
    return made;
  });
}

uint32_t TreeInputs(const NodeAttrs& attrs) { return TreeSignatureOf(attrs).inputs(); }
uint32_t TreeOutputs(const NodeAttrs& attrs) {
  const TreeSignature& signature = TreeSignatureOf(attrs);
  return Flag(attrs, "stash") ? signature.outputs() : signature.results();
}
uint32_t TreeBackwardInputs(const NodeAttrs& attrs) {
  const TreeSignature& signature = TreeSignatureOf(attrs);
  return signature.results() + signature.inputs() + signature.outputs();
}

bool TreeShapes(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const TreeSignature& signature = TreeSignatureOf(attrs);
  const TreeShape& shape = signature.shape;
  int64_t nodes = -1, edges = -1, rows = -1;
  for (size_t i = 0; i < signature.rows(); ++i)
    if ((*in)[i].ndim() > 0) Agree(attrs, (*in)[i][0], "rows", &rows);
  if (!signature.indexed) nodes = rows;
  if (signature.indexed && (*in)[signature.rows()].ndim() == 1)
    nodes = (*in)[signature.rows()][0];
  const mxnet::TShape structure = (*in)[signature.structure()];
  const bool has_edges = structure.ndim() == 2 && structure[1] == 2;
  if (structure.ndim() > 0 && structure.ndim() != 1 && !has_edges) {
    std::ostringstream told;
    told << "node " << attrs.name << " needs parents of shape (nodes,) or edges of shape (count, 2), "
         << "and was given " << structure;
    Fail(told.str());
  }
  if (structure.ndim() == 1) Agree(attrs, structure[0], "nodes", &nodes);
  edges = has_edges ? structure[0] : nodes;
  size_t at = 0;
  auto settle = [&](const mxnet::TShape& wanted) {
    Settle(attrs, at, wanted, &(*in)[at]);
    ++at;
  };
  for (int64_t width : shape.node_rows) settle(Shaped({rows, width}));
  for (int64_t width : shape.edge_rows) settle(Shaped({rows, width}));
  if (signature.indexed) settle(Shaped({nodes}));
  if (structure.ndim() < 0) return false;
  if (!signature.indexed) rows = nodes;
  settle(has_edges ? Shaped({edges, 2}) : Shaped({nodes}));
  for (const LearnedShape* learned : {&signature.message, &signature.update}) {
    for (size_t i = 0; i < learned->rows.size(); ++i)
      settle(Shaped({learned->rows[i], learned->columns[i]}));
    for (int64_t width : learned->vectors) settle(Shaped({width}));
  }
  at = 0;
  for (int64_t width : shape.emitted) (*out)[at++] = Shaped({nodes, width});
  if (Flag(attrs, "stash")) {
    (*out)[at++] = Shaped({nodes, std::max<int64_t>(shape.node_stash_width(), 1)});
    (*out)[at++] = Shaped({edges, std::max<int64_t>(shape.edge_stash_width(), 1)});
  }
  return nodes >= 0 && edges >= 0;
}

bool TreeTypes(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const TreeSignature& signature = TreeSignatureOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) {
    bool is_structure = i >= signature.rows() && i <= signature.structure();
    int wanted = is_structure ? static_cast<int>(mshadow::kInt32) : signature.dtype;
    if ((*in)[i] == -1) (*in)[i] = wanted;
    if ((*in)[i] != wanted)
      Fail((is_structure ? std::string("the structure")
                         : "input " + std::to_string(i)) +
           " of node " + attrs.name + " has type code " + std::to_string((*in)[i]) + ", not " +
           std::to_string(wanted) + (is_structure ? " (int32)" : ""));
  }
  for (int& type : *out) type = signature.dtype;
  return true;
}

constexpr int64_t kChunkNodes = 256;  // what fits the level-2 cache, backward too
constexpr int64_t kMinChunkNodes = 32;
constexpr int64_t kWantedChunks = 16;

/* Nodes that a chunk should have. A single pair of trees is two chunks, one for each of two threads;
 * in training it is one, for each has a gradient of all weights, to be cleared and summed. */
int64_t ChunkOf(const NodeAttrs& attrs, int64_t nodes) {
  const int64_t chunk = std::min(std::max(nodes / kWantedChunks, kMinChunkNodes), kChunkNodes);
  return Flag(attrs, "stash") ? chunk : std::min(chunk, std::max<int64_t>((nodes + 1) / 2, 1));
}

Levels MakeLevels(const NodeAttrs& attrs, const TBlob& structure, int64_t nodes, int64_t chunk,
                  const int32_t* rows) {
  auto data = static_cast<const int32_t*>(structure.dptr_);
  int64_t count = structure.shape_[0];
  std::vector<int32_t> sources(count), targets;
  if (structure.shape_.ndim() == 2) {
    targets.resize(count);
    for (int64_t e = 0; e < count; ++e) {
      sources[e] = data[2 * e];
      targets[e] = data[2 * e + 1];
      if (targets[e] == -1) targets[e] = -2;  // only a parent may be missing
    }
  } else {
    for (int64_t n = 0; n < count; ++n) sources[n] = n;
  }
  try {
    return FindLevels(sources.data(), targets.empty() ? data : targets.data(), count, nodes, chunk,
                      rows);
  } catch (const std::invalid_argument& error) {
    Fail((attrs.name.empty() ? std::string("tree") : "node " + attrs.name) + ": " + error.what());
  }
}

/* The levels that were found last, for backward and for other layers over the same trees. */
class LastLevels {
 public:
  /* `rows`: of each node, or null; see FindLevels. */
  std::shared_ptr<const Levels> Find(const NodeAttrs& attrs, const TBlob& structure, int64_t nodes,
                                     const int32_t* rows) {
    auto data = static_cast<const int32_t*>(structure.dptr_);
    const int64_t size = structure.shape_.Size(), chunk = ChunkOf(attrs, nodes);
    const int64_t n_rows = rows ? nodes : 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (levels_ && levels_->nodes == nodes && chunk_ == chunk &&
          dimensions_ == structure.shape_.ndim() &&
          std::equal(structure_.begin(), structure_.end(), data, data + size) &&
          std::equal(rows_.begin(), rows_.end(), rows, rows + n_rows))
        return levels_;
    }
    auto made = std::make_shared<const Levels>(MakeLevels(attrs, structure, nodes, chunk, rows));
    std::lock_guard<std::mutex> lock(mutex_);
    levels_ = made;
    chunk_ = chunk;
    dimensions_ = structure.shape_.ndim();
    structure_.assign(data, data + size);
    rows_.assign(rows, rows + n_rows);
    return made;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<const Levels> levels_;
  std::vector<int32_t> structure_, rows_;
  int64_t chunk_ = 0;
  int dimensions_ = 0;
};

LastLevels last_levels;

/* Nodes of all calls, forward and backward; of how many something was computed; and what finding levels
 * took. */
std::atomic<int64_t> tree_nodes{0}, tree_places{0}, tree_nanoseconds{0};

/* What a call needs of a node; `inputs` are those of the forward operator. */
struct TreeArguments {
  const TreeSignature& signature;
  std::shared_ptr<const Levels> levels;
  TreeCall call;
  int64_t rows = 0;

  TreeArguments(const NodeAttrs& attrs, const TBlob* inputs)
      : signature(TreeSignatureOf(attrs)) {
    const TreeShape& shape = signature.shape;
    const TBlob& structure = inputs[signature.structure()];
    rows = signature.rows() ? inputs[0].shape_[0] : structure.shape_[0];
    int64_t nodes = rows;
    if (signature.indexed) {
      const TBlob& index = inputs[signature.rows()];
      nodes = index.shape_[0];
      call.index = static_cast<const int32_t*>(index.dptr_);
      CheckIndex(attrs, nodes);
    }
    const auto start = std::chrono::steady_clock::now();
    levels = last_levels.Find(attrs, structure, nodes, call.index);
    tree_nanoseconds += (std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1);
    call.levels = levels.get();
    tree_nodes += nodes;
    tree_places += levels->places();
    for (size_t j = 0; j < shape.messages.size(); ++j)
      if (shape.reduce[j] == kConcat) CheckArity(attrs, shape.reduced[j] / shape.messages[j]);
    size_t at = 0;
    while (at < shape.node_rows.size()) call.node_rows.push_back(inputs[at++].dptr_);
    while (at < signature.rows()) call.edge_rows.push_back(inputs[at++].dptr_);
    at = signature.structure() + 1;
    double work = 0;
    for (auto [known, learned] : {std::pair(&signature.message, &call.message),
                                  std::pair(&signature.update, &call.update)}) {
      for (size_t i = 0; i < known->rows.size(); ++i) {
        learned->matrices.push_back(inputs[at++].dptr_);
        work += static_cast<double>(known->rows[i]) * known->columns[i];
      }
      for (size_t i = 0; i < known->vectors.size(); ++i)
        learned->vectors.push_back(inputs[at++].dptr_);
    }
    for (int64_t width : shape.emitted) work += 20.0 * width;
    call.threads = Threads(0.02 * work * nodes, levels->chunks.size() - 1);
  }

  void CheckIndex(const NodeAttrs& attrs, int64_t nodes) const {
    for (int64_t n = 0; n < nodes; ++n)
      if (call.index[n] < 0 || call.index[n] >= rows)
        Fail((attrs.name.empty() ? std::string("tree") : "node " + attrs.name) + ": node " +
             std::to_string(n) + " has row " + std::to_string(call.index[n]) + " of " +
             std::to_string(rows));
  }

  void CheckArity(const NodeAttrs& attrs, int64_t most) const {
    for (int64_t p = 0; p < levels->places(); ++p)
      if (levels->edges[p + 1] - levels->edges[p] > most)
        Fail((attrs.name.empty() ? std::string("tree") : "node " + attrs.name) + ": node " +
             std::to_string(levels->order[p]) + " has " +
             std::to_string(levels->edges[p + 1] - levels->edges[p]) + " children; at most " +
             std::to_string(most) + " fit");
  }
};

/* Gradients of rows that nodes share: first one for each node, then their sums. */
class SharedRows {
 public:
  explicit SharedRows(const TreeArguments& arguments) : arguments_(arguments) {
    const Levels& levels = *arguments.levels;
    if (!arguments.call.index) return;
    index_.assign(arguments.call.index, arguments.call.index + levels.nodes);
    for (const CopyOf& copy : levels.copies) index_[copy.node] = -1;  // in the sum already
  }

  /* Where the gradients of nodes go, if those of rows go to `sums`. */
  void* Add(void* sums, int64_t width) {
    if (!arguments_.signature.indexed || !sums) return sums;
    int64_t size = arguments_.levels->nodes * width * ItemSize(arguments_.signature.dtype);
    memory_.emplace_back(new char[size]);
    sums_.push_back({memory_.back().get(), sums, width});
    return memory_.back().get();
  }

  void Finish() {
    SumRows(sums_, index_.data(), arguments_.levels->nodes, arguments_.rows,
            arguments_.signature.dtype == mshadow::kFloat64, arguments_.call.threads);
  }

 private:
  const TreeArguments& arguments_;
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<RowSum> sums_;
  std::vector<int32_t> index_;  // of each node its row, -1 if it has no gradient of its own
};

void TreeForward(const NodeAttrs& attrs, const mxnet::OpContext&,
                 const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                 const std::vector<TBlob>& outputs) {
  bool stash = Flag(attrs, "stash");
  const TreeProgram& program = TreeProgramOf(attrs, stash ? kTraining : kInference);
  TreeArguments arguments(attrs, inputs.data());
  TreeCall& call = arguments.call;
  Results results;
  const size_t n_results = arguments.signature.results();
  for (size_t k = 0; k < n_results; ++k)
    call.emitted.push_back(results.Add(outputs[k], requests[k]));
  if (stash) {
    for (size_t k : {n_results, n_results + 1}) Enlarge(outputs[k]);
    call.node_stash = outputs[n_results].dptr_;
    call.edge_stash = outputs[n_results + 1].dptr_;
  }
  RunTree(program, arguments.signature.shape, call);
  results.Finish();
}

/* Whether an output has no gradient: what backward reads in its place is something else. */
bool IsUnused(const NodeAttrs& attrs, size_t output) {
  return attrs.dict.at("unused")[output] == '1';
}

void TreeBackward(const NodeAttrs& attrs, const mxnet::OpContext&,
                  const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                  const std::vector<TBlob>& outputs) {
  const TreeProgram& program = TreeProgramOf(attrs, kBackwardPass);
  const TreeSignature& known = TreeSignatureOf(attrs);
  const TBlob* forward = inputs.data() + known.results();
  const TBlob* made = forward + known.inputs();
  TreeArguments arguments(attrs, forward);
  TreeCall& call = arguments.call;
  Results results;
  size_t at = 0;
  auto gradient = [&] {
    void* found = results.Add(outputs[at], requests[at]);
    ++at;
    return found;
  };
  for (size_t k = 0; k < known.results(); ++k) {
    call.heads.push_back(IsUnused(attrs, k) ? nullptr : inputs[k].dptr_);
    call.emitted.push_back(made[k].dptr_);
  }
  call.node_stash = made[known.results()].dptr_;
  call.edge_stash = made[known.results() + 1].dptr_;
  SharedRows shared(arguments);
  for (int64_t width : known.shape.node_rows)
    call.node_row_gradients.push_back(shared.Add(gradient(), width));
  for (int64_t width : known.shape.edge_rows)
    call.edge_row_gradients.push_back(shared.Add(gradient(), width));
  for (; at <= known.structure(); ++at)
    if (requests[at] == mxnet::kWriteTo)
      std::memset(outputs[at].dptr_, 0, outputs[at].shape_.Size() * sizeof(int32_t));
  for (auto [shape, learned] : {std::pair(&known.message, &call.message),
                                std::pair(&known.update, &call.update)}) {
    for (size_t i = 0; i < shape->rows.size(); ++i) learned->matrix_gradients.push_back(gradient());
    for (size_t i = 0; i < shape->vectors.size(); ++i)
      learned->vector_gradients.push_back(gradient());
  }
  RunTree(program, known.shape, call);
  shared.Finish();
  results.Finish();
}

/* Whether a gradient is that of an output that nothing depends on, for which MXNet makes zeros. */
bool IsZero(const NodeEntry& gradient) {
  static const nnvm::Op* made[] = {nnvm::Op::Get("_zeros_without_dtype"), nnvm::Op::Get("_zeros"),
                                   nnvm::Op::Get("zeros_like")};
  // MXNet asks with no nodes, too, to learn which input is which.
  return gradient.node && std::count(std::begin(made), std::end(made), View(gradient.node).op);
}

std::vector<NodeEntry> TreeGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  const TreeSignature& signature = TreeSignatureOf(attrs);
  std::vector<std::pair<std::string, std::string>> own;
  own.emplace_back("spec", SpecOf(attrs));
  if (signature.indexed) own.emplace_back("indexed", "True");
  own.emplace_back("stash", "True");
  std::string unused;
  for (size_t k = 0; k < signature.results(); ++k) unused += IsZero(heads[k]) ? '1' : '0';
  ObjectPtr forward = node;
  if (!Flag(attrs, "stash")) {
    // Made for inference, which keeps nothing: compute it again.
    forward = MakeNode("graphopt_tree", attrs.name + "_again", own);
    View(forward).inputs = View(node).inputs;
  }
  own.emplace_back("unused", unused);
  ObjectPtr made = MakeNode("_backward_graphopt_tree", attrs.name + "_backward", own);
  LegacyNode& backward = View(made);
  backward.control_deps.push_back(node);
  // In place of zeros, which then are not made, what has the same shape and is there.
  for (uint32_t k = 0; k < signature.results(); ++k)
    backward.inputs.push_back(unused[k] == '1' ? NodeEntry(forward, k, 0) : heads[k]);
  for (const NodeEntry& entry : View(node).inputs) backward.inputs.push_back(entry);
  for (uint32_t i = 0; i < signature.outputs(); ++i) backward.inputs.emplace_back(forward, i, 0);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < signature.inputs(); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

}  // namespace graphopt
