/*
 * The operator graphopt_dense: MXNet's FullyConnected of float32, forward and backward, by the products of
 * dense.h.
 *
 * It has FullyConnected's attributes: `num_hidden`, `no_bias`, `flatten`. Inputs: data, weights (units,
 * depth), the bias.
 */
#pragma once

#include <vector>

#include "dense.h"
#include "product_operator.h"

namespace graphopt {

/* As FullyConnected has them. */
struct Layer {
  int64_t units, depth, rows;
  bool has_bias, flattens;

  Layer(const NodeAttrs& attrs, const mxnet::TShape& data) {
    units = std::stoll(AttributeOf(attrs, "num_hidden"));
    has_bias = !Flag(attrs, "no_bias");
    flattens = !attrs.dict.count("flatten") || Flag(attrs, "flatten");
    if (data.ndim() < 1) Fail("the data of node " + attrs.name + " has no axis");
    depth = flattens ? data.ProdShape(1, data.ndim()) : data[data.ndim() - 1];
    rows = depth ? data.Size() / depth : 0;
  }

  double nanoseconds() const { return 0.01 * rows * depth * units; }
};

bool DenseShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const mxnet::TShape& data = (*in)[0];
  if (!mxnet::shape_is_known(data)) return false;
  const Layer layer(attrs, data);
  Settle(attrs, 1, Shaped({layer.units, layer.depth}), &(*in)[1]);
  if (layer.has_bias) Settle(attrs, 2, Shaped({layer.units}), &(*in)[2]);
  mxnet::TShape made = layer.flattens ? Shaped({data[0], layer.units}) : data;
  made[made.ndim() - 1] = layer.units;
  (*out)[0] = made;
  return true;
}

/* By vectors: for numbers that cannot be packed otherwise, or where there is nothing better. */
void MultiplyByVectors(const dense::Product& product, int threads) {
  product::Compute({product.rows, product.depth, product.units, product.left, product.right, product.bias,
                    product.activation, product.adds, product.to, product.to_stride},
                   threads);
}

void RunDense(const dense::Product& product, int threads) {
  if (product.rows == 0 || product.units == 0) return;
  const dense::Means* best = dense::Best();
  if (!best || !best->multiply(product, threads)) MultiplyByVectors(product, threads);
}

void DenseForward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
                  const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  if (requests[0] == mxnet::kNullOp) return;
  const Layer layer(attrs, inputs[0].shape_);
  auto data = static_cast<const float*>(inputs[0].dptr_);
  auto weights = static_cast<const float*>(inputs[1].dptr_);
  const float* bias = layer.has_bias ? static_cast<const float*>(inputs[2].dptr_) : nullptr;
  RunDense({layer.rows, layer.depth, layer.units, {data, layer.depth, false},
            {weights, layer.depth, true}, nullptr, bias, product::kNone,
            requests[0] == mxnet::kAddTo, static_cast<float*>(outputs[0].dptr_), layer.units},
           Threads(layer.nanoseconds(), 1 << 10));
}

/* Inputs: the gradient of what forward made, data, weights. */
void DenseBackward(const NodeAttrs& attrs, const mxnet::OpContext&, const std::vector<TBlob>& inputs,
                   const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  const Layer layer(attrs, inputs[1].shape_);
  auto gradient = static_cast<const float*>(inputs[0].dptr_);
  auto data = static_cast<const float*>(inputs[1].dptr_);
  auto weights = static_cast<const float*>(inputs[2].dptr_);
  const int threads = Threads(layer.nanoseconds(), 1 << 10);
  auto to = [&](int i) { return static_cast<float*>(outputs[i].dptr_); };
  auto adds = [&](int i) { return requests[i] == mxnet::kAddTo; };
  if (requests[0] != mxnet::kNullOp)
    RunDense({layer.rows, layer.units, layer.depth, {gradient, layer.units, false},
              {weights, layer.depth, false}, nullptr, nullptr, product::kNone, adds(0), to(0),
              layer.depth},
             threads);
  if (requests[1] != mxnet::kNullOp)
    RunDense({layer.units, layer.rows, layer.depth, {gradient, layer.units, true},
              {data, layer.depth, false}, nullptr, nullptr, product::kNone, adds(1), to(1),
              layer.depth},
             threads);
  if (layer.has_bias && requests[2] != mxnet::kNullOp)
    dense::SumRows(gradient, layer.rows, layer.units, to(2), adds(2), threads);
}

std::vector<NodeEntry> DenseGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  std::vector<std::pair<std::string, std::string>> attrs;
  for (const char* key : {"num_hidden", "no_bias", "flatten"}) {
    auto found = node->attrs.dict.find(key);
    if (found != node->attrs.dict.end()) attrs.emplace_back(*found);
  }
  ObjectPtr made = MakeNode("_backward_graphopt_dense", node->attrs.name + "_backward", attrs);
  LegacyNode& backward = View(made);
  backward.control_deps.push_back(node);  // MXNet takes the shapes from there
  const std::vector<NodeEntry>& inputs = View(node).inputs;
  backward.inputs = {heads[0], inputs[0], inputs[1]};
  std::vector<NodeEntry> gradients;
  for (size_t i = 0; i < inputs.size(); ++i)
    gradients.emplace_back(made, static_cast<uint32_t>(i), 0);
  return gradients;
}

void RegisterDense() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__("graphopt_dense");
  forward.get_num_inputs = LegacyFunction(&ProductInputs);
  forward.set_num_outputs(1);
  SetAttribute<mxnet::FInferShape>(forward, "FInferShape", LegacyFunction(&DenseShape));
  SetAttribute<nnvm::FInferType>(forward, "FInferType", LegacyFunction(&ConvolutionsType));
  SetAttribute<mxnet::FCompute>(forward, "FCompute<cpu>", LegacyFunction(&DenseForward));
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&UnlessZeros<DenseGradient>));
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_dense");
  backward.set_num_inputs(3);
  backward.get_num_outputs = LegacyFunction(&ProductInputs);
  SetAttribute<nnvm::TIsBackward>(backward, "TIsBackward", true);
  SetAttribute<mxnet::FCompute>(backward, "FCompute<cpu>", LegacyFunction(&DenseBackward));
}

}  // namespace graphopt
