/*
 * The operators graphopt_recurrence and _backward_graphopt_recurrence.
 *
 * Attributes: `spec`, what a step computes; `reverse`, from the last step to the first; `lengths`, the
 * last input has the number of steps of each sequence; `batch_major`, sequences are (batch, steps,
 * columns), not (steps, batch, columns); `bidirectional`, the same step with two sets of states,
 * matrices and vectors, the second from the last step to the first: emitted columns of the two lie side
 * by side; `zero_states`, the states are zeros at first and no inputs; `flat`, there is one step only,
 * and sequences are (batch, columns); `indexed`, the first sequence is a table (rows, columns), whose
 * rows steps read by number (see lookup.h); `by_vectors`, products of steps are by vectors even where
 * there is a matrix unit;
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

#include <cstring>
#include <functional>
#include <memory>

#include "recurrence_call.h"

namespace graphopt {

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
                          "zero_states", "flat", "indexed", "by_vectors"}) {
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
