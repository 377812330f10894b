/*
 * The operators graphopt_recurrence and _backward_graphopt_recurrence.
 *
 * Attributes: `spec`, what a step computes; `reverse`, from the last step to the first; `lengths`, the
 * last input has the number of steps of each sequence; `batch_major`, sequences are (batch, steps,
 * columns), not (steps, batch, columns); `bidirectional`, the same step with two sets of states,
 * matrices and vectors, the second from the last step to the first: emitted columns of the two lie side
 * by side; `zero_states`, the states are zeros at first and no inputs; `flat`, there is one step only,
 * and sequences are (batch, columns); `indexed`, the first sequence is a table (rows, columns), whose
 * rows steps read by number (see lookup.h);
 * `stash`, there is an output with what backward needs.
 *
 * Inputs: sequences, states (batch, columns), matrices, vectors, numbers of rows (steps, batch) or
 * (batch, steps), lengths; of the three in the middle first all of one direction, then of the other.
 * Numbers outside of the table are clipped, as MXNet's Embedding does it. Outputs: emitted sequences,
 * final states, the stash,
 * and what is computed in, so that MXNet's planner gives it memory that others have before and after.
 * Backward reads gradients of the first two, then the inputs, the emitted sequences if it needs them,
 * and the stash; its last output is what it computes in.
 */
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "fused.h"
#include "lookup.h"
#include "recurrence.h"

namespace graphopt {

/* What Python tells of a spec: modes of the describe callback, plus 4 with lengths, plus 8 if the first
 * sequence is read by number. */
enum Mode {
  kSignature = 0,
  kInference = 1,
  kTraining = 2,
  kBackwardPass = 3,
  kWithLengths = 4,
  kIndexed = 8
};

struct Signature {
  int dtype = 0;
  std::vector<int64_t> sequences, states, matrix_rows, matrix_columns, vectors, emitted;
  int64_t stash_width = 0;
  bool reads_outputs = false, has_lengths = false, zero_states = false, is_indexed = false;
  Projection projection;  // if the first sequence is read by number
  size_t directions = 1;

  size_t given_states() const { return zero_states ? 0 : states.size(); }

