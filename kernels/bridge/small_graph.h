/*
 * Graphs of some small nodes, run from the first to the last by the thread that calls them.
 *
 * An executor hands such a graph to MXNet's engine, whose thread takes 20 to 30 us to wake; what it computes
 * takes a few.
 */
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dense_operator.h"
#include "dropout_operator.h"
#include "fused.h"
#include "product_operator.h"
#include "small_layouts.h"
#include "small_norm.h"

namespace graphopt {

/* Arrays by number, and nodes that compute some of others. Where arrays are differs from call to call. */
class SmallGraph {
 public:
  enum Role { kOwn, kRead, kMade };  // memory of the graph, or what a call gives
  /* graphopt_fused, graphopt_product, FullyConnected, Concat, slices of one array, Embedding, BatchNorm, and
   * graphopt_dropout, which has an output more: a number, whether it dropped anything. */
  enum Kind { kFused, kProduct, kDense, kJoin, kCut, kLookup, kNorm, kDropout };

  struct Place {
    TBlob blob;
    int64_t root;  // whose memory it has
  };
  struct Node {
    Kind kind;
    NodeAttrs attrs;
    std::vector<int64_t> in, out;
    Plan *plan, *backward;  // of a fused one; that of its gradients is null where nobody wants them
    Parts parts;            // of a join, or a cut
  };

  SmallGraph() = default;
  SmallGraph(const SmallGraph&) = delete;
  virtual ~SmallGraph() = default;

  /* An array of a dtype and shape, by its number; what all calls read of `fixed`, if that is not null. */
  virtual int64_t Add(int dtype, const mxnet::TShape& shape, Role role, void* fixed) = 0;

  /* The same numbers in another shape. */
  int64_t AddView(int64_t of, const mxnet::TShape& shape) {
    const int64_t number = places_.size();
    places_.push_back(places_.at(of));
    places_.back().blob.shape_ = shape;
    return number;
  }

  /* A node that runs after those before it. */
  void AddNode(Kind kind, NodeAttrs attrs, const std::vector<int64_t>& in, const std::vector<int64_t>& out,
               bool learns) {
    for (auto numbers : {&in, &out})
      for (int64_t number : *numbers) places_.at(number);
    Plan* plan = kind == kFused ? FindPlan(attrs, false) : nullptr;
    Parts parts;
    if (kind == kJoin || kind == kCut)
      parts = {std::stoll(AttributeOf(attrs, "outer")), std::stoll(AttributeOf(attrs, "begin"))};
    nodes_.push_back({kind, std::move(attrs), in, out, plan, nullptr, parts});
    if (plan && learns) nodes_.back().backward = FindPlan(nodes_.back().attrs, true);
  }

 protected:
  using Places = std::vector<Place>;

  int64_t AddArray(int dtype, const mxnet::TShape& shape, Role role) {
    TBlob blob;
    blob.shape_ = shape;
    blob.type_flag_ = dtype;
    const int64_t number = places_.size();
    places_.push_back({blob, number});
    if (role != kOwn) return number;
    own_.push_back({number, own_bytes_});
    own_bytes_ += Align(Bytes(blob));
    return number;
  }

  struct Own {
    int64_t number, at;  // in bytes
  };

  /* Puts memory of the graph where it is, and views where what they are views of is. */
  void Settle(char* own, Places* places) const {
    for (const Own& one : own_) (*places)[one.number].blob.dptr_ = own + one.at;
    for (Place& place : *places) place.blob.dptr_ = (*places)[place.root].blob.dptr_;
  }

  static std::vector<TBlob> BlobsAt(const Places& places, const std::vector<int64_t>& numbers) {
    std::vector<TBlob> found;
    for (int64_t number : numbers) found.push_back(places[number].blob);
    return found;
  }

  void Run(const Node& node, const Places& places, bool is_train, Helpers* helpers = nullptr) const {
    const std::vector<TBlob> in = BlobsAt(places, node.in), out = BlobsAt(places, node.out);
    const std::vector<OpReqType> requests(out.size(), mxnet::kWriteTo);
    if (node.kind == kProduct) return ComputeProduct(node.attrs, in, requests, out, most_threads_, helpers);
    if (node.kind == kDense) return RunLayer(node, in, out[0]);
    if (node.kind == kJoin) return node.parts.Copy<true>(out[0], in.data(), in.size());
    if (node.kind == kCut) return node.parts.Copy<false>(in[0], out.data(), out.size());
    if (node.kind == kLookup) return LookUp(in[0], in[1], out[0]);
    if (node.kind == kNorm) return SmallNorm(node.attrs, in, out).Forward(is_train);
    if (node.kind == kDropout) {
      *static_cast<float*>(out[1].dptr_) = is_train;
      return Drop(node, in[1], in[0], out[0], is_train, mxnet::kWriteTo);
    }
    Call call;
    call.plan = node.plan;
    for (const TBlob& blob : in) call.in.push_back(&blob);
    for (const TBlob& blob : out) call.out.push_back(&blob);
    call.wanted = requests;
    call.most_threads = most_threads_;
    graphopt::Run(call);
  }

