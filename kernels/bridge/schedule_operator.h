/*
 * The operators graphopt_schedule and _backward_graphopt_schedule.
 *
 * Attributes: `specs`, the programs of steps, separated by " ;;;; "; `externals`, how many arrays come
 * from outside; `indices`, how many indices do, 0 if it is not given; `exports`, rows and columns of
 * each output, "rows x columns, ..."; `dtype`, MXNet's type code; `stash_size`, if there will be a
 * backward, elements of the last output, which is what it needs.
 *
 * Inputs: arrays from outside, with a row for each first index; the plan, int32 (see
 * graphopt/batching/native/block.py); indices (numbers,) int32, the row of an array that each of the
 * plan's numbers stands for; of each program the matrices and vectors. Outputs: the exports, the
 * stash. Backward reads gradients of the exports, the inputs, the stash; its attribute `unused` has a 1
 * for each export without a gradient, which it does not read, 0 for the others.
 */
#pragma once

#include <cstdlib>
#include <stdexcept>

#include "recurrence_operator.h"
#include "schedule.h"
#include "tree.h"

namespace graphopt {

struct ScheduleSignature {
  std::vector<std::string> specs;
  std::vector<const Signature*> programs;
  std::vector<std::pair<int64_t, int64_t>> exports;
  size_t externals = 0, indices = 0;
  int dtype = 0;
  int64_t stash_size = 0;

  size_t structure() const { return externals + 1 + indices; }  // inputs in front of programs'
  size_t inputs() const {
    size_t count = structure();
    for (const Signature* program : programs)
      count += program->matrix_rows.size() + program->vectors.size();
    return count;
  }
  size_t outputs() const { return exports.size() + (stash_size > 0); }
};

ScheduleSignature ScheduleSignatureOf(const NodeAttrs& attrs) {
  ScheduleSignature made;
  const std::string& specs = AttributeOf(attrs, "specs");
  const std::string gap = " ;;;; ";
  for (size_t at = 0; at < specs.size();) {
    size_t end = std::min(specs.find(gap, at), specs.size());
    made.specs.push_back(specs.substr(at, end - at));
    made.programs.push_back(&SignatureBy(made.specs.back(), 0, false, false));
    at = end + gap.size();
  }
  made.externals = std::strtoull(AttributeOf(attrs, "externals").c_str(), nullptr, 10);
  auto indices = attrs.dict.find("indices");
  if (indices != attrs.dict.end())
    made.indices = std::strtoull(indices->second.c_str(), nullptr, 10);
  made.dtype = std::atoi(AttributeOf(attrs, "dtype").c_str());
  std::istringstream exports(AttributeOf(attrs, "exports"));
  for (int64_t rows, columns; exports >> rows >> columns;) made.exports.push_back({rows, columns});
  auto stash = attrs.dict.find("stash_size");
  if (stash != attrs.dict.end()) made.stash_size = std::strtoll(stash->second.c_str(), nullptr, 10);
  return made;
}

uint32_t ScheduleInputs(const NodeAttrs& attrs) { return ScheduleSignatureOf(attrs).inputs(); }
uint32_t ScheduleOutputs(const NodeAttrs& attrs) { return ScheduleSignatureOf(attrs).outputs(); }
uint32_t ScheduleBackwardInputs(const NodeAttrs& attrs) {
  ScheduleSignature signature = ScheduleSignatureOf(attrs);
  return signature.exports.size() + signature.inputs() + 1;
}

bool ScheduleShapes(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  ScheduleSignature signature = ScheduleSignatureOf(attrs);
  size_t at = signature.structure();
  for (size_t i = 0; i < at; ++i)
    if (!mxnet::shape_is_known((*in)[i])) return false;
  for (const Signature* program : signature.programs) {
    for (size_t i = 0; i < program->matrix_rows.size(); ++i, ++at)
      Settle(attrs, at, Shaped({program->matrix_rows[i], program->matrix_columns[i]}), &(*in)[at]);
    for (int64_t width : program->vectors) {
      Settle(attrs, at, Shaped({width}), &(*in)[at]);
      ++at;
    }
  }
  at = 0;
  for (auto [rows, columns] : signature.exports) (*out)[at++] = Shaped({rows, columns});
  if (signature.stash_size) (*out)[at] = Shaped({signature.stash_size});
  return true;
}

bool ScheduleTypes(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  ScheduleSignature signature = ScheduleSignatureOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) {
    bool is_structure = i >= signature.externals && i < signature.structure();
    int wanted = is_structure ? static_cast<int>(mshadow::kInt32) : signature.dtype;
    if ((*in)[i] == -1) (*in)[i] = wanted;
    if ((*in)[i] != wanted)
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has type code " +
           std::to_string((*in)[i]) + ", not " + std::to_string(wanted));
  }
  for (int& type : *out) type = signature.dtype;
  return true;
}