  size_t inputs() const {
    return sequences.size() +
           directions * (given_states() + matrix_rows.size() + vectors.size()) + is_indexed +
           has_lengths;
  }
  /* The first input that may have another dtype: numbers of rows, lengths. */
  size_t integers() const { return inputs() - has_lengths - is_indexed; }
  size_t results() const { return emitted.size() + directions * states.size(); }
  size_t backward_inputs() const {
    return results() + inputs() + (reads_outputs ? emitted.size() : 0) + 1;
  }
};

std::mutex recurrences_mutex;
std::unordered_map<std::string, std::unique_ptr<Signature>> signatures[16];
std::unordered_map<std::string, std::unique_ptr<Program>> programs[16];

std::vector<int64_t> Told(const std::string& spec, int mode) {
  std::vector<int64_t> numbers(1 << 16);
  int64_t count = describe(spec.c_str(), mode, numbers.data(), numbers.size());
  if (count <= 0) Fail(python_error);
  numbers.resize(count);
  return numbers;
}

const std::string& SpecOf(const NodeAttrs& attrs) { return AttributeOf(attrs, "spec"); }

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

const Signature& SignatureBy(const std::string& spec, bool lengths, bool zero_states,
                             bool bidirectional, bool indexed = false) {
  const int key = lengths + 2 * zero_states + 4 * bidirectional + 8 * indexed;
  return FindOrMake(&signatures[key], spec, [&] {
    std::vector<int64_t> numbers =
        Told(spec, kSignature + (lengths ? kWithLengths : 0) + (indexed ? kIndexed : 0));
    const int64_t* at = numbers.data();
    auto made = std::make_unique<Signature>();
    made->has_lengths = lengths;
    made->zero_states = zero_states;
    made->directions = bidirectional ? 2 : 1;
    made->is_indexed = indexed;
    made->dtype = *at++;
    made->stash_width = *at++;
    made->reads_outputs = *at++;
    for (auto table : {&made->sequences, &made->states, &made->matrix_rows, &made->matrix_columns,
                       &made->vectors, &made->emitted})
      for (int64_t n = *at++; n > 0; --n) table->push_back(*at++);
    if (indexed) made->projection = ReadProjection(&at);
    return made;
  });
}

const Signature& SignatureOf(const NodeAttrs& attrs) {
  return SignatureBy(SpecOf(attrs), Flag(attrs, "lengths"), Flag(attrs, "zero_states"),
                     Flag(attrs, "bidirectional"), Flag(attrs, "indexed"));
}

const Program& ProgramBy(const std::string& spec, int key) {
  return FindOrMake(&programs[key], spec, [&] {
    std::vector<int64_t> numbers = Told(spec, key);
    const int64_t* at = numbers.data();
    return std::make_unique<Program>(ReadProgram(&at));
  });
}

const Program& ProgramOf(const NodeAttrs& attrs, Mode mode) {
  return ProgramBy(SpecOf(attrs), mode + (Flag(attrs, "lengths") ? kWithLengths : 0) +
                                      (Flag(attrs, "indexed") ? kIndexed : 0));
}

/* Pairs of an input and an output that MXNet may give one array: in inference a layer's output may lie
 * where its input was. With lengths rows are walked in another order than they lie. */
std::vector<std::pair<int, int>> RecurrencePairs(const NodeAttrs& attrs) {
  const Signature& signature = SignatureOf(attrs);
  if (Flag(attrs, "stash") || signature.directions > 1 || signature.has_lengths ||
      signature.is_indexed || signature.sequences.empty() || signature.emitted.empty())
    return {};
  const int64_t emitted = signature.sequences.size();
  const bool fits = signature.sequences[0] == signature.emitted[0] &&
                    ReadsFirst(ProgramOf(attrs, kInference), 0, emitted);
  return fits ? std::vector<std::pair<int, int>>{{0, 0}} : std::vector<std::pair<int, int>>{};
}

uint32_t RecurrenceInputs(const NodeAttrs& attrs) { return SignatureOf(attrs).inputs(); }
uint32_t RecurrenceOutputs(const NodeAttrs& attrs) {
  return SignatureOf(attrs).results() + Flag(attrs, "stash") + 1;
}
uint32_t RecurrenceBackwardInputs(const NodeAttrs& attrs) {
  return SignatureOf(attrs).backward_inputs();
}
uint32_t RecurrenceBackwardOutputs(const NodeAttrs& attrs) {
  return SignatureOf(attrs).inputs() + 1;
}

/* Steps and batch size of sequences, and rows of a table that is read by number, -1 where not known. */
struct Extents {
  int64_t steps = -1, batch = -1, table_rows = -1;
};

void Agree(const NodeAttrs& attrs, int64_t found, const char* what, int64_t* known) {
  if (found < 0) return;
  if (*known >= 0 && *known != found)
    Fail("inputs of node " + attrs.name + " have " + std::to_string(*known) + " and " +
         std::to_string(found) + " " + what);
  *known = found;
}

mxnet::TShape SequenceShape(const NodeAttrs& attrs, const Extents& extents, int64_t width) {
  if (Flag(attrs, "flat")) return Shaped({extents.batch, width});
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

int ThreadsOf(const Signature& signature, const Extents& extents) {
  double work = 0;
  for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
    work += static_cast<double>(signature.matrix_rows[i]) * signature.matrix_columns[i];
  for (int64_t width : signature.states) work += 20.0 * width;
  return Threads(0.02 * work * extents.batch * extents.steps, extents.batch);
}

/* What a node computes in, if it reads a table by number: what recurrences compute in, the projected
 * table, and, backward, its gradients step by step. Each begins where a line does. */
struct TableScratch {
  int64_t walk, projected, gradients, bytes;  // where they begin, and where they end

  TableScratch(const Signature& signature, const Extents& extents, int64_t walk_bytes,
               bool is_backward)
      : walk(0), projected(Align(walk_bytes)) {
    const int64_t row = signature.projection.width * ItemSize(signature.dtype);
    const int64_t reads = extents.steps * extents.batch;
    gradients = projected + Align(std::min(reads, extents.table_rows) * row);
    bytes = gradients + (is_backward ? Align(reads * row) : 0) + kLineBytes;
  }
};

bool IsKnown(const Signature& signature, const Extents& extents) {
  return extents.steps >= 0 && extents.batch >= 0 &&
         (extents.table_rows >= 0 || !signature.is_indexed);
}

/* Of what a node computes in: elements, -1 as long as steps or batch are not known. `is_packed`: its
 * matrices come packed. */
mxnet::TShape ScratchShape(const NodeAttrs& attrs, Mode mode, const Extents& extents,
                           bool is_packed = false) {
  if (!IsKnown(SignatureOf(attrs), extents)) return Shaped({-1});
  static const int64_t some = 0;
  static const int32_t row = 0;
  const Signature& signature = SignatureOf(attrs);
  RecurrenceCall call;
  call.steps = extents.steps;
  call.batch = extents.batch;
  call.lengths = signature.has_lengths ? &some : nullptr;
  call.index = signature.is_indexed ? &row : nullptr;
  call.packed = is_packed ? &some : nullptr;
  call.threads = ThreadsOf(signature, extents);
  const int64_t item = ItemSize(signature.dtype);
  int64_t bytes = ScratchBytes(ProgramOf(attrs, mode), call);
  if (signature.is_indexed)
    bytes = TableScratch(signature, extents, bytes, mode == kBackwardPass).bytes;
  return Shaped({(bytes + item - 1) / item});
}

Mode ForwardMode(const NodeAttrs& attrs) { return Flag(attrs, "stash") ? kTraining : kInference; }

void CheckAxes(const NodeAttrs& attrs, size_t input, const mxnet::TShape& shape, int wanted) {
  if (shape.ndim() != wanted)
    Fail("input " + std::to_string(input) + " of node " + attrs.name + " has " +
         std::to_string(shape.ndim()) + " axes, not " + std::to_string(wanted));
}

/* Settles the shapes of a forward node's inputs and results; returns what they have in common. */
Extents SettleShapes(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const Signature& signature = SignatureOf(attrs);
  bool batch_major = Flag(attrs, "batch_major"), flat = Flag(attrs, "flat");
  Extents extents;
  if (flat) extents.steps = 1;
  size_t at = 0;
  for (size_t i = 0; i < signature.sequences.size(); ++i, ++at) {
    const mxnet::TShape& shape = (*in)[at];
    const bool is_table = i == 0 && signature.is_indexed;
    if (shape.ndim() < 0) continue;
    CheckAxes(attrs, at, shape, flat || is_table ? 2 : 3);
    if (is_table) {
      extents.table_rows = shape[0];
      continue;
    }
    if (flat) {
      Agree(attrs, shape[0], "rows", &extents.batch);
      continue;
    }
    Agree(attrs, shape[batch_major ? 1 : 0], "steps", &extents.steps);
    Agree(attrs, shape[batch_major ? 0 : 1], "sequences", &extents.batch);
  }
  if (signature.is_indexed) {
    const mxnet::TShape& shape = (*in)[signature.integers()];
    if (shape.ndim() >= 0) {
      CheckAxes(attrs, signature.integers(), shape, 2);
      Agree(attrs, shape[batch_major ? 1 : 0], "steps", &extents.steps);
      Agree(attrs, shape[batch_major ? 0 : 1], "sequences", &extents.batch);
    }
  }
  const size_t directions = signature.directions, n_states = signature.given_states();
  for (size_t i = 0; i < directions * n_states; ++i)
    if ((*in)[at + i].ndim() == 2) Agree(attrs, (*in)[at + i][0], "sequences", &extents.batch);
  at = 0;
  auto settle = [&](const mxnet::TShape& shape) {
    Settle(attrs, at, shape, &(*in)[at]);
    ++at;
  };
  for (int64_t width : signature.sequences)
    settle(at == 0 && signature.is_indexed ? Shaped({extents.table_rows, width})
                                           : SequenceShape(attrs, extents, width));
  for (size_t d = 0; d < directions; ++d)
    for (size_t i = 0; i < n_states; ++i) settle(Shaped({extents.batch, signature.states[i]}));
  for (size_t d = 0; d < directions; ++d)
    for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
      settle(Shaped({signature.matrix_rows[i], signature.matrix_columns[i]}));
  for (size_t d = 0; d < directions; ++d)
    for (int64_t width : signature.vectors) settle(Shaped({width}));
  if (signature.is_indexed)
    settle(batch_major ? Shaped({extents.batch, extents.steps})
                       : Shaped({extents.steps, extents.batch}));
  if (signature.has_lengths) settle(Shaped({extents.batch}));
  at = 0;
  for (int64_t width : signature.emitted)
    (*out)[at++] = SequenceShape(attrs, extents, directions * width);
  for (size_t d = 0; d < directions; ++d)
    for (int64_t width : signature.states) (*out)[at++] = Shaped({extents.batch, width});
  if (Flag(attrs, "stash")) {
    int64_t width = std::max<int64_t>(signature.stash_width, 1);
    int64_t rows = extents.steps < 0 ? -1 : static_cast<int64_t>(directions) * extents.steps;
    (*out)[at] = Shaped({rows, extents.batch, width});
  }
  return extents;
}

bool RecurrenceShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Extents extents = SettleShapes(attrs, in, out);
  out->back() = ScratchShape(attrs, ForwardMode(attrs), extents);
  return IsKnown(SignatureOf(attrs), extents);
}

/* The values of a backward node by those of its forward node: the inputs `in` and results `out`. */
template <typename Values>
void FromForward(const Signature& signature, const Values& in, const Values& out,
                 Values* backward_in, Values* backward_out) {
  auto to = std::copy_n(out.begin(), signature.results(), backward_in->begin());
  to = std::copy(in.begin(), in.end(), to);
  if (signature.reads_outputs) to = std::copy_n(out.begin(), signature.emitted.size(), to);
  *to = out[signature.results()];
  std::copy(in.begin(), in.end(), backward_out->begin());
}

bool RecurrenceBackwardShape(const NodeAttrs& attrs, mxnet::ShapeVector* in,
                             mxnet::ShapeVector* out) {
  const Signature& signature = SignatureOf(attrs);
  auto first = in->begin() + signature.results();
  mxnet::ShapeVector forward(first, first + signature.inputs()), results(signature.results() + 2);
  Extents extents = SettleShapes(attrs, &forward, &results);
  FromForward(signature, forward, results, in, out);
  out->back() = ScratchShape(attrs, kBackwardPass, extents);
  return IsKnown(signature, extents);
}

bool RecurrenceType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const Signature& signature = SignatureOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) {
    const bool is_integer = i >= signature.integers();
    if ((*in)[i] == -1) (*in)[i] = is_integer ? mshadow::kInt32 : signature.dtype;
    if (!is_integer && (*in)[i] != signature.dtype)
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has type code " +
           std::to_string((*in)[i]) + ", not " + std::to_string(signature.dtype));
  }
  for (int& type : *out) type = signature.dtype;
  return true;
}

