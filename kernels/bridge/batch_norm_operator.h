/*
 * The operator graphopt_batch_norm: MXNet's BatchNorm along axis 1 of images, with the sum it goes into and the function
 * behind it; see batch_norm.h.
 *
 * Attributes: those of BatchNorm, of which `eps`, `momentum`, `fix_gamma` and `use_global_stats` count; `function`, "none",
 * "relu", "leaky" with `slope`, "clip" with `a_min` and `a_max`, "swish" or "hard_swish"; `residual`, there is an input to add before the function, for relu
 * only. Inputs: data, gamma, beta, moving mean, moving variance, the residual. Outputs: the result, and for backward the
 * mean and 1 / sqrt(variance + eps) of each channel. As with MXNet's, moving statistics are updated in backward, and
 * `fix_gamma` sets gamma to 1.
 *
 * It runs in blocks or in rows, as the data lie.
 */
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "batch_norm.h"
#include "convolutions_operator.h"
#include "fused_blocked.h"
#include "layouts.h"
#include "recurrence_shapes.h"

namespace graphopt {

constexpr size_t kNormInputs = 5;

bool HasResidual(const NodeAttrs& attrs) { return Flag(attrs, "residual"); }

uint32_t NormInputs(const NodeAttrs& attrs) { return kNormInputs + HasResidual(attrs); }

uint32_t NormVisible(const NodeAttrs&) { return 1; }

float NumberOf(const NodeAttrs& attrs, const char* key, const char* otherwise) {
  return std::strtof(TextOf(attrs, key, otherwise).c_str(), nullptr);
}

/* MXNet fixes gamma unless it is told otherwise. */
bool FixesGamma(const NodeAttrs& attrs) { return attrs.dict.count("fix_gamma") == 0 || Flag(attrs, "fix_gamma"); }

norm::Function FunctionOf(const NodeAttrs& attrs) {
  const std::string name = TextOf(attrs, "function", "none");
  if (name == "none") return norm::kNone;
  if (name == "relu") return norm::kRelu;
  if (name == "leaky") return norm::kLeaky;
  if (name == "clip") return norm::kClip;
  if (name == "swish") return norm::kSwish;
  if (name == "hard_swish") return norm::kHardSwish;
  Fail("node " + attrs.name + " has no function '" + name + "'");
}

bool NormShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  if (!mxnet::shape_is_known((*in)[0]) && mxnet::shape_is_known((*out)[0])) (*in)[0] = (*out)[0];
  const mxnet::TShape data = (*in)[0];
  if (!mxnet::shape_is_known(data)) return false;
  if (data.ndim() != 4) Fail("the data of node " + attrs.name + " are no images");
  for (size_t i = 1; i < kNormInputs; ++i) Settle(attrs, i, Shaped({data[1]}), &(*in)[i]);
  if (HasResidual(attrs)) Settle(attrs, kNormInputs, data, &(*in)[kNormInputs]);
  (*out)[0] = data;
  (*out)[1] = (*out)[2] = Shaped({data[1]});
  return true;
}

/* An array in a layout; the copy, if one is needed, lives as long as this. */
class InLayout {
 public:
  /* `layout`: null for rows. */
  InLayout(const NDArray& array, const Layout* layout) : array_(array) {
    const Layout* own = LayoutOf(array);
    if (array.IsView() || !layout) {
      array_ = InRows(array);
      if (layout) array_ = CopyIn(array_, *layout);
    } else if (!own || !AreEqual(*own, *layout)) {
      array_ = CopyIn(array, *layout);
      mended_layouts.fetch_add(1, std::memory_order_relaxed);
    }
    at_ = static_cast<const float*>(LayoutOf(array_) ? Raw(array_).dptr_ : array_.data().dptr_);
  }
  const float* at() const { return at_; }

 private:
  NDArray array_;
  const float* at_;
};

