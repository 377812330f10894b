/*
 * A small graph that learns: its nodes forward, and the gradients of its inputs backward; see small_graph.h.
 *
 * What lies between the nodes is an output more (the stash), since a net may be called again before backward.
 */
#pragma once

#include <cstring>
#include <limits>
#include <vector>

#include "small_graph.h"

namespace graphopt {

class SmallTraining : public SmallGraph {
 public:
  int64_t Add(int dtype, const mxnet::TShape& shape, Role role, void*) override {
    const int64_t number = AddArray(dtype, shape, role);
    if (role == kRead) inputs_.push_back(number);
    return number;
  }
  /* Arrays that a call makes, or views of them, one of each. */
  void SetOutputs(std::vector<int64_t> numbers) { outputs_ = std::move(numbers); }

  /* By as many threads as are worth it, and not by the one that calls. */
  void SetLarge() { most_threads_ = std::numeric_limits<int>::max(); }

  bool is_small() const { return most_threads_ == 1; }
  int64_t inputs() const { return inputs_.size(); }
  int64_t outputs() const { return outputs_.size(); }  // without the stash
  const TBlob& input(int64_t i) const { return places_[inputs_[i]].blob; }
  const TBlob& output(int64_t i) const { return places_[outputs_[i]].blob; }
  int64_t stash_floats() const { return (own_bytes_ + kLineBytes) / sizeof(float); }

  /* `out`: the outputs, and behind them the stash; without that it is memory of this thread. */
  void Forward(const std::vector<TBlob>& in, const std::vector<TBlob>& out, bool is_train) const {
    const Places places = Placed(in, out.data(), StashIn(out));
    for (const Node& node : nodes_) Run(node, places, is_train);
  }

  /* Which inputs backward writes: moving statistics. */
  std::vector<uint32_t> Written() const {
    std::vector<uint32_t> found;
    for (const Node& node : nodes_)
      if (node.kind == kNorm)
        for (int i : {SmallNorm::kMovingMean, SmallNorm::kMovingVariance})
          found.push_back(static_cast<uint32_t>(InputOf(RootOf(node.in[i]))));
    return found;
  }

  /* `heads`: gradients of the outputs; `out` as forward made them; `gradients`: those of the inputs. */
  void Backward(const TBlob* heads, const std::vector<TBlob>& in, const std::vector<TBlob>& out,
                const std::vector<OpReqType>& requests, const std::vector<TBlob>& gradients) const {
    Pass pass{Placed(in, out.data(), StashIn(out)), requests, gradients, SlotsFor(requests)};
    for (size_t i = 0; i < outputs_.size(); ++i) {
      Slot& slot = pass.slots[places_[outputs_[i]].root];
      slot.at = static_cast<char*>(heads[i].dptr_);
      slot.state = State::kHead;
    }
    for (size_t i = nodes_.size(); i-- > 0;) Back(nodes_[i], &pass);
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (pass.slots[inputs_[i]].state == State::kNone && requests[i] != mxnet::kNullOp && requests[i] != mxnet::kAddTo)
        std::memset(gradients[i].dptr_, 0, Bytes(gradients[i]));
  }

 private:
  /* A gradient is not there yet, is given and must not be written, or is where it was written. */
  enum class State { kNone, kHead, kWritten };
  struct Slot {
    char* at = nullptr;  // where it is, or is to be written
    char* room = nullptr;
    bool is_wanted = false;
    State state = State::kNone;
  };
  struct Pass {
    Places places;
    const std::vector<OpReqType>& requests;
    const std::vector<TBlob>& gradients;
    std::vector<Slot> slots;  // by number of the root
  };

  /* Memory of this thread. */
  static char* Room(int which, int64_t bytes) {
    static thread_local std::vector<char> kept[3];
    if (static_cast<int64_t>(kept[which].size()) < bytes + kLineBytes) kept[which].resize(bytes + kLineBytes);
    return Aligned<char>(kept[which].data());
  }

  char* StashIn(const std::vector<TBlob>& out) const {
    return out.size() > outputs_.size() ? Aligned<char>(out.back().dptr_) : Room(0, own_bytes_);
  }

  Places Placed(const std::vector<TBlob>& in, const TBlob* out, char* stash) const {
    Places places = places_;
    for (size_t i = 0; i < inputs_.size(); ++i) places[inputs_[i]].blob.dptr_ = in[i].dptr_;
    for (size_t i = 0; i < outputs_.size(); ++i) places[places[outputs_[i]].root].blob.dptr_ = out[i].dptr_;
    Settle(stash, &places);
    return places;
  }

