/*
 * Gradients of nodes that are marked to be computed again and whose values are kept all the same.
 *
 * MXNet makes the gradient of a marked node from the node's repetition: it reads what is computed
 * again, and waits for the repetition, which therefore runs even if nobody reads it. Where the value is
 * kept by an identity behind the node, the gradient waits for the node itself instead, and MXNet drops
 * the repetition.
 */
#pragma once

#include <mutex>
#include <unordered_map>

#include "legacy.h"

namespace graphopt {

std::mutex watched_mutex;
std::unordered_map<const nnvm::Op*, nnvm::FGradient> watched;  // with MXNet's own functions

nnvm::FGradient GradientOf(const nnvm::Op* op) {
  std::lock_guard<std::mutex> lock(watched_mutex);
  return watched.at(op);
}

/* The node that `node` repeats, if one of the gradients `heads` comes from the identity behind it. */
ObjectPtr FirstOf(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  const std::string& name = View(node).name;
  for (const NodeEntry& head : heads) {
    if (!head.node || View(head.node).control_deps.empty()) continue;
    const LegacyNode& identity = View(View(head.node).control_deps[0]);
    if (identity.inputs.size() != 1) continue;
    const ObjectPtr& first = identity.inputs[0].node;
    if (first != node && View(first).op == View(node).op && View(first).name + "_mirror" == name)
      return first;
  }
  return nullptr;
}

std::vector<NodeEntry> KeptGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  std::vector<NodeEntry> gradients = GradientOf(View(node).op)(node, heads);
  if (!Flag(node->attrs, "__graphopt_kept__")) return gradients;
  const ObjectPtr first = FirstOf(node, heads);
  if (!first) return gradients;
  for (const NodeEntry& gradient : gradients)
    for (ObjectPtr& before : View(gradient.node).control_deps)
      if (before == node) before = first;
  return gradients;
}

/* From now on the gradients of an operator look for nodes whose values are kept. */
void WatchGradient(const char* name) {
  const nnvm::Op* op = nnvm::Op::Get(name);
  {
    std::lock_guard<std::mutex> lock(watched_mutex);
    if (watched.count(op)) return;
    const auto* table =
        static_cast<const nnvm::OpMap<nnvm::FGradient>*>(nnvm::Op::GetAttrMap("FGradient")->data_.pheap);
    if (op->index_ >= table->data_.size() || !table->data_[op->index_].second) return;
    watched[op] = table->data_[op->index_].first;
  }
  SetAttribute<nnvm::FGradient>(*op, "FGradient", LegacyFunction(&KeptGradient));
}

}  // namespace graphopt