/* Where a result in a layout goes: to the array itself, or through a copy that is added to it. */
class OutLayout {
 public:
  OutLayout(const NDArray& array, const Layout* layout, OpReqType request) : array_(array), request_(request) {
    if (request == mxnet::kWriteTo || request == mxnet::kWriteInplace) {
      if (layout && !array_.IsView()) {
        array_.CreateMKLDNNData(*layout);
        at_ = static_cast<float*>(Raw(array_).dptr_);
        return;
      }
      if (!layout) {
        at_ = static_cast<float*>(AsRows(array_, request).dptr_);
        return;
      }
    }
    made_ = NDArray(array.shape(), array.ctx(), false, array.dtype());
    if (layout) made_.CreateMKLDNNData(*layout);
    at_ = static_cast<float*>(layout ? Raw(made_).dptr_ : made_.data().dptr_);
    is_apart_ = true;
  }
  float* at() const { return at_; }

  void Finish() {
    if (!is_apart_ || request_ == mxnet::kNullOp) return;
    const NDArray rows = InRows(made_);
    const float* from = static_cast<const float*>(rows.data().dptr_);
    float* to = static_cast<float*>(AsRows(array_, request_).dptr_);
    const int64_t size = array_.shape().Size();
    if (request_ == mxnet::kAddTo)
      for (int64_t i = 0; i < size; ++i) to[i] += from[i];
    else
      std::memcpy(to, from, size * sizeof(float));
  }

 private:
  NDArray array_, made_;
  OpReqType request_;
  float* at_ = nullptr;
  bool is_apart_ = false;
};

/* The layout to compute in: that of the first array that lies in blocks of 8 or 16 channels, else rows. */
class Common {
 public:
  explicit Common(std::initializer_list<const NDArray*> arrays) {
    for (const NDArray* array : arrays) {
      if (array->IsView()) continue;
      block_ = BlockOf(*array);
      if (IsFast(block_)) {
        layout_ = *LayoutOf(*array);  // a copy: an output may have the array's memory and change it
        calls_in_blocks.fetch_add(1, std::memory_order_relaxed);
        return;
      }
    }
    block_ = 0;
  }
  const Layout* layout() const { return block_ ? &layout_ : nullptr; }
  int64_t block() const { return block_ ? block_ : 1; }

 private:
  int block_ = 0;
  Layout layout_;
};

norm::Layer NormLayer(const NodeAttrs& attrs, const mxnet::TShape& shape, int64_t block) {
  const int64_t pixels = shape[2] * shape[3], tasks = std::max(shape[0], shape[1] / block);
  return {{shape[0], shape[1], pixels, block},
          FunctionOf(attrs),
          NumberOf(attrs, "a_min", "0"),
          NumberOf(attrs, "a_max", "0"),
          NumberOf(attrs, "slope", "0"),
          Threads((FunctionOf(attrs) == norm::kSwish ? 1.0 : 0.3) * shape.Size(), tasks)};
}

float* Row(const NDArray& array) { return static_cast<float*>(array.data().dptr_); }

void NormForward(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<NDArray>& inputs,
                 const std::vector<OpReqType>& requests, const std::vector<NDArray>& outputs) {
  const mxnet::TShape& shape = inputs[0].shape();
  const Common common({&inputs[0]});
  const InLayout data(inputs[0], common.layout());
  const InLayout residual(inputs[HasResidual(attrs) ? kNormInputs : 0], common.layout());
  OutLayout result(outputs[0], common.layout(), requests[0]);
  float *mean = Row(outputs[1]), *inverse = Row(outputs[2]), *gamma = Row(inputs[1]);
  const float epsilon = NumberOf(attrs, "eps", "1e-3");
  const bool is_own = context.is_train && !Flag(attrs, "use_global_stats");
  for (int64_t c = 0; c < shape[1]; ++c) {
    if (FixesGamma(attrs) && gamma[c] != 1) gamma[c] = 1;
    if (is_own) continue;
    mean[c] = Row(inputs[3])[c];
    inverse[c] = 1.0f / std::sqrt(Row(inputs[4])[c] + epsilon);
  }
  if (shape.Size() > 0)
    norm::Forward(NormLayer(attrs, shape, common.block()), data.at(), HasResidual(attrs) ? residual.at() : nullptr,
                  {mean, inverse, gamma, Row(inputs[2])}, is_own ? epsilon : -1.0f, result.at());
  result.Finish();
}

