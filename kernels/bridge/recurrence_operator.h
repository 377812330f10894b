/*
 * The operators graphopt_recurrence and _backward_graphopt_recurrence.
 *
 * Attributes: `spec`, what a step computes; `reverse`, from the last step to the first; `lengths`, the
 * last input has the number of steps of each sequence; `batch_major`, sequences are (batch, steps,
 * columns), not (steps, batch, columns); `zero_states`, the states are zeros at first and no inputs;
 * `stash`, the last output is what backward needs.
 *
 * Inputs: sequences, states (batch, columns), matrices, vectors, lengths. Outputs: emitted sequences,
 * final states, the stash. Backward reads gradients of the first two, then the inputs, the emitted
 * sequences if it needs them, and the stash.
 */
#pragma once

#include <cmath>
#include <cstring>
#include <memory>

#include "fused.h"
#include "recurrence.h"

namespace graphopt {

/* What Python tells of a spec: modes of the describe callback, plus 4 with lengths. */
enum Mode { kSignature = 0, kInference = 1, kTraining = 2, kBackwardPass = 3, kWithLengths = 4 };

struct Signature {
  int dtype = 0;
  std::vector<int64_t> sequences, states, matrix_rows, matrix_columns, vectors, emitted;
  int64_t stash_width = 0;
  bool reads_outputs = false, has_lengths = false, zero_states = false;

  size_t given_states() const { return zero_states ? 0 : states.size(); }

