/*
 * The operator graphopt_keeping_recurrence: graphopt_recurrence for inference, whose matrices are packed
 * when they have been written, and not in every call.
 *
 * Attributes, inputs and outputs are those of graphopt_recurrence without a stash. MXNet's engine counts
 * how often the memory of an array was written (see versions.h), and an operator of its own sees the
 * count of all that was started before it. So matrices have to be variables of the graph, which nothing
 * in the graph writes, and writes that are held back to be run in bulk with the node have to be
 * flushed before it is started: the count rises when the whole bulk is done.
 *
 * Packs are shared by all nodes that read equal matrices by the same program, and gone with the last of
 * these. Equal is what has the same digest: some counted writes change nothing, as binding an executor does,
 * and a net has a node for each shape of its inputs.
 */
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "recurrence_operator.h"
#include "written.h"

namespace graphopt {

using mxnet::NDArray;
using mxnet::OpStatePtr;
using SharedChunk = std::shared_ptr<LegacyChunk>;

const SharedChunk& ChunkOf(const NDArray& array) {
  return *reinterpret_cast<const SharedChunk*>(&array);  // what it begins with
}

/* What packs are made of: a program, and a digest of each of its matrices. */
using Origin = std::pair<const Program*, std::vector<uint64_t>>;

/* Packed matrices of one direction. */
class Packs {
 public:
  /* `call` has the matrices. */
  Packs(Origin origin, const RecurrenceCall& call)
      : origin_(std::move(origin)), memory_(new char[PackedBytes(*origin_.first) + kLineBytes]) {
    PackMatrices(*origin_.first, call, call.threads, at());
  }

  const Origin& origin() const { return origin_; }
  void* at() const { return Aligned<char>(memory_.get()); }

 private:
  Origin origin_;
  std::unique_ptr<char[]> memory_;
};

/* An array as it was seen: its memory, where in it, and how often written. */
struct Seen {
  SharedChunk chunk;  // as long as it is there, no other is at its address
  size_t offset, version;

  explicit Seen(const NDArray& array)
      : chunk(ChunkOf(array)), offset(array.byte_offset_), version(chunk->variable->version_) {}

  bool operator==(const Seen& other) const {
    return chunk == other.chunk && offset == other.offset && version == other.version;
  }
};

std::mutex packs_mutex;
std::map<Origin, std::weak_ptr<Packs>> known_packs;

std::shared_ptr<Packs> FindPacks(const Origin& origin) {
  std::lock_guard<std::mutex> lock(packs_mutex);
  auto found = known_packs.find(origin);
  return found == known_packs.end() ? nullptr : found->second.lock();
}

/* Makes packs known; returns others of the same origin if there are any by now. */
std::shared_ptr<Packs> Share(std::shared_ptr<Packs> packs) {
  std::lock_guard<std::mutex> lock(packs_mutex);
  for (auto at = known_packs.begin(); at != known_packs.end();)
    at = at->second.expired() ? known_packs.erase(at) : std::next(at);
  auto& known = known_packs[packs->origin()];
  if (auto other = known.lock()) return other;
  known = packs;
  return packs;
}

/* How many there are. */
int64_t CountPacks() {
  std::lock_guard<std::mutex> lock(packs_mutex);
  return std::count_if(known_packs.begin(), known_packs.end(),
                       [](const auto& known) { return !known.second.expired(); });
}

/* A node of one engine; calls of it never overlap, since MXNet's engine knows its state. */
class KeepingNode {
 public:
  explicit KeepingNode(const NodeAttrs& attrs) {
    attrs_.name = attrs.name;
    for (const auto& [key, value] : attrs.dict) attrs_.dict[key] = value;
    held_.resize(SignatureOf(attrs).directions);
  }

  const NodeAttrs& attrs() const { return attrs_; }

  /* The packs of a direction, made anew if its matrices were written or are others. */
  const void* PacksOf(const Program& program, const Direction& one,
                      const std::vector<NDArray>& inputs) {
    const auto first = inputs.begin() + one.places.matrices;
    const std::vector<Seen> seen(first, first + one.call.matrices.size());
    auto& [packs, before] = held_[one.number];
    if (packs && before == seen) return packs->at();
    Origin origin{&program, {}};
    for (size_t i = 0; i < seen.size(); ++i) {
      const int64_t bytes = first[i].shape().Size() * mshadow::mshadow_sizeof(first[i].dtype());
      origin.second.push_back(Digest(one.call.matrices[i], bytes));
    }
    if (!packs || packs->origin() != origin) {
      packs = nullptr;  // old ones first, as they may be the last that hold much memory
      packs = FindPacks(origin);
      if (!packs) packs = Share(std::make_shared<Packs>(std::move(origin), one.call));
    }
    before = seen;
    return packs->at();
  }