void UpdateMoving(const NodeAttrs& attrs, const float* mean, const float* inverse, int64_t channels, float* moving_mean,
                  float* moving_variance) {
  const float kept = NumberOf(attrs, "momentum", "0.9"), epsilon = NumberOf(attrs, "eps", "1e-3"), fresh = 1.0f - kept;
  for (int64_t c = 0; c < channels; ++c) {
    const float variance = 1.0f / (inverse[c] * inverse[c]) - epsilon;
    moving_mean[c] = moving_mean[c] * kept + mean[c] * fresh;
    moving_variance[c] = moving_variance[c] * kept + variance * fresh;
  }
}

/* What becomes of a gradient for each channel. */
void Deliver(const std::vector<float>& made, OpReqType request, const NDArray& to) {
  if (request == mxnet::kNullOp) return;
  float* at = Row(to);
  for (size_t c = 0; c < made.size(); ++c) at[c] = request == mxnet::kAddTo ? at[c] + made[c] : made[c];
}

/* Inputs: the gradient of the result, mean, inverse, data, gamma, beta, moving mean and variance; with a residual, the
 * result. Outputs: gradients of data, gamma, beta and the residual. */
void NormBackward(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<NDArray>& inputs,
                  const std::vector<OpReqType>& requests, const std::vector<NDArray>& outputs) {
  constexpr size_t kHead = 0, kMean = 1, kInverse = 2, kData = 3, kGamma = 4, kBeta = 5, kMoving = 6, kMade = 8;
  const mxnet::TShape& shape = inputs[kData].shape();
  const bool adds = HasResidual(attrs), is_own = context.is_train && !Flag(attrs, "use_global_stats");
  const Common common({&inputs[kData], &inputs[kHead]});
  const InLayout head(inputs[kHead], common.layout()), data(inputs[kData], common.layout());
  const InLayout made(inputs[adds ? kMade : kData], common.layout());
  std::optional<OutLayout> result, passed;
  if (requests[0] != mxnet::kNullOp) result.emplace(outputs[0], common.layout(), requests[0]);
  if (adds) passed.emplace(outputs[3], common.layout(), requests[3]);  // read for the other gradient, wanted or not
  const norm::Numbers numbers{Row(inputs[kMean]), Row(inputs[kInverse]),
                              FixesGamma(attrs) ? nullptr : Row(inputs[kGamma]), Row(inputs[kBeta])};
  std::vector<float> gamma(shape[1]), beta(shape[1]);
  if (shape.Size() > 0)
    norm::Backward(NormLayer(attrs, shape, common.block()), head.at(), data.at(), adds ? made.at() : nullptr, numbers,
                   is_own,
                   {result ? result->at() : nullptr, gamma.data(), beta.data(), passed ? passed->at() : nullptr});
  for (std::optional<OutLayout>* each : {&result, &passed})
    if (*each) (*each)->Finish();
  if (is_own)
    UpdateMoving(attrs, numbers.mean, numbers.inverse, shape[1], Row(inputs[kMoving]), Row(inputs[kMoving + 1]));
  if (FixesGamma(attrs)) std::fill(gamma.begin(), gamma.end(), 0.0f);
  Deliver(gamma, requests[1], outputs[1]);
  Deliver(beta, requests[2], outputs[2]);
}

/* Asked for, as the gradient of the residual is not where MXNet would look for its shape. */
bool NormBackwardShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const mxnet::TShape data = (*in)[3];
  if (!mxnet::shape_is_known(data)) return false;
  for (size_t i = 0; i < in->size(); ++i) {
    const bool is_image = i == 0 || i == 3 || i == 8;
    Settle(attrs, i, is_image ? data : Shaped({data[1]}), &(*in)[i]);
  }
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = i % 3 == 0 ? data : Shaped({data[1]});
  return true;
}