  size_t inputs() const {
    return sequences.size() + given_states() + matrix_rows.size() + vectors.size() + has_lengths;
  }
  size_t results() const { return emitted.size() + states.size(); }
  size_t backward_inputs() const {
    return results() + inputs() + (reads_outputs ? emitted.size() : 0) + 1;
  }
};

std::mutex recurrences_mutex;
std::unordered_map<std::string, std::unique_ptr<Signature>> signatures[4];
std::unordered_map<std::string, std::unique_ptr<Program>> programs[8];

std::vector<int64_t> Told(const std::string& spec, int mode) {
  std::vector<int64_t> numbers(1 << 16);
  int64_t count = describe(spec.c_str(), mode, numbers.data(), numbers.size());
  if (count <= 0) Fail(python_error);
  numbers.resize(count);
  return numbers;
}

const std::string& SpecOf(const NodeAttrs& attrs) {
  auto found = attrs.dict.find("spec");
  if (found == attrs.dict.end()) Fail("node " + attrs.name + " has no attribute 'spec'");
  return found->second;
}

/* Finds what Python told before, or asks; not under the lock, as Python may run other threads. */
template <typename Kept, typename Make>
const Kept& FindOrMake(std::unordered_map<std::string, std::unique_ptr<Kept>>* known,
                       const std::string& spec, const Make& make) {
  {
    std::lock_guard<std::mutex> lock(recurrences_mutex);
    auto found = known->find(spec);
    if (found != known->end()) return *found->second;
  }
  auto made = make();
  std::lock_guard<std::mutex> lock(recurrences_mutex);
  return *known->emplace(spec, std::move(made)).first->second;
}

const Signature& SignatureOf(const NodeAttrs& attrs) {
  bool lengths = Flag(attrs, "lengths"), zero_states = Flag(attrs, "zero_states");
  const std::string& spec = SpecOf(attrs);
  return FindOrMake(&signatures[lengths + 2 * zero_states], spec, [&] {
    std::vector<int64_t> numbers = Told(spec, kSignature + (lengths ? kWithLengths : 0));
    const int64_t* at = numbers.data();
    auto made = std::make_unique<Signature>();
    made->has_lengths = lengths;
    made->zero_states = zero_states;
    made->dtype = *at++;
    made->stash_width = *at++;
    made->reads_outputs = *at++;
    for (auto table : {&made->sequences, &made->states, &made->matrix_rows, &made->matrix_columns,
                       &made->vectors, &made->emitted})
      for (int64_t n = *at++; n > 0; --n) table->push_back(*at++);
    return made;
  });
}

const Program& ProgramOf(const NodeAttrs& attrs, Mode mode) {
  int key = mode + (Flag(attrs, "lengths") ? kWithLengths : 0);
  const std::string& spec = SpecOf(attrs);
  return FindOrMake(&programs[key], spec, [&] {
    std::vector<int64_t> numbers = Told(spec, key);
    return std::make_unique<Program>(ReadProgram(numbers.data()));
  });
}

uint32_t RecurrenceInputs(const NodeAttrs& attrs) { return SignatureOf(attrs).inputs(); }
uint32_t RecurrenceOutputs(const NodeAttrs& attrs) {
  return SignatureOf(attrs).results() + Flag(attrs, "stash");
}
uint32_t RecurrenceBackwardInputs(const NodeAttrs& attrs) {
  return SignatureOf(attrs).backward_inputs();
}

/* Steps and batch size of sequences, -1 where not known. */
struct Extents {
  int64_t steps = -1, batch = -1;
};

void Agree(const NodeAttrs& attrs, int64_t found, const char* what, int64_t* known) {
  if (found < 0) return;
  if (*known >= 0 && *known != found)
    Fail("inputs of node " + attrs.name + " have " + std::to_string(*known) + " and " +
         std::to_string(found) + " " + what);
  *known = found;
}

mxnet::TShape Shaped(std::initializer_list<int64_t> extents) {
  mxnet::TShape shape(static_cast<int>(extents.size()), 0);
  int d = 0;
  for (int64_t extent : extents) shape[d++] = extent;
  return shape;
}

mxnet::TShape SequenceShape(const NodeAttrs& attrs, const Extents& extents, int64_t width) {
  return Flag(attrs, "batch_major") ? Shaped({extents.batch, extents.steps, width})
                                    : Shaped({extents.steps, extents.batch, width});
}

void Settle(const NodeAttrs& attrs, size_t number, const mxnet::TShape& shape,
            mxnet::TShape* known) {
  if (known->ndim() < 0 || !mxnet::shape_is_known(*known)) {
    *known = shape;
  } else if (*known != shape && mxnet::shape_is_known(shape)) {
    std::ostringstream told;
    told << "input " << number << " of node " << attrs.name << " has shape " << *known << ", not "
         << shape;
    Fail(told.str());
  }
}

bool RecurrenceShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const Signature& signature = SignatureOf(attrs);
  bool batch_major = Flag(attrs, "batch_major");
  Extents extents;
  size_t at = 0;
  for (size_t i = 0; i < signature.sequences.size(); ++i, ++at) {
    const mxnet::TShape& shape = (*in)[at];
    if (shape.ndim() < 0) continue;
    if (shape.ndim() != 3)
      Fail("input " + std::to_string(at) + " of node " + attrs.name + " has " +
           std::to_string(shape.ndim()) + " axes, not 3");
    Agree(attrs, shape[batch_major ? 1 : 0], "steps", &extents.steps);
    Agree(attrs, shape[batch_major ? 0 : 1], "sequences", &extents.batch);
  }
  for (size_t i = 0; i < signature.given_states(); ++i)
    if ((*in)[at + i].ndim() == 2) Agree(attrs, (*in)[at + i][0], "sequences", &extents.batch);
  at = 0;
  for (int64_t width : signature.sequences) {
    Settle(attrs, at, SequenceShape(attrs, extents, width), &(*in)[at]);
    ++at;
  }
  for (size_t i = 0; i < signature.given_states(); ++i, ++at)
    Settle(attrs, at, Shaped({extents.batch, signature.states[i]}), &(*in)[at]);
  for (size_t i = 0; i < signature.matrix_rows.size(); ++i, ++at)
    Settle(attrs, at, Shaped({signature.matrix_rows[i], signature.matrix_columns[i]}), &(*in)[at]);
  for (int64_t width : signature.vectors) {
    Settle(attrs, at, Shaped({width}), &(*in)[at]);
    ++at;
  }
  if (signature.has_lengths) Settle(attrs, at, Shaped({extents.batch}), &(*in)[at]);
  at = 0;
  for (int64_t width : signature.emitted) (*out)[at++] = SequenceShape(attrs, extents, width);
  for (int64_t width : signature.states) (*out)[at++] = Shaped({extents.batch, width});
  if (Flag(attrs, "stash"))
    (*out)[at] = Shaped({extents.steps, extents.batch, std::max<int64_t>(signature.stash_width, 1)});
  return extents.steps >= 0 && extents.batch >= 0;
}

bool RecurrenceType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const Signature& signature = SignatureOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) {
    bool is_lengths = signature.has_lengths && i + 1 == in->size();
    if ((*in)[i] == -1) (*in)[i] = is_lengths ? mshadow::kInt32 : signature.dtype;
    if (!is_lengths && (*in)[i] != signature.dtype)
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has type code " +
           std::to_string((*in)[i]) + ", not " + std::to_string(signature.dtype));
  }
  for (int& type : *out) type = signature.dtype;
  return true;
}

template <typename T>
void ReadLengths(const TBlob& blob, const std::string& node, int64_t steps,
                 std::vector<int64_t>* lengths) {
  auto data = static_cast<const T*>(blob.dptr_);
  for (size_t i = 0; i < lengths->size(); ++i) {
    double length = static_cast<double>(data[i]);
    if (!(length >= 0 && length <= steps) || length != std::floor(length))
      Fail((node.empty() ? std::string("recurrence") : "node " + node) + ": sequence " + std::to_string(i) + " has length " +
           std::to_string(length) + "; lengths are whole numbers from 0 to the number of steps, " +
           std::to_string(steps));
    (*lengths)[i] = static_cast<int64_t>(length);
  }
}