bool RecurrenceBackwardType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const Signature& signature = SignatureOf(attrs);
  auto first = in->begin() + signature.results();
  std::vector<int> forward(first, first + signature.inputs()), results(signature.results() + 2);
  RecurrenceType(attrs, &forward, &results);
  FromForward(signature, forward, results, in, out);
  out->back() = signature.dtype;
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
  if (extents.steps * extents.batch > std::numeric_limits<int32_t>::max())
    Fail("node " + node + ": steps times sequences of different lengths are at most 2^31 - 1");
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

/* Numbers of rows, (steps, batch), clipped to the table; -1 behind the end of a sequence. */
template <typename T>
void ReadNumbers(const TBlob& blob, bool batch_major, const Extents& extents,
                 const std::vector<int64_t>& lengths, std::vector<int32_t>* numbers) {
  auto data = static_cast<const T*>(blob.dptr_);
  for (int64_t t = 0; t < extents.steps; ++t)
    for (int64_t b = 0; b < extents.batch; ++b) {
      // As a double, which has every number of a row: float32 has none of some beyond 2^24.
      const double found = batch_major ? data[b * extents.steps + t] : data[t * extents.batch + b];
      const bool is_behind = !lengths.empty() && t >= lengths[b];
      // What is not a number is below 0 too.
      const int64_t number = !(found > 0)                    ? 0
                             : found >= extents.table_rows ? extents.table_rows - 1
                                                           : static_cast<int64_t>(found);
      numbers->push_back(static_cast<int32_t>(is_behind ? -1 : number));
    }
}