std::vector<NodeEntry> NormGradient(const ObjectPtr& node, const std::vector<NodeEntry>& heads) {
  std::vector<std::pair<std::string, std::string>> attrs;
  for (const char* key : {"eps", "momentum", "fix_gamma", "use_global_stats", "function", "slope", "a_min", "a_max",
                          "residual"}) {
    auto found = node->attrs.dict.find(key);
    if (found != node->attrs.dict.end()) attrs.emplace_back(*found);
  }
  ObjectPtr made = MakeNode("_backward_graphopt_batch_norm", node->attrs.name + "_backward", attrs);
  LegacyNode& backward = View(made);
  const std::vector<NodeEntry>& inputs = View(node).inputs;
  backward.inputs = {heads[0], NodeEntry(node, 1, 0), NodeEntry(node, 2, 0)};
  backward.inputs.insert(backward.inputs.end(), inputs.begin(), inputs.begin() + kNormInputs);
  const bool adds = HasResidual(node->attrs);
  if (adds) backward.inputs.emplace_back(node, 0, 0);
  std::vector<NodeEntry> gradients;
  for (uint32_t i = 0; i < 3; ++i) gradients.emplace_back(made, i, 0);
  ObjectPtr none = MakeNode("_NoGradient", "NoGradient", {});
  for (int i = 0; i < 2; ++i) gradients.emplace_back(none, 0, 0);
  if (adds) gradients.emplace_back(made, 3, 0);
  return gradients;
}

uint32_t NormBackwardInputs(const NodeAttrs& attrs) { return 3 + kNormInputs + HasResidual(attrs); }
uint32_t NormBackwardOutputs(const NodeAttrs& attrs) { return 3 + HasResidual(attrs); }

std::vector<uint32_t> NormWrites(const NodeAttrs&) { return {3, 4}; }
std::vector<uint32_t> NormBackwardWrites(const NodeAttrs&) { return {6, 7}; }

using Aliases = std::vector<std::pair<int, int>>;
Aliases NormPairs(const NodeAttrs& attrs) { return HasResidual(attrs) ? Aliases{{0, 0}, {5, 0}} : Aliases{{0, 0}}; }
/* Of both gradients the residual's is written first, and read when that of the data is made. */
Aliases NormBackwardPairs(const NodeAttrs& attrs) { return HasResidual(attrs) ? Aliases{{0, 3}} : Aliases{{0, 0}}; }

void RegisterBatchNorm() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__("graphopt_batch_norm");
  forward.get_num_inputs = LegacyFunction(&NormInputs);
  forward.set_num_outputs(3);
  SetAttribute<nnvm::FNumVisibleOutputs>(forward, "FNumVisibleOutputs", LegacyFunction(&NormVisible));
  SetAttribute<nnvm::FMutateInputs>(forward, "FMutateInputs", LegacyFunction(&NormWrites));
  SetAttribute<mxnet::FInferShape>(forward, "FInferShape", LegacyFunction(&NormShape));
  SetAttribute<nnvm::FInferType>(forward, "FInferType", LegacyFunction(&ConvolutionsType));
  SetAttribute<nnvm::FInplaceOption>(forward, "FInplaceOption", LegacyFunction(&NormPairs));
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&NormGradient));
  DescribeLayouts(forward, LegacyFunction(&NormForward));
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_batch_norm");
  backward.get_num_inputs = LegacyFunction(&NormBackwardInputs);
  backward.get_num_outputs = LegacyFunction(&NormBackwardOutputs);
  SetAttribute<mxnet::FInferShape>(backward, "FInferShape", LegacyFunction(&NormBackwardShape));
  SetAttribute<nnvm::FInferType>(backward, "FInferType", LegacyFunction(&ConvolutionsType));
  SetAttribute<nnvm::FMutateInputs>(backward, "FMutateInputs", LegacyFunction(&NormBackwardWrites));
  SetAttribute<nnvm::FInplaceOption>(backward, "FInplaceOption", LegacyFunction(&NormBackwardPairs));
  DescribeLayouts(backward, LegacyFunction(&NormBackward));
}

}  // namespace graphopt