  void RunLayer(const Node& node, const std::vector<TBlob>& in, const TBlob& out) const {
    const Layer layer(node.attrs, in[0].shape_);
    Multiply(node, {layer.rows, layer.depth, layer.units, {static_cast<const float*>(in[0].dptr_), layer.depth, false},
                    {static_cast<const float*>(in[1].dptr_), layer.depth, true}, nullptr,
                    layer.has_bias ? static_cast<const float*>(in[2].dptr_) : nullptr, product::kNone, false,
                    static_cast<float*>(out.dptr_), layer.units});
  }

  /* Forward or backward. */
  void Drop(const Node& node, const TBlob& seed, const TBlob& from, const TBlob& to, bool is_train,
            OpReqType request) const {
    const int64_t count = from.shape_.Size();
    DropElements(node.attrs, seed, from, to, is_train, request,
                 std::min(most_threads_, Threads(kDropoutNs * count, count)));
  }

  /* Of a dense layer, forward or backward. */
  void Multiply(const Node& node, const dense::Product& product) const {
    const double nanoseconds = 0.014 * product.rows * product.depth * product.units;
    const int threads = std::min(Threads(nanoseconds, 1 << 10), most_threads_);
    if (Flag(node.attrs, "by_best")) return RunDense(product, threads);
    if (threads > 1) return MultiplyByVectors(product, threads);
    if (product.bias)
      for (int64_t row = 0; row < product.rows; ++row)
        std::memcpy(product.to + row * product.units, product.bias, product.units * sizeof(float));
    MultiplyOne(product.rows, product.depth, product.units, product.left, product.right, product.to, product.to_stride,
                product.adds || product.bias);
  }

  Places places_;
  int most_threads_ = 1;
  std::vector<Node> nodes_;
  std::vector<Own> own_;
  int64_t own_bytes_ = 0;
};

/* For inference. Nothing is pushed to MXNet's engine: inputs are waited for, and outputs are arrays that nobody else
 * has yet. One call at a time. */
class SmallInference : public SmallGraph {
 public:
  int64_t Add(int dtype, const mxnet::TShape& shape, Role role, void* fixed) override {
    const int64_t number = AddArray(dtype, shape, role);
    if (fixed)
      fixed_.emplace_back(number, fixed);
    else if (role != kOwn)
      given_.push_back(number);
    return number;
  }

  /* `given`: NDArrays, in the order in which they were added; the first `inputs` are read. */
  void Run(void** given, int64_t inputs) {
    for (size_t i = 0; i < given_.size(); ++i) Find(given_[i], given[i], static_cast<int64_t>(i) < inputs);
    for (const auto& [number, array] : fixed_) Find(number, array, true);
    if (!memory_) memory_.reset(new char[own_bytes_ + kLineBytes]);
    Settle(Aligned<char>(memory_.get()), &places_);
    if (largest_cost_ < 0) largest_cost_ = LargestCost();
    const Helpers::Hired helpers(Threads(largest_cost_, kMostTasks) - 1);
    for (const Node& node : nodes_) SmallGraph::Run(node, places_, false, helpers.get());
  }

 private:
  /* Nanoseconds of one thread, of the largest of the products that helpers share. */
  double LargestCost() const {
    double most = 0;
    for (const Node& node : nodes_) {
      if (node.kind != kProduct || Flag(node.attrs, "tiled")) continue;
      most = std::max(most, ProductSizes(node.attrs, places_[node.in[0]].blob, places_[node.out[0]].blob).Cost());
    }
    return most;
  }

  /* Where an array is once it is computed, in plain order, into which MXNet brings what oneDNN has laid out in
   * another. */
  void Find(int64_t number, void* array, bool is_read) {
    int storage = mxnet::kDefaultStorage;
    if (MXNDArrayGetStorageType(array, &storage) != 0) Fail(MXGetLastError());
    if (storage != mxnet::kDefaultStorage) Fail("an array that a small graph reads is not dense");
    if ((is_read && MXNDArrayWaitToRead(array) != 0) ||
        MXNDArrayGetData(array, &places_[number].blob.dptr_) != 0)
      Fail(MXGetLastError());
  }

  double largest_cost_ = -1;  // not known yet
  std::vector<std::pair<int64_t, void*>> fixed_;
  std::vector<int64_t> given_;
  std::unique_ptr<char[]> memory_;
};

}  // namespace graphopt