RowsInUse ReadRows(const NodeAttrs& attrs, const TBlob& blob, const Extents& extents,
                   const std::vector<int64_t>& lengths) {
  if (extents.table_rows < 1 || extents.table_rows > std::numeric_limits<int32_t>::max())
    Fail("node " + attrs.name + ": its table has " + std::to_string(extents.table_rows) +
         " rows; it needs 1 to 2147483647");
  const bool batch_major = Flag(attrs, "batch_major");
  std::vector<int32_t> numbers;
  numbers.reserve(extents.steps * extents.batch);
  switch (blob.type_flag_) {
    case mshadow::kFloat32:
      ReadNumbers<float>(blob, batch_major, extents, lengths, &numbers);
      break;
    case mshadow::kFloat64:
      ReadNumbers<double>(blob, batch_major, extents, lengths, &numbers);
      break;
    case mshadow::kInt32:
      ReadNumbers<int32_t>(blob, batch_major, extents, lengths, &numbers);
      break;
    case mshadow::kInt64:
      ReadNumbers<int64_t>(blob, batch_major, extents, lengths, &numbers);
      break;
    default:
      Fail("node " + attrs.name + ": numbers of rows are float32, float64, int32 or int64");
  }
  return FindRows(numbers, extents.table_rows);
}

/* Asks for large pages: arrays of many megabytes are new memory on most calls. */
void Enlarge(const TBlob& blob) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t large = 2 << 20;
  auto begin = reinterpret_cast<uintptr_t>(blob.dptr_);
  uintptr_t end = begin + blob.shape_.Size() * ItemSize(blob.type_flag_);
  begin = (begin + large - 1) / large * large;
  if (end > begin + 4 * large)
    madvise(reinterpret_cast<void*>(begin), (end - begin) / large * large, MADV_HUGEPAGE);