  /* Where gradients go, and which are wanted: those that an input's depends on. */
  std::vector<Slot> SlotsFor(const std::vector<OpReqType>& requests) const {
    std::vector<Slot> slots(places_.size());
    for (size_t i = 0; i < inputs_.size(); ++i) slots[inputs_[i]].is_wanted = requests[i] != mxnet::kNullOp;
    int64_t bytes = 0;
    for (const Node& node : nodes_) {
      bool is_wanted = false;
      for (int64_t number : node.in) is_wanted = is_wanted || slots[RootOf(number)].is_wanted;
      for (int64_t number : node.out) {
        slots[RootOf(number)].is_wanted = is_wanted;
        bytes += Align(Bytes(places_[number].blob));
      }
    }
    char* room = Room(1, bytes);
    for (const Node& node : nodes_)
      for (int64_t number : node.out) {
        slots[RootOf(number)].room = room;
        room += Align(Bytes(places_[number].blob));
      }
    return slots;
  }

  int64_t RootOf(int64_t number) const { return places_[number].root; }

  /* Where the gradient of an array is to be written next, and how. */
  OpReqType Take(int64_t number, Pass* pass, TBlob* to) const {
    const int64_t root = RootOf(number);
    Slot& slot = pass->slots[root];
    *to = places_[number].blob;
    to->dptr_ = nullptr;
    if (!slot.is_wanted) return mxnet::kNullOp;
    OpReqType request = mxnet::kAddTo;
    if (slot.state == State::kHead) {
      std::memcpy(slot.room, slot.at, Bytes(places_[root].blob));
      slot.at = slot.room;
    } else if (slot.state == State::kNone) {
      request = mxnet::kWriteTo;
      slot.at = slot.room;
      if (!slot.at) {
        const size_t input = InputOf(root);
        slot.at = static_cast<char*>(pass->gradients[input].dptr_);
        if (pass->requests[input] == mxnet::kAddTo) request = mxnet::kAddTo;
      }
    }
    slot.state = State::kWritten;
    to->dptr_ = slot.at;
    return request;
  }