std::vector<int64_t> Lengths(const TBlob& blob, const std::string& node, const Extents& extents) {
  std::vector<int64_t> lengths(extents.batch);
  switch (blob.type_flag_) {
    case mshadow::kFloat32: ReadLengths<float>(blob, node, extents.steps, &lengths); break;
    case mshadow::kFloat64: ReadLengths<double>(blob, node, extents.steps, &lengths); break;
    case mshadow::kInt32: ReadLengths<int32_t>(blob, node, extents.steps, &lengths); break;
    case mshadow::kInt64: ReadLengths<int64_t>(blob, node, extents.steps, &lengths); break;
    default: Fail("node " + node + ": lengths are float32, float64, int32 or int64");
  }
  return lengths;
}

/* Memory for an output that is not simply written. */
class Results {
 public:
  /* Where to write: null if nobody wants it. */
  void* Add(const TBlob& blob, OpReqType request) {
    if (request == mxnet::kNullOp) return nullptr;
    if (request != mxnet::kAddTo) return blob.dptr_;
    added_.push_back({&blob, std::vector<char>(blob.shape_.Size() * ItemSize(blob.type_flag_))});
    return added_.back().second.data();
  }

  /* Adds what had to be added. */
  void Finish() {
    for (auto& [blob, memory] : added_) {
      auto to = static_cast<char*>(blob->dptr_);
      for (int64_t i = 0, n = blob->shape_.Size(); i < n; ++i)
        Write(to, blob->type_flag_, i,
              Read(to, blob->type_flag_, i) + Read(memory.data(), blob->type_flag_, i));
    }
  }

 private:
  std::vector<std::pair<const TBlob*, std::vector<char>>> added_;
};

/* Places of inputs among a node's inputs. */
struct Places {
  explicit Places(const Signature& s)
      : states(s.sequences.size()),
        matrices(states + s.given_states()),
        vectors(matrices + s.matrix_rows.size()),
        lengths(vectors + s.vectors.size()) {}
  size_t states, matrices, vectors, lengths;
};

Extents ExtentsOf(const NodeAttrs& attrs, const TBlob& sequence) {
  bool batch_major = Flag(attrs, "batch_major");
  return {sequence.shape_[batch_major ? 1 : 0], sequence.shape_[batch_major ? 0 : 1]};
}

SequenceArray AsSequence(const NodeAttrs& attrs, void* data, const Extents& extents, int64_t width) {
  bool batch_major = Flag(attrs, "batch_major");
  return {data, batch_major ? width : extents.batch * width,
          batch_major ? extents.steps * width : width};
}

RecurrenceCall MakeCall(const NodeAttrs& attrs, const Signature& signature, const Extents& extents,
                        const TBlob* inputs) {
  RecurrenceCall call;
  Places places(signature);
  call.steps = extents.steps;
  call.batch = extents.batch;
  call.reverse = Flag(attrs, "reverse");
  for (size_t i = 0; i < signature.sequences.size(); ++i)
    call.sequences.push_back(AsSequence(attrs, inputs[i].dptr_, extents, signature.sequences[i]));
  double work = 0;
  for (size_t i = 0; i < signature.matrix_rows.size(); ++i) {
    call.matrices.push_back(inputs[places.matrices + i].dptr_);
    work += static_cast<double>(signature.matrix_rows[i]) * signature.matrix_columns[i];
  }
  for (size_t i = 0; i < signature.vectors.size(); ++i)
    call.vectors.push_back(inputs[places.vectors + i].dptr_);
  for (int64_t width : signature.states) work += 20.0 * width;
  call.threads = Threads(0.02 * work * extents.batch * extents.steps, extents.batch);
  return call;
}