#endif
}

/* Memory for an output that is not simply written. */
class Results {
 public:
  /* Where to write: null if nobody wants it. */
  void* Add(const TBlob& blob, OpReqType request) {
    if (request == mxnet::kNullOp) return nullptr;
    Enlarge(blob);
    if (request != mxnet::kAddTo) return blob.dptr_;
    added_.push_back({&blob, std::vector<char>(blob.shape_.Size() * ItemSize(blob.type_flag_))});
    return added_.back().second.data();
  }

  /* Adds what had to be added. */
  void Finish() {
    for (auto& [blob, memory] : added_) {
      if (blob->type_flag_ == mshadow::kFloat32)
        Sum<float>(*blob, memory);
      else
        Sum<double>(*blob, memory);
    }
  }

 private:
  template <typename T>
  static void Sum(const TBlob& blob, const std::vector<char>& memory) {
    auto to = static_cast<T*>(blob.dptr_);
    auto from = reinterpret_cast<const T*>(memory.data());
    const int64_t size = blob.shape_.Size();
    int threads = Threads(0.3 * size, size);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < size; ++i) to[i] += from[i];
  }

  std::vector<std::pair<const TBlob*, std::vector<char>>> added_;
};

/* Places of one direction's inputs among a node's inputs, and of its final states. */
struct Places {
  Places(const Signature& s, size_t direction)
      : states(s.sequences.size() + direction * s.given_states()),
        matrices(s.sequences.size() + s.directions * s.given_states() +
                 direction * s.matrix_rows.size()),
        vectors(s.sequences.size() +
                s.directions * (s.given_states() + s.matrix_rows.size()) +
                direction * s.vectors.size()),
        finals(s.emitted.size() + direction * s.states.size()) {}
  size_t states, matrices, vectors, finals;
};

Extents ExtentsOf(const NodeAttrs& attrs, const TBlob* inputs) {
  const Signature& signature = SignatureOf(attrs);
  const TBlob& steps = inputs[signature.is_indexed ? signature.integers() : 0];
  if (Flag(attrs, "flat")) return {1, steps.shape_[0]};
  bool batch_major = Flag(attrs, "batch_major");
  return {steps.shape_[batch_major ? 1 : 0], steps.shape_[batch_major ? 0 : 1],
          signature.is_indexed ? inputs[0].shape_[0] : -1};
}

