/*
 * Graphs of some small nodes, run from the first to the last by the thread that calls them.
 *
 * An executor hands such a graph to MXNet's engine, whose thread takes 20 to 30 us to wake; what it computes
 * takes a few. Here nothing is pushed: inputs are waited for, and outputs are arrays that nobody else has yet.
 */
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fused.h"
#include "product_operator.h"

namespace graphopt {

class SmallGraph {
 public:
  /* An array of a dtype and shape, by its number: what every call reads of `fixed`, if that is not null; if
   * `is_given` what a call gives next; else memory of the graph. */
  int64_t AddArray(int dtype, const mxnet::TShape& shape, void* fixed, bool is_given) {
    const int64_t number = blobs_.size();
    blobs_.push_back({Blob(dtype, shape), number});
    if (fixed) {
      fixed_.emplace_back(number, fixed);
    } else if (is_given) {
      given_.push_back(number);
    } else {
      own_.emplace_back(new char[Bytes(blobs_.back().blob) + kLineBytes]);
      blobs_.back().blob.dptr_ = Aligned<char>(own_.back().get());
    }
    return number;
  }

  /* The same numbers in another shape. */
  int64_t AddView(int64_t of, const mxnet::TShape& shape) {
    const int64_t number = blobs_.size();
    blobs_.push_back({Blob(blobs_.at(of).blob.type_flag_, shape), blobs_[of].root});
    return number;
  }

  /* A node that runs after those before it; `is_product`, graphopt_product and not graphopt_fused. */
  void AddNode(bool is_product, NodeAttrs attrs, const std::vector<int64_t>& in,
               const std::vector<int64_t>& out) {
    for (auto numbers : {&in, &out})
      for (int64_t number : *numbers) blobs_.at(number);
    Plan* plan = is_product ? nullptr : FindPlan(attrs, false);
    nodes_.push_back({plan, std::move(attrs), in, out});
  }

  /* `given`: NDArrays, in the order in which they were added; the first `inputs` are read. */
  void Run(void** given, int64_t inputs) {
    for (size_t i = 0; i < given_.size(); ++i) Find(given_[i], given[i], static_cast<int64_t>(i) < inputs);
    for (const auto& [number, array] : fixed_) Find(number, array, true);
    for (Place& place : blobs_) place.blob.dptr_ = blobs_[place.root].blob.dptr_;
    for (const Node& node : nodes_) Run(node);
  }

 private:
  struct Place {
    TBlob blob;
    int64_t root;  // whose memory it has
  };
  struct Node {
    Plan* plan;  // null of a product
    NodeAttrs attrs;
    std::vector<int64_t> in, out;
  };

  static TBlob Blob(int dtype, const mxnet::TShape& shape) {
    TBlob blob;
    blob.shape_ = shape;
    blob.type_flag_ = dtype;
    return blob;
  }

  /* Where an array is once it is computed, in plain order, into which MXNet brings what oneDNN has laid out in
   * another. */
  void Find(int64_t number, void* array, bool is_read) {
    int storage = mxnet::kDefaultStorage;
    if (MXNDArrayGetStorageType(array, &storage) != 0) Fail(MXGetLastError());
    if (storage != mxnet::kDefaultStorage) Fail("an array that a small graph reads is not dense");
    if ((is_read && MXNDArrayWaitToRead(array) != 0) ||
        MXNDArrayGetData(array, &blobs_[number].blob.dptr_) != 0)
      Fail(MXGetLastError());
  }

  std::vector<TBlob> BlobsAt(const std::vector<int64_t>& numbers) const {
    std::vector<TBlob> found;
    for (int64_t number : numbers) found.push_back(blobs_[number].blob);
    return found;
  }

  void Run(const Node& node) const {
    const std::vector<TBlob> in = BlobsAt(node.in), out = BlobsAt(node.out);
    const std::vector<OpReqType> requests(out.size(), mxnet::kWriteTo);
    if (!node.plan) return ComputeProduct(node.attrs, in, requests, out, 1);
    Call call;
    call.plan = node.plan;
    for (const TBlob& blob : in) call.in.push_back(&blob);
    for (const TBlob& blob : out) call.out.push_back(&blob);
    call.wanted = requests;
    call.most_threads = 1;
    graphopt::Run(call);
  }

  std::vector<Place> blobs_;
  std::vector<std::pair<int64_t, void*>> fixed_;
  std::vector<int64_t> given_;
  std::vector<std::unique_ptr<char[]>> own_;
  std::vector<Node> nodes_;
};

}  // namespace graphopt
