/*
 * MXNet's graph structures as its wheel was compiled.
 *
 * The MXNet wheel was built by GCC 4.8. Two things have changed in the ABI since, and this file
 * speaks the old form of both: how std::function passes arguments by value (LegacyFunction), and the
 * size of std::unordered_map, which moves the members of nnvm::Node (LegacyNode). Compile with
 * -fno-access-control: nnvm keeps what is needed here private.
 */
#pragma once

#include <mxnet/ndarray.h>
#include <dmlc/any.h>
#include <mxnet/c_api.h>
#include <mxnet/op_attr_types.h>
#include <nnvm/op.h>
#include <nnvm/op_attr_types.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace graphopt {

using mxnet::OpReqType;
using mxnet::TBlob;
using nnvm::NodeAttrs;
using nnvm::NodeEntry;
using nnvm::ObjectPtr;

[[noreturn]] void Fail(const std::string& what) { throw dmlc::Error("graphopt: " + what); }

/* The type of a gradient that a node is given, which is that of its output: nothing else looks at it before its bytes are
 * read. */
int TypeOfHead(const NodeAttrs& attrs, int given, int wanted) {
  if (given != -1 && given != wanted)
    Fail("a gradient of an output of node " + attrs.name + " has type code " + std::to_string(given) + ", the output " +
         std::to_string(wanted) + "; cast it");
  return wanted;
}

/* Refuses a gradient of fewer or more numbers than its output; MXNet takes any shape of as many. */
void RequireSizeOfHead(const NodeAttrs& attrs, const mxnet::TShape& given, const mxnet::TShape& wanted) {
  if (!mxnet::shape_is_known(given) || !mxnet::shape_is_known(wanted) || given.Size() == wanted.Size()) return;
  std::ostringstream told;
  told << "a gradient of an output of node " << attrs.name << " has shape " << given << ", the output " << wanted;
  Fail(told.str());
}

bool IsStated(int type) { return type != -1; }
bool IsStated(const mxnet::TShape& shape) { return mxnet::shape_is_known(shape); }

/* The type or the shape of a gradient that a node writes. An array that the user marked may have another: it is refused,
 * as nothing else looks at it before its bytes are written. */
template <typename Fact>
void SettleGradient(const NodeAttrs& attrs, const Fact& wanted, Fact* gradient) {
  if (IsStated(*gradient) && IsStated(wanted) && *gradient != wanted) {
    std::ostringstream told;
    told << "a gradient of node " << attrs.name << " is to be written to an array of another shape or type code ("
         << *gradient << ") than its input has (" << wanted << "); mark one like the input";
    Fail(told.str());
  }
  *gradient = wanted;
}

template <typename R, typename... Args>
R CallByValue(const std::_Any_data& data, Args... args) {
  return (*data._M_access<R (*)(Args...)>())(args...);
}

/* A std::function that code built by GCC 4.8 can call: arguments travel by value. */
template <typename R, typename... Args>
std::function<R(Args...)> LegacyFunction(R (*function)(Args...)) {
  std::function<R(Args...)> made = function;
#if GRAPHOPT_LEGACY_ABI
  R (*invoker)(const std::_Any_data&, Args...) = &CallByValue<R, Args...>;
  std::memcpy(&made._M_invoker, &invoker, sizeof(invoker));
#endif
  return made;
}

/* nnvm::Node as MXNet sees it. */
struct LegacyNode {
#if GRAPHOPT_LEGACY_ABI
  static constexpr size_t kMapSize = 48;
#else
  static constexpr size_t kMapSize = sizeof(std::unordered_map<std::string, std::string>);
#endif
  const nnvm::Op* op;
  std::string name;
  char dict[kMapSize];
  dmlc::any parsed;
  std::vector<std::shared_ptr<nnvm::Symbol>> subgraphs;
  std::vector<NodeEntry> inputs;
  std::vector<ObjectPtr> control_deps;
  dmlc::any info;
};

LegacyNode& View(const ObjectPtr& node) { return *reinterpret_cast<LegacyNode*>(node.get()); }

/* A node of `op` as MXNet makes it, which so has MXNet's layout. */
ObjectPtr MakeNode(const char* op, const std::string& name,
                   const std::vector<std::pair<std::string, std::string>>& attrs) {
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : attrs) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  SymbolHandle handle = nullptr;
  if (MXSymbolCreateAtomicSymbol(const_cast<nnvm::Op*>(nnvm::Op::Get(op)), keys.size(), keys.data(),
                                 values.data(), &handle) != 0)
    Fail("cannot make node " + name + ": " + MXGetLastError());
  ObjectPtr made = (*static_cast<std::vector<NodeEntry>*>(handle))[0].node;  // all a Symbol has
  MXSymbolFree(handle);
  View(made).name = name;
  return made;
}