/* What a call needs of a node; `inputs` are those of the forward operator. */
struct ScheduleArguments {
  ScheduleSignature signature;
  SchedulePlan plan;
  ScheduleCall call;

  ScheduleArguments(const NodeAttrs& attrs, const TBlob* inputs, Mode mode)
      : signature(ScheduleSignatureOf(attrs)) {
    const TBlob& numbers = inputs[signature.externals];
    try {
      std::vector<int64_t> sizes;
      for (size_t i = 0; i < signature.externals; ++i) sizes.push_back(inputs[i].shape_.Size());
      for (size_t i = signature.externals + 1; i < signature.structure(); ++i)
        call.indices.push_back({static_cast<const int32_t*>(inputs[i].dptr_),
                                static_cast<int64_t>(inputs[i].shape_.Size())});
      plan = ReadPlan(static_cast<const int32_t*>(numbers.dptr_), numbers.shape_.Size(), sizes,
                      call.indices);
      Check();
    } catch (const std::invalid_argument& error) {
      Fail(error.what());
    }
    size_t at = 0;
    while (at < signature.externals) call.externals.push_back(inputs[at++].dptr_);
    at = signature.structure();
    // Not that of a program: plans of reductions and concatenations have none.
    call.is_double = signature.dtype == mshadow::kFloat64;
    double work = 0;
    std::vector<double> work_of;
    for (size_t i = 0; i < signature.specs.size(); ++i) {
      const Signature& known = *signature.programs[i];
      call.programs.push_back(&ProgramBy(signature.specs[i], mode));
      Learned learned;
      double own = 100;
      for (size_t m = 0; m < known.matrix_rows.size(); ++m) {
        learned.matrices.push_back(inputs[at++].dptr_);
        own += static_cast<double>(known.matrix_rows[m]) * known.matrix_columns[m];
      }
      for (size_t v = 0; v < known.vectors.size(); ++v) learned.vectors.push_back(inputs[at++].dptr_);
      call.learned.push_back(learned);
      work_of.push_back(own);
    }
    for (const PlannedStep& step : plan.steps)
      work += step.rows * (step.kind == kRowsStep ? work_of[step.program] : 100);
    call.threads = Threads(0.02 * work, 16);
  }

  /* A plan that does not belong to the node would read what is not there. */
  void Check() const {
    if (plan.exports.size() != signature.exports.size())
      throw std::invalid_argument("a plan of graphopt.batch does not fit its node");
    for (size_t k = 0; k < plan.exports.size(); ++k) {
      const PlannedValue& value = plan.values[plan.exports[k]];
      if (std::make_pair(value.rows, value.width) != signature.exports[k])
        throw std::invalid_argument("a plan of graphopt.batch does not fit its outputs");
    }
    std::vector<int64_t> stash_widths;
    for (const Signature* program : signature.programs) stash_widths.push_back(program->stash_width);
    for (const PlannedStep& step : plan.steps) CheckStep(step);
    if (signature.stash_size && StashSize(plan, stash_widths) != signature.stash_size)
      throw std::invalid_argument("a plan of graphopt.batch does not fit its stash");
  }

  void CheckStep(const PlannedStep& step) const {
    if (step.kind != kRowsStep) return;
    bool fits = step.program >= 0 && step.program < static_cast<int64_t>(signature.programs.size());
    if (fits) {
      const Signature& known = *signature.programs[step.program];
      fits = known.states.empty() && known.sequences.size() == step.args.size() &&
             known.emitted.size() == step.values.size();
      for (size_t a = 0; fits && a < step.args.size(); ++a)
        fits = step.args[a].width == known.sequences[a];
      for (size_t o = 0; fits && o < step.values.size(); ++o)
        fits = plan.values[step.values[o]].width == known.emitted[o];
    }
    if (!fits) throw std::invalid_argument("a plan of graphopt.batch does not fit its programs");
  }
};

/* Gradients of arrays with an index: first one for each number, then their sums. */
class LookedUp {
 public:
  explicit LookedUp(const ScheduleArguments& arguments) : arguments_(arguments) {}

  /* Where the gradients of external array `number` go, if their sums go to `sums`, an array of so
   * many elements. */
  void* Add(size_t number, void* sums, int64_t size) {
    const PlannedValue& value = arguments_.plan.values[number];
    if (value.index < 0 || !sums) return sums;
    memory_.emplace_back(
        new char[value.rows * value.width * ItemSize(arguments_.signature.dtype)]);
    found_.push_back({{memory_.back().get(), sums, value.width}, value.index, size / value.width});
    return memory_.back().get();
  }