 private:
  NodeAttrs attrs_;
  std::vector<std::pair<std::shared_ptr<Packs>, std::vector<Seen>>> held_;  // of each direction
};

OpStatePtr KeepingState(const NodeAttrs& attrs, mxnet::Context, const mxnet::ShapeVector&,
                        const std::vector<int>&) {
  return OpStatePtr::Create<KeepingNode>(attrs);
}

bool KeepingShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Extents extents = SettleShapes(attrs, in, out);
  out->back() = ScratchShape(attrs, kInference, extents, true);
  return IsKnown(SignatureOf(attrs), extents);
}

/* Arrays come as they are, and none of them is sparse. */
bool KeepingStorage(const NodeAttrs& attrs, int, mxnet::DispatchMode* mode, std::vector<int>* in,
                    std::vector<int>* out) {
  for (auto kinds : {in, out})
    for (int& kind : *kinds) {
      if (kind == mxnet::kUndefinedStorage) kind = mxnet::kDefaultStorage;
      if (kind != mxnet::kDefaultStorage) Fail("node " + attrs.name + " reads no sparse arrays");
    }
  *mode = mxnet::DispatchMode::kFComputeEx;
  return true;
}

/* Plain views of arrays; by MXNet itself, as what lies behind them depends on how it was built. */
std::vector<TBlob> BlobsOf(const std::vector<NDArray>& arrays) {
  std::vector<TBlob> blobs(arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) {
    void* data = nullptr;
    if (MXNDArrayGetData(const_cast<NDArray*>(&arrays[i]), &data) != 0) Fail(MXGetLastError());
    blobs[i].dptr_ = data;
    blobs[i].shape_ = arrays[i].shape();
    blobs[i].type_flag_ = arrays[i].dtype();
  }
  return blobs;
}

void KeepingForward(const OpStatePtr& state, const mxnet::OpContext&,
                    const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                    const std::vector<NDArray>& outputs) {
  KeepingNode& node = state.get_state<KeepingNode>();
  RunForward(node.attrs(), BlobsOf(inputs), requests, BlobsOf(outputs),
             [&](const Program& program, const Direction& one) {
               return node.PacksOf(program, one, inputs);
             });
}

/* Bytes of a node's packs. */
int64_t KeptBytes(const std::string& spec, bool lengths, bool bidirectional, bool indexed, bool by_vectors) {
  const int flags = (lengths ? kWithLengths : 0) + (indexed ? kIndexed : 0) + (by_vectors ? kByVectors : 0);
  return PackedBytes(ProgramBy(spec, kInference + flags)) * (bidirectional ? 2 : 1);
}

void RegisterKeeping() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& keeping = registry->__REGISTER_OR_GET__("graphopt_keeping_recurrence");
  keeping.get_num_inputs = LegacyFunction(&RecurrenceInputs);
  keeping.get_num_outputs = LegacyFunction(&RecurrenceOutputs);
  SetAttribute<mxnet::FInferShape>(keeping, "FInferShape", LegacyFunction(&KeepingShape));
  SetAttribute<nnvm::FInferType>(keeping, "FInferType", LegacyFunction(&RecurrenceType));
  SetAttribute<mxnet::FInferStorageType>(keeping, "FInferStorageType",
                                         LegacyFunction(&KeepingStorage));
  SetAttribute<nnvm::FInplaceOption>(keeping, "FInplaceOption", LegacyFunction(&RecurrencePairs));
  SetAttribute<mxnet::FCreateOpState>(keeping, "FCreateOpState", LegacyFunction(&KeepingState));
  SetAttribute<mxnet::FStatefulComputeEx>(keeping, "FStatefulComputeEx<cpu>",
                                          LegacyFunction(&KeepingForward));
  SetAttribute<nnvm::FGradient>(keeping, "FGradient", LegacyFunction(&RecurrenceGradient));
}

}  // namespace graphopt