  size_t InputOf(int64_t root) const {
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i] == root) return i;
    Fail("a small graph has no such input");
  }

  void Back(const Node& node, Pass* pass) const {
    bool is_there = false, is_wanted = false;
    for (int64_t number : node.out) is_there = is_there || pass->slots[RootOf(number)].state != State::kNone;
    for (int64_t number : node.in) is_wanted = is_wanted || pass->slots[RootOf(number)].is_wanted;
    if (!is_there || !is_wanted) return;
    std::vector<TBlob> heads = BlobsAt(places_, node.out);
    for (size_t i = 0; i < heads.size(); ++i) {
      Slot& slot = pass->slots[RootOf(node.out[i])];
      if (slot.state == State::kNone) {  // no node reads it
        slot.at = slot.room;
        std::memset(slot.at, 0, Bytes(heads[i]));
      }
      heads[i].dptr_ = slot.at;
    }
    switch (node.kind) {
      case kDense: return BackDense(node, heads[0], pass);
      case kJoin: return BackJoin(node, heads[0], pass);
      case kCut: return BackCut(node, heads, pass);
      case kLookup: return BackLookup(node, heads[0], pass);
      case kNorm: return BackNorm(node, heads[0], pass);
      case kDropout: return BackDropout(node, heads[0], pass);
      default: return BackFused(node, heads, pass);
    }
  }

  void BackJoin(const Node& node, const TBlob& head, Pass* pass) const {
    Parts parts = node.parts;
    for (int64_t number : node.in) {
      TBlob to;
      const OpReqType request = Take(number, pass, &to);
      if (request == mxnet::kWriteTo) parts.Copy<false>(head, &to, 1);
      if (request == mxnet::kAddTo) AddTo(to, [&](const TBlob& part) { parts.Copy<false>(head, &part, 1); });
      parts.begin += to.shape_.Size() / parts.outer;
    }
  }

  void BackCut(const Node& node, const std::vector<TBlob>& heads, Pass* pass) const {
    TBlob to;
    const OpReqType request = Take(node.in[0], pass, &to);
    auto fill = [&](const TBlob& whole) {
      std::memset(whole.dptr_, 0, Bytes(whole));
      node.parts.Copy<true>(whole, heads.data(), heads.size());
    };
    if (request == mxnet::kWriteTo) fill(to);
    if (request == mxnet::kAddTo) AddTo(to, fill);
  }

  void BackLookup(const Node& node, const TBlob& head, Pass* pass) const {
    TBlob to;
    const OpReqType request = Take(node.in[1], pass, &to);
    if (request == mxnet::kWriteTo) std::memset(to.dptr_, 0, Bytes(to));
    if (request != mxnet::kNullOp) AddLookedUp(pass->places[node.in[0]].blob, head, to);
    if (Take(node.in[0], pass, &to) == mxnet::kWriteTo) std::memset(to.dptr_, 0, Bytes(to));
  }

  void BackNorm(const Node& node, const TBlob& head, Pass* pass) const {
    constexpr int kLearned = 3;  // data, gamma and beta
    float* at[kLearned];
    bool adds[kLearned];
    for (int i = 0; i < kLearned; ++i) {
      TBlob to;
      adds[i] = Take(node.in[i], pass, &to) == mxnet::kAddTo;
      at[i] = static_cast<float*>(to.dptr_);
    }
    const std::vector<TBlob> in = BlobsAt(pass->places, node.in), out = BlobsAt(pass->places, node.out);
    SmallNorm(node.attrs, in, out).Backward(static_cast<const float*>(head.dptr_), at, adds);
  }

  void BackDropout(const Node& node, const TBlob& head, Pass* pass) const {
    TBlob to, of_seed;
    const OpReqType request = Take(node.in[0], pass, &to);
    if (Take(node.in[1], pass, &of_seed) == mxnet::kWriteTo) std::memset(of_seed.dptr_, 0, Bytes(of_seed));
    const bool was_train = *static_cast<const float*>(pass->places[node.out[1]].blob.dptr_) != 0;
    Drop(node, pass->places[node.in[1]].blob, head, to, was_train, request);
  }

  /* What `make` writes is added to an array. */
  template <typename Make>
  static void AddTo(const TBlob& to, const Make& make) {
    TBlob made = to;
    made.dptr_ = Room(2, Bytes(to));
    make(made);
    AddNumbers(to.type_flag_, static_cast<const char*>(made.dptr_), to.shape_.Size(), static_cast<char*>(to.dptr_));
  }

  void BackFused(const Node& node, const std::vector<TBlob>& heads, Pass* pass) const {
    std::vector<TBlob> from, to(node.in.size());
    for (const Operand& operand : node.backward->inputs) {
      if (operand.source == kHead)
        from.push_back(heads[operand.index]);
      else
        from.push_back(pass->places[(operand.source == kInput ? node.in : node.out)[operand.index]].blob);
    }
    std::vector<OpReqType> requests;
    for (size_t i = 0; i < to.size(); ++i) requests.push_back(Take(node.in[i], pass, &to[i]));
    Call call = BackwardCall(node.backward, false, from, requests, to);
    call.most_threads = most_threads_;
    graphopt::Run(call);
  }

  void BackDense(const Node& node, const TBlob& head, Pass* pass) const {
    const std::vector<TBlob> in = BlobsAt(pass->places, node.in);
    const Layer layer(node.attrs, in[0].shape_);
    auto at = [](const TBlob& blob) { return static_cast<float*>(blob.dptr_); };
    TBlob to;
    OpReqType request = Take(node.in[0], pass, &to);
    if (request != mxnet::kNullOp)
      Multiply(node, {layer.rows, layer.units, layer.depth, {at(head), layer.units, false},
                      {at(in[1]), layer.depth, false}, nullptr, nullptr, product::kNone, request == mxnet::kAddTo,
                      at(to), layer.depth});
    request = Take(node.in[1], pass, &to);
    if (request != mxnet::kNullOp)
      Multiply(node, {layer.units, layer.rows, layer.depth, {at(head), layer.units, true},
                      {at(in[0]), layer.depth, false}, nullptr, nullptr, product::kNone, request == mxnet::kAddTo,
                      at(to), layer.depth});
    request = layer.has_bias ? Take(node.in[2], pass, &to) : mxnet::kNullOp;
    if (request != mxnet::kNullOp)
      dense::SumRows(at(head), layer.rows, layer.units, at(to), request == mxnet::kAddTo,
                     std::min(most_threads_, Threads(0.1 * layer.rows * layer.units, 1 << 10)));
  }

  std::vector<int64_t> inputs_, outputs_;
};

}  // namespace graphopt