/* Whether a gradient is known to be zero: what MXNet's graphs have behind operators without one, and where nobody reads
 * an output. */
bool IsZeros(const NodeEntry& gradient) {
  static const nnvm::Op *like = nnvm::Op::Get("_identity_with_attr_like_rhs"),
                        *zeros[] = {nnvm::Op::Get("_zeros"), nnvm::Op::Get("zeros_like"),
                                    nnvm::Op::Get("_zeros_without_dtype")};
  if (!gradient.node) return false;
  const LegacyNode& node = View(gradient.node);
  if (node.op == like) return IsZeros(node.inputs[0]);
  return std::find(std::begin(zeros), std::end(zeros), node.op) != std::end(zeros);
}

/* The gradient of an input that has none. */
NodeEntry ZerosLike(const ObjectPtr& node, uint32_t input) {
  ObjectPtr made = MakeNode("zeros_like", node->attrs.name + "_in" + std::to_string(input) + "_backward", {});
  View(made).inputs = {View(node).inputs[input]};
  return NodeEntry(made, 0, 0);
}

using GradientFunction = std::vector<NodeEntry>(const ObjectPtr&, const std::vector<NodeEntry>&);

/* As `gradient`, but nothing is computed where nothing comes: as MXNet's operators have it. Otherwise the square root of
 * a zero of which only the order is asked for would have the gradient 0 * inf. */
template <GradientFunction gradient>
std::vector<NodeEntry> UnlessZeros(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  if (!std::all_of(heads.begin(), heads.end(), IsZeros)) return gradient(node, heads);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < View(node).inputs.size(); ++i) gradients.push_back(ZerosLike(node, i));
  return gradients;
}

/* Gradients of all inputs of a node, by one node that reads its head gradient and its inputs. */
std::vector<NodeEntry> GradientsByInputs(const char* op, const ObjectPtr& node, const NodeEntry& head,
                                         const std::vector<std::pair<std::string, std::string>>& attrs) {
  ObjectPtr made = MakeNode(op, node->attrs.name + "_backward", attrs);
  View(made).inputs = {head};
  std::vector<NodeEntry> gradients;
  for (const NodeEntry& input : View(node).inputs) {
    View(made).inputs.push_back(input);
    gradients.emplace_back(made, gradients.size(), 0);
  }
  return gradients;
}

/* One attribute of one operator, handed to the callback of nnvm::Op::UpdateAttrMap. */
template <typename Value>
struct Pending {
  static const nnvm::Op* op;
  static const Value* value;
  static void Store(dmlc::any* map) {
    // Every attribute used here exists already, so the map is MXNet's own.
    auto& table = *static_cast<nnvm::OpMap<Value>*>(map->data_.pheap);
    if (table.data_.size() <= op->index_)
      table.data_.resize(op->index_ + 1, std::make_pair(Value(), 0));
    table.data_[op->index_] = std::make_pair(*value, 10);
  }
};
template <typename Value> const nnvm::Op* Pending<Value>::op = nullptr;
template <typename Value> const Value* Pending<Value>::value = nullptr;

template <typename Value>
void SetAttribute(const nnvm::Op& op, const char* name, const Value& value) {
  if (nnvm::Op::GetAttrMap(name) == nullptr) Fail(std::string("MXNet has no attribute ") + name);
  Pending<Value>::op = &op;
  Pending<Value>::value = &value;
  nnvm::Op::UpdateAttrMap(name, LegacyFunction(&Pending<Value>::Store));
}

/* Whether a boolean attribute of a node is set. */
bool Flag(const NodeAttrs& attrs, const char* key) {
  auto found = attrs.dict.find(key);
  return found != attrs.dict.end() && (found->second == "True" || found->second == "1" ||
                                       found->second == "true");
}

/* An attribute's text, or what is meant where there is none. */
std::string TextOf(const NodeAttrs& attrs, const char* key, const char* otherwise) {
  auto found = attrs.dict.find(key);
  return found == attrs.dict.end() ? otherwise : found->second;
}

/* What an NDArray begins with points to this. Its header has one member less unless it is told of
 * MKL-DNN, which the packages are built with. VariablesFit has to say yes before it is relied on. */
struct LegacyChunk {
  mxnet::Storage::Handle data;
  std::vector<mxnet::Storage::Handle> parts;
  std::shared_ptr<void> memory;
  mxnet::engine::Var* variable;
};

const std::string& AttributeOf(const NodeAttrs& attrs, const char* key) {
  auto found = attrs.dict.find(key);
  if (found == attrs.dict.end()) Fail("node " + attrs.name + " has no attribute '" + key + "'");
  return found->second;
}

}  // namespace graphopt
