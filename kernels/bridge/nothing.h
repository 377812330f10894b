/*
 * Gradients of MXNet's operators to which nothing comes back.
 *
 * Behind what has no gradient, as an order, MXNet makes zeros like the input. Operators that pass them on as zeros,
 * as elementwise ones, make them like their own inputs, up to arrays that the user holds. The others compute with
 * them; but autograd keeps only values that some gradient reads, and where it has not kept the one that zeros are to be
 * like, the process ends. So the operators that graphopt.batch brings rows together with, and those that most of its
 * rows come from, pass zeros on as well.
 */
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "legacy.h"

namespace graphopt {

constexpr const char* kComputing[] = {"Concat",    "gather_nd",   "add_n",          "SliceChannel", "where",
                                      "batch_dot", "Convolution", "FullyConnected", "LayerNorm"};

nnvm::FGradient plain_gradients[std::size(kComputing)];

template <size_t at>
std::vector<NodeEntry> PlainGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  return plain_gradients[at](node, heads);
}

template <size_t at>
void PassZerosBy() {
  const nnvm::Op* op = nnvm::Op::Get(kComputing[at]);
  plain_gradients[at] = nnvm::Op::GetAttr<nnvm::FGradient>("FGradient")[op];
  SetAttribute<nnvm::FGradient>(*op, "FGradient", LegacyFunction(&UnlessZeros<PlainGradient<at>>));
}

template <size_t... at>
void PassZerosByEach(std::index_sequence<at...>) {
  (PassZerosBy<at>(), ...);
}

void PassZeros() { PassZerosByEach(std::make_index_sequence<std::size(kComputing)>()); }

}  // namespace graphopt