void RecurrenceForward(const NodeAttrs& attrs, const mxnet::OpContext&,
                       const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                       const std::vector<TBlob>& outputs) {
  const Signature& signature = SignatureOf(attrs);
  bool stash = Flag(attrs, "stash");
  const Program& program = ProgramOf(attrs, stash ? kTraining : kInference);
  Extents extents = ExtentsOf(attrs, inputs[0]);
  RecurrenceCall call = MakeCall(attrs, signature, extents, inputs.data());
  Places places(signature);
  std::vector<int64_t> lengths;
  if (signature.has_lengths) {
    lengths = Lengths(inputs[places.lengths], attrs.name, extents);
    call.lengths = lengths.data();
  }
  Results results;
  // A state may live in an emitted sequence that nobody reads.
  std::vector<std::vector<char>> unread;
  size_t at = 0;
  for (int64_t width : signature.emitted) {
    void* data = results.Add(outputs[at], requests[at]);
    if (!data) {
      unread.emplace_back(outputs[at].shape_.Size() * ItemSize(signature.dtype));
      data = unread.back().data();
    }
    call.sequences.push_back(AsSequence(attrs, data, extents, width));
    ++at;
  }
  for (size_t i = 0; i < signature.states.size(); ++i, ++at) {
    call.first.push_back(signature.zero_states ? nullptr : inputs[places.states + i].dptr_);
    call.last.push_back(results.Add(outputs[at], requests[at]));
  }
  if (stash) call.stash = outputs[at].dptr_;
  RunRecurrence(program, call);
  results.Finish();
}

void RecurrenceBackward(const NodeAttrs& attrs, const mxnet::OpContext&,
                        const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                        const std::vector<TBlob>& outputs) {
  const Signature& signature = SignatureOf(attrs);
  const Program& program = ProgramOf(attrs, kBackwardPass);
  size_t n_emitted = signature.emitted.size(), n_states = signature.states.size();
  const TBlob* heads = inputs.data();
  const TBlob* forward = heads + signature.results();
  const TBlob* emitted = forward + signature.inputs();
  Extents extents = ExtentsOf(attrs, forward[0]);
  RecurrenceCall call = MakeCall(attrs, signature, extents, forward);
  Places places(signature);
  std::vector<int64_t> lengths;
  if (signature.has_lengths) {
    lengths = Lengths(forward[places.lengths], attrs.name, extents);
    call.lengths = lengths.data();
  }
  Results results;
  auto gradient = [&](size_t i) { return results.Add(outputs[i], requests[i]); };
  for (size_t k = 0; k < n_emitted; ++k)
    call.sequences.push_back(AsSequence(attrs, signature.reads_outputs ? emitted[k].dptr_ : nullptr,
                                        extents, signature.emitted[k]));
  for (size_t k = 0; k < n_emitted; ++k)
    call.sequences.push_back(AsSequence(attrs, heads[k].dptr_, extents, signature.emitted[k]));
  for (size_t i = 0; i < signature.sequences.size(); ++i)
    call.sequences.push_back(AsSequence(attrs, gradient(i), extents, signature.sequences[i]));
  for (size_t i = 0; i < n_states; ++i) {
    call.initial.push_back(signature.zero_states ? nullptr : forward[places.states + i].dptr_);
    call.first.push_back(heads[n_emitted + i].dptr_);
    call.last.push_back(signature.zero_states ? nullptr : gradient(places.states + i));
  }
  for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
    call.matrix_gradients.push_back(gradient(places.matrices + i));
  for (size_t i = 0; i < signature.vectors.size(); ++i)
    call.vector_gradients.push_back(gradient(places.vectors + i));
  if (signature.has_lengths && requests[places.lengths] == mxnet::kWriteTo) {
    const TBlob& blob = outputs[places.lengths];
    std::memset(blob.dptr_, 0, blob.shape_.Size() * ItemSize(blob.type_flag_));
  }
  call.stash = inputs.back().dptr_;
  RunRecurrence(program, call);
  results.Finish();
}

std::vector<NodeEntry> RecurrenceGradient(const ObjectPtr& node,
                                          const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  const Signature& signature = SignatureOf(attrs);
  std::vector<std::pair<std::string, std::string>> own;
  for (const char* key : {"spec", "reverse", "lengths", "batch_major", "zero_states"}) {
    auto found = attrs.dict.find(key);
    if (found != attrs.dict.end()) own.emplace_back(key, found->second);
  }
  own.emplace_back("stash", "True");
  ObjectPtr forward = node;
  if (!Flag(attrs, "stash")) {
    // Made for inference, which keeps nothing: compute it again.
    forward = MakeNode("graphopt_recurrence", attrs.name + "_again", own);
    View(forward).inputs = View(node).inputs;
  }
  ObjectPtr made = MakeNode("_backward_graphopt_recurrence", attrs.name + "_backward", own);
  LegacyNode& backward = View(made);
  backward.control_deps.push_back(node);
  for (size_t i = 0; i < signature.results(); ++i) backward.inputs.push_back(heads[i]);
  for (const NodeEntry& entry : View(node).inputs) backward.inputs.push_back(entry);
  if (signature.reads_outputs)
    for (uint32_t k = 0; k < signature.emitted.size(); ++k)
      backward.inputs.emplace_back(forward, k, 0);
  backward.inputs.emplace_back(forward, static_cast<uint32_t>(signature.results()), 0);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < signature.inputs(); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

}  // namespace graphopt
