/*
 * The operator graphopt_product: a dense layer with constant weights, and the activation after it; see
 * product.h.
 *
 * Attributes: `units`; `activation`, "none", "relu" or "gelu"; `flatten`, all axes but the first are the
 * depth, not the last alone; `no_bias`; `packed`, weights come in the order in which they are read. Inputs:
 * data, weights (units, depth) or packed, the bias. With `tiled` they are packed as products of dense.h
 * read them. Weights that are not packed are read where they lie for a few rows, and packed in every call for
 * more. It is for inference: there is no gradient.
 */
#pragma once

#include <algorithm>
#include <limits>
#include <memory>

#include "convolutions_operator.h"
#include "dense.h"
#include "helpers.h"
#include "product.h"
#include "shares.h"
#include "slim.h"

namespace graphopt {

int64_t UnitsOf(const NodeAttrs& attrs) { return std::stoll(AttributeOf(attrs, "units")); }

product::Activation ActivationOf(const NodeAttrs& attrs) {
  const std::string& name = AttributeOf(attrs, "activation");
  if (name == "relu") return product::kRelu;
  if (name == "gelu") return product::kGelu;
  if (name != "none") Fail("node " + attrs.name + " has no activation '" + name + "'");
  return product::kNone;
}

uint32_t ProductInputs(const NodeAttrs& attrs) { return Flag(attrs, "no_bias") ? 2 : 3; }

/* Numbers that a unit multiplies. */
int64_t DepthOf(const NodeAttrs& attrs, const mxnet::TShape& data) {
  if (data.ndim() < 1) Fail("the data of node " + attrs.name + " has no axis");
  return Flag(attrs, "flatten") ? data.ProdShape(1, data.ndim()) : data[data.ndim() - 1];
}

/* For weights that were packed so. */
const dense::Means& BestOf(const NodeAttrs& attrs) {
  const dense::Means* best = dense::Best();
  if (!best) Fail("the weights of node " + attrs.name + " were packed for another processor");
  return *best;
}

bool ProductShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const mxnet::TShape& data = (*in)[0];
  if (!mxnet::shape_is_known(data)) return false;
  const int64_t depth = DepthOf(attrs, data), units = UnitsOf(attrs);
  const int64_t packed = Flag(attrs, "tiled") ? BestOf(attrs).packed_size(depth, units)
                                              : product::PackedSize(depth, units);
  Settle(attrs, 1, Flag(attrs, "packed") ? Shaped({packed}) : Shaped({units, depth}), &(*in)[1]);
  if (in->size() > 2) Settle(attrs, 2, Shaped({units}), &(*in)[2]);
  mxnet::TShape made = Flag(attrs, "flatten") ? Shaped({data[0], units}) : data;
  made[made.ndim() - 1] = units;
  (*out)[0] = made;
  return true;
}

/* Has threads take tasks, this one among them: helpers, or those of OpenMP. Each calls `begin` and what that gives, task
 * by task. */
template <class Begin>
void ShareTasks(int64_t tasks, int threads, Helpers* helpers, const Begin& begin) {
  Shares shares(tasks, threads);
  const auto work = [&](int64_t thread) {
    auto run = begin();
    for (int64_t task; (task = shares.Take(thread)) >= 0;) run(task);
  };
  if (helpers && threads > 1) return helpers->Share(work);
#pragma omp parallel num_threads(threads) if (threads > 1)
  work(omp_get_thread_num());
}

/* With packed weights. */
void RunProduct(const product::Plan& plan, const product::Operands& operands, int threads, Helpers* helpers) {
  ShareTasks(plan.tasks(), threads, helpers, [&] {
    return [&, copied = product::Copied()](int64_t task) mutable { product::RunTask(plan, operands, task, &copied); };
  });
}

/* Of few rows, whose weights are read where they lie. */
void RunFewRows(const product::Operands& operands, int64_t rows, int64_t depth, int64_t units, int threads,
                Helpers* helpers) {
  constexpr int64_t kBytes = 1 << 18;  // of weights, of a task
  const int64_t row = sizeof(float) * std::max<int64_t>(depth, 1);
  const int64_t team = std::max<int64_t>(kBytes / row / 4 * 4, 4);
  ShareTasks((units + team - 1) / team, threads, helpers, [&] {
    return [&](int64_t task) {
      slim::RunUnits(operands, rows, depth, units, task * team, std::min(units, (task + 1) * team));
    };
  });
}