/* What a call in one direction needs of a node; `inputs` are those of the forward operator. */
struct Direction {
  const NodeAttrs& attrs;
  const Signature& signature;
  const TBlob* inputs;
  Extents extents;
  size_t number;
  Places places;
  RecurrenceCall call;

  Direction(const NodeAttrs& attrs, const TBlob* inputs, size_t number, const int64_t* lengths)
      : attrs(attrs),
        signature(SignatureOf(attrs)),
        inputs(inputs),
        extents(ExtentsOf(attrs, inputs)),
        number(number),
        places(signature, number) {
    call.steps = extents.steps;
    call.batch = extents.batch;
    call.reverse = signature.directions == 2 ? number == 1 : Flag(attrs, "reverse");
    call.lengths = lengths;
    for (size_t i = 0; i < signature.sequences.size(); ++i)
      call.sequences.push_back(Input(inputs[i].dptr_, signature.sequences[i]));
    for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
      call.matrices.push_back(inputs[places.matrices + i].dptr_);
    for (size_t i = 0; i < signature.vectors.size(); ++i)
      call.vectors.push_back(inputs[places.vectors + i].dptr_);
    call.threads = ThreadsOf(signature, extents);
  }

  void ComputeIn(const TBlob& scratch) {
    call.scratch = scratch.dptr_;
    call.scratch_bytes = scratch.shape_.Size() * ItemSize(signature.dtype);
  }

  SequenceArray Strided(void* data, int64_t columns, int64_t first) const {
    bool batch_major = Flag(attrs, "batch_major");
    char* at = static_cast<char*>(data) + (data ? first * ItemSize(signature.dtype) : 0);
    return {data ? at : nullptr, batch_major ? columns : extents.batch * columns,
            batch_major ? extents.steps * columns : columns};
  }

  SequenceArray Input(void* data, int64_t width) const { return Strided(data, width, 0); }

  /* This direction's columns of an emitted sequence. */
  SequenceArray Emitted(void* data, int64_t width) const {
    return Strided(data, signature.directions * width, number * width);
  }

  void* Stash(const TBlob& blob) const {
    return static_cast<char*>(blob.dptr_) +
           number * extents.steps * extents.batch * std::max<int64_t>(signature.stash_width, 1) *
               ItemSize(signature.dtype);
  }

  /* A row for each step and sequence, steps first. */
  SequenceArray ByStep(void* data, int64_t width) const {
    return {data, extents.batch * width, width};
  }

  const void* State(size_t i) const {
    return signature.zero_states ? nullptr : inputs[places.states + i].dptr_;
  }
};

std::vector<int64_t> LengthsOf(const NodeAttrs& attrs, const TBlob* inputs) {
  const Signature& signature = SignatureOf(attrs);
  if (!signature.has_lengths) return {};
  return Lengths(inputs[signature.inputs() - 1], attrs.name, ExtentsOf(attrs, inputs));
}

/* A table whose rows a node's steps read by number, and what is computed of it for one direction after
 * the other. */
class ByNumber {
 public:
  ByNumber(const NodeAttrs& attrs, const Program& program, const TBlob* inputs,
           const std::vector<int64_t>& lengths, const TBlob& scratch)
      : program_(program),
        signature_(SignatureOf(attrs)),
        table_(inputs[0]),
        scratch_(scratch),
        extents_(ExtentsOf(attrs, inputs)),
        rows_(ReadRows(attrs, inputs[signature_.integers()], extents_, lengths)) {
    for (const Step& step : program.steps)
      for (size_t n = 0; n < step.spots.size(); ++n)
        reads_rows_ |= step.spots[n].place == kSequence && step.spots[n].index == 0;
  }