  void Finish() const {
    for (const Sum& sum : found_) {
      const RowIndex& index = arguments_.call.indices[sum.index];
      SumRows({sum.rows}, index.rows, index.count, sum.count, arguments_.call.is_double,
              arguments_.call.threads);
    }
  }

 private:
  struct Sum {
    RowSum rows;
    int64_t index, count;
  };

  const ScheduleArguments& arguments_;
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<Sum> found_;
};

void ScheduleForward(const NodeAttrs& attrs, const mxnet::OpContext&,
                     const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                     const std::vector<TBlob>& outputs) {
  bool keeps = attrs.dict.count("stash_size");
  ScheduleArguments arguments(attrs, inputs.data(), keeps ? kTraining : kInference);
  ScheduleCall& call = arguments.call;
  Results results;
  for (size_t k = 0; k < arguments.signature.exports.size(); ++k)
    call.exports.push_back(results.Add(outputs[k], requests[k]));
  if (keeps) {
    Enlarge(outputs.back());
    call.stash = outputs.back().dptr_;
  }
  RunSchedule(arguments.plan, call, false);
  results.Finish();
}

void ScheduleBackward(const NodeAttrs& attrs, const mxnet::OpContext&,
                      const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                      const std::vector<TBlob>& outputs) {
  size_t exports = ScheduleSignatureOf(attrs).exports.size();
  ScheduleArguments arguments(attrs, inputs.data() + exports, kBackwardPass);
  ScheduleCall& call = arguments.call;
  Results results;
  size_t at = 0;
  auto gradient = [&] {
    void* found = results.Add(outputs[at], requests[at]);
    ++at;
    return found;
  };
  const std::string& unused = AttributeOf(attrs, "unused");
  for (size_t k = 0; k < exports; ++k)
    call.heads.push_back(unused[k] == '1' ? nullptr : inputs[k].dptr_);
  call.stash = inputs.back().dptr_;
  LookedUp looked_up(arguments);
  while (at < arguments.signature.externals) {
    int64_t size = outputs[at].shape_.Size();
    size_t number = at;
    call.external_gradients.push_back(looked_up.Add(number, gradient(), size));
  }
  for (; at < arguments.signature.structure(); ++at)
    if (requests[at] == mxnet::kWriteTo)
      std::memset(outputs[at].dptr_, 0, outputs[at].shape_.Size() * sizeof(int32_t));
  for (size_t i = 0; i < call.learned.size(); ++i) {
    Learned& learned = call.learned[i];
    for (size_t m = 0; m < learned.matrices.size(); ++m)
      learned.matrix_gradients.push_back(gradient());
    for (size_t v = 0; v < learned.vectors.size(); ++v)
      learned.vector_gradients.push_back(gradient());
  }
  RunSchedule(arguments.plan, call, true);
  looked_up.Finish();
  results.Finish();
}

std::vector<NodeEntry> ScheduleGradient(const ObjectPtr& node,
                                        const std::vector<NodeEntry>& heads) {
  const NodeAttrs& attrs = node->attrs;
  ScheduleSignature signature = ScheduleSignatureOf(attrs);
  if (!signature.stash_size)
    Fail("node " + attrs.name + " was recorded without what backward needs");
  std::vector<std::pair<std::string, std::string>> own;
  for (const char* key : {"specs", "externals", "exports", "dtype", "stash_size"})
    own.emplace_back(key, AttributeOf(attrs, key));
  own.emplace_back("indices", std::to_string(signature.indices));
  std::string unused;
  for (size_t k = 0; k < signature.exports.size(); ++k) unused += IsZeros(heads[k]) ? '1' : '0';
  own.emplace_back("unused", unused);
  const NodeEntry stash(node, static_cast<uint32_t>(signature.exports.size()), 0);
  ObjectPtr made = MakeNode("_backward_graphopt_schedule", attrs.name + "_backward", own);
  LegacyNode& backward = View(made);
  backward.control_deps.push_back(node);
  // MXNet makes zeros from an array that autograd may not have kept; then it would end the process.
  for (size_t k = 0; k < signature.exports.size(); ++k)
    backward.inputs.push_back(unused[k] == '1' ? stash : heads[k]);
  for (const NodeEntry& entry : View(node).inputs) backward.inputs.push_back(entry);
  backward.inputs.push_back(stash);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < signature.inputs(); ++i) gradients.emplace_back(made, i, 0);
  return gradients;
}

}  // namespace graphopt