constexpr int64_t kMostTasks = 1 << 10;  // of a product, about

/* What a product multiplies. */
struct ProductSizes {
  ProductSizes(const NodeAttrs& attrs, const TBlob& from, const TBlob& to)
      : depth(DepthOf(attrs, from.shape_)), units(UnitsOf(attrs)), rows(units ? to.shape_.Size() / units : 0) {}

  /* Nanoseconds of one thread. A row alone costs what it takes to read the weights. */
  double Cost() const { return static_cast<double>(depth) * units * (0.1 + 0.02 * rows); }

  int64_t depth, units, rows;
};

/* On so many threads at most; with helpers not on OpenMP's, but for products of dense.h. */
void ComputeProduct(const NodeAttrs& attrs, const std::vector<TBlob>& inputs,
                    const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs,
                    int most_threads, Helpers* helpers = nullptr) {
  Results results;
  auto to = static_cast<float*>(results.Add(outputs[0], requests[0]));
  const ProductSizes sizes(attrs, inputs[0], outputs[0]);
  const int64_t depth = sizes.depth, units = sizes.units, rows = sizes.rows;
  if (!to || rows == 0) return;
  const float* data = static_cast<const float*>(inputs[0].dptr_);
  const float* weights = static_cast<const float*>(inputs[1].dptr_);
  const float* bias = inputs.size() > 2 ? static_cast<const float*>(inputs[2].dptr_) : nullptr;
  if (Flag(attrs, "packed") && Flag(attrs, "tiled")) {
    const double nanoseconds = 0.01 * rows * depth * units;
    BestOf(attrs).multiply({rows, depth, units, {data, depth, false}, {}, weights, bias,
                            ActivationOf(attrs), false, to, units},
                           std::min(Threads(nanoseconds, kMostTasks), most_threads));
    return results.Finish();
  }
  const int useful = Threads(sizes.Cost(), kMostTasks);
  const int threads = helpers ? useful : std::min(useful, most_threads);
  const product::Operands operands{data, weights, bias, to, ActivationOf(attrs)};
  if (Flag(attrs, "packed")) {
    RunProduct(product::MakePlan(rows, depth, units, threads), operands, threads, helpers);
  } else if (rows <= slim::kFewRows) {
    RunFewRows(operands, rows, depth, units, threads, helpers);
  } else {
    product::Compute({rows, depth, units, {data, depth, false}, {weights, depth, true}, bias,
                      ActivationOf(attrs), false, to, units},
                     std::min(threads, most_threads));
  }
  results.Finish();
}

void ProductForward(const NodeAttrs& attrs, const mxnet::OpContext&,
                    const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                    const std::vector<TBlob>& outputs) {
  ComputeProduct(attrs, inputs, requests, outputs, std::numeric_limits<int>::max());
}

/* MXNet derives the backward graph of every graph; this one must not run. */
std::vector<NodeEntry> ProductGradient(const ObjectPtr& node, const std::vector<NodeEntry>&) {
  const std::string no_bias = Flag(node->attrs, "no_bias") ? "True" : "False";
  ObjectPtr made = MakeNode("_backward_graphopt_product", node->attrs.name + "_backward",
                            {{"no_bias", no_bias}});
  View(made).inputs = View(node).inputs;
  std::vector<NodeEntry> gradients;
  for (size_t i = 0; i < View(node).inputs.size(); ++i)
    gradients.emplace_back(made, static_cast<uint32_t>(i), 0);
  return gradients;
}

void RegisterProduct() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__("graphopt_product");
  forward.get_num_inputs = LegacyFunction(&ProductInputs);
  forward.set_num_outputs(1);
  SetAttribute<mxnet::FInferShape>(forward, "FInferShape", LegacyFunction(&ProductShape));
  SetAttribute<nnvm::FInferType>(forward, "FInferType", LegacyFunction(&ConvolutionsType));
  SetAttribute<mxnet::FCompute>(forward, "FCompute<cpu>", LegacyFunction(&ProductForward));
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&ProductGradient));
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_product");
  backward.get_num_inputs = LegacyFunction(&ProductInputs);
  backward.get_num_outputs = LegacyFunction(&ProductInputs);
  SetAttribute<nnvm::TIsBackward>(backward, "TIsBackward", true);
  SetAttribute<mxnet::FCompute>(backward, "FCompute<cpu>", LegacyFunction(&ConvolutionsBackward));
}

}  // namespace graphopt