  /* Gives a direction its projected table, and room to compute in; to be called when everything else
   * of it is there. */
  void Enter(Direction* one) {
    RecurrenceCall& call = one->call;
    call.index = rows_.index.data();
    const TableScratch places(signature_, extents_, ScratchBytes(program_, call),
                              program_.backward);
    // With more threads than when shapes were inferred it wants more than there is.
    const bool is_enough =
        static_cast<int64_t>(scratch_.shape_.Size()) * ItemSize(signature_.dtype) >= places.bytes;
    if (!is_enough) own_.reset(new char[places.bytes]);
    char* at = Aligned<char>(is_enough ? scratch_.dptr_ : own_.get());
    call.scratch = at;
    call.scratch_bytes = places.projected;
    projected_ = at + places.projected;
    gradients_ = at + places.gradients;
    call.sequences[0] = {projected_, 0, signature_.projection.width};
    if (reads_rows_) Project(TableOf(call), rows_, projected_);
    if (!program_.backward) return;
    const size_t gradient = call.sequences.size() - signature_.sequences.size();
    call.sequences[gradient] = one->ByStep(gradients_, signature_.projection.width);
  }

  /* Runs backward of a direction that was entered; `table_gradient` is added to. */
  void Back(const RecurrenceCall& call, void* table_gradient) {
    RecurrenceCall rest = call;
    for (size_t i = 0; i < rest.matrix_gradients.size(); ++i)
      if (void* gradient = rest.matrix_gradients[i]; gradient && !Learns(i)) {
        std::memset(gradient, 0,
                    signature_.matrix_rows[i] * signature_.matrix_columns[i] *
                        ItemSize(signature_.dtype));
        rest.matrix_gradients[i] = nullptr;
      }
    RunRecurrence(program_, rest);
    // The projected table is not read any more.
    AddGradients(TableOf(call), rows_, gradients_, projected_, table_gradient);
  }

 private:
  Table TableOf(const RecurrenceCall& call) const {
    return {signature_.projection,
            call,
            signature_.matrix_columns,
            table_.dptr_,
            signature_.sequences[0],
            program_.is_double,
            call.threads};
  }

  /* Whether the steps themselves have a part in the gradient of a matrix. */
  bool Learns(size_t matrix) const {
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return step.code == kOuter && step.which == static_cast<int64_t>(matrix);
    });
  }

  const Program& program_;
  const Signature& signature_;
  const TBlob &table_, &scratch_;
  Extents extents_;
  RowsInUse rows_;
  bool reads_rows_ = false;
  char *projected_ = nullptr, *gradients_ = nullptr;
  std::unique_ptr<char[]> own_;
};

/* Gives the call in a direction what its program reads packed. */
using PackedBy = std::function<const void*(const Program&, const Direction&)>;

void RunForward(const NodeAttrs& attrs, const std::vector<TBlob>& inputs,
                const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs,
                const PackedBy& packed_by) {
  const Signature& signature = SignatureOf(attrs);
  bool stash = Flag(attrs, "stash");
  const Program& program = ProgramOf(attrs, ForwardMode(attrs));
  std::vector<int64_t> lengths = LengthsOf(attrs, inputs.data());
  std::unique_ptr<ByNumber> by_number;
  if (signature.is_indexed)
    by_number = std::make_unique<ByNumber>(attrs, program, inputs.data(), lengths, outputs.back());
  Results results;
  std::vector<void*> emitted;
  // A state may live in an emitted sequence that nobody reads.
  std::vector<std::vector<char>> unread;
  for (size_t k = 0; k < signature.emitted.size(); ++k) {
    emitted.push_back(results.Add(outputs[k], requests[k]));
    if (emitted[k]) continue;
    unread.emplace_back(outputs[k].shape_.Size() * ItemSize(signature.dtype));
    emitted[k] = unread.back().data();
  }
  for (size_t d = 0; d < signature.directions; ++d) {
    Direction one(attrs, inputs.data(), d, signature.has_lengths ? lengths.data() : nullptr);
    for (size_t k = 0; k < emitted.size(); ++k)
      one.call.sequences.push_back(one.Emitted(emitted[k], signature.emitted[k]));
    for (size_t i = 0; i < signature.states.size(); ++i) {
      size_t at = one.places.finals + i;
      one.call.first.push_back(one.State(i));
      one.call.last.push_back(results.Add(outputs[at], requests[at]));
    }
    if (stash) {
      Enlarge(outputs[signature.results()]);
      one.call.stash = one.Stash(outputs[signature.results()]);
    }
    if (packed_by) one.call.packed = packed_by(program, one);
    if (by_number)
      by_number->Enter(&one);
    else
      one.ComputeIn(outputs.back());
    RunRecurrence(program, one.call);
  }
  results.Finish();
}

void RecurrenceForward(const NodeAttrs& attrs, const mxnet::OpContext&,
                       const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                       const std::vector<TBlob>& outputs) {
  RunForward(attrs, inputs, requests, outputs, nullptr);
}

void RecurrenceBackward(const NodeAttrs& attrs, const mxnet::OpContext&,
                        const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                        const std::vector<TBlob>& outputs) {
  const Signature& signature = SignatureOf(attrs);
  const Program& program = ProgramOf(attrs, kBackwardPass);
  const TBlob* heads = inputs.data();
  const TBlob* forward = heads + signature.results();
  const TBlob* emitted = forward + signature.inputs();
  std::vector<int64_t> lengths = LengthsOf(attrs, forward);
  std::unique_ptr<ByNumber> by_number;
  if (signature.is_indexed)
    by_number = std::make_unique<ByNumber>(attrs, program, forward, lengths, outputs.back());
  Results results;
  auto gradient = [&](size_t i) { return results.Add(outputs[i], requests[i]); };
  void* table_gradient = by_number ? gradient(0) : nullptr;
  if (table_gradient)
    std::memset(table_gradient, 0, outputs[0].shape_.Size() * ItemSize(signature.dtype));
  for (size_t d = 0; d < signature.directions; ++d) {
    Direction one(attrs, forward, d, signature.has_lengths ? lengths.data() : nullptr);
    RecurrenceCall& call = one.call;
    for (size_t k = 0; k < signature.emitted.size(); ++k) {
      void* data = signature.reads_outputs ? emitted[k].dptr_ : nullptr;
      call.sequences.push_back(one.Emitted(data, signature.emitted[k]));
    }
    for (size_t k = 0; k < signature.emitted.size(); ++k)
      call.sequences.push_back(one.Emitted(heads[k].dptr_, signature.emitted[k]));
    for (size_t i = 0; i < signature.sequences.size(); ++i) {
      if (i == 0 && by_number) {
        call.sequences.push_back({});
        continue;
      }
      // The second direction adds to what the first one wrote.
      OpReqType request = d && requests[i] != mxnet::kNullOp ? mxnet::kAddTo : requests[i];
      call.sequences.push_back(one.Input(results.Add(outputs[i], request), signature.sequences[i]));
    }
    for (size_t i = 0; i < signature.states.size(); ++i) {
      call.initial.push_back(one.State(i));
      call.first.push_back(heads[one.places.finals + i].dptr_);
      call.last.push_back(signature.zero_states ? nullptr : gradient(one.places.states + i));
    }
    for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
      call.matrix_gradients.push_back(gradient(one.places.matrices + i));
    for (size_t i = 0; i < signature.vectors.size(); ++i)
      call.vector_gradients.push_back(gradient(one.places.vectors + i));
    call.stash = one.Stash(inputs.back());
    if (by_number) {
      by_number->Enter(&one);
      by_number->Back(call, table_gradient);
      continue;
    }
    one.ComputeIn(outputs.back());
    RunRecurrence(program, call);
  }
  for (size_t i = signature.integers(); i < signature.inputs(); ++i)
    if (requests[i] == mxnet::kWriteTo)
      std::memset(outputs[i].dptr_, 0, outputs[i].shape_.Size() * ItemSize(outputs[i].type_flag_));
  results.Finish();
}

std::vector<NodeEntry> RecurrenceGradient(const ObjectPtr& node,
                                          const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  const Signature& signature = SignatureOf(attrs);
  std::vector<std::pair<std::string, std::string>> own;
  for (const char* key : {"spec", "reverse", "lengths", "batch_major", "bidirectional",
                          "zero_states", "flat", "indexed"}) {
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
  // No control dependency on the forward node: MXNet would take over shapes from that and ask for none,
  // and so not learn of what is computed in.
  LegacyNode& backward = View(made);
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
