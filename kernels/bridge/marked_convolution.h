/*
 * MXNet's Convolution and its gradient by algorithms of ours, where a node is marked for it.
 *
 * The mark is an attribute, `__algorithms__`, of what is computed how: "forward:winograd4 weight:paired". MXNet hands it on to
 * the node of the gradient; all else of the operator stays MXNet's. What is not marked, or lies otherwise than the mark
 * promises, is left to MXNet.
 */
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "blocked_arrays.h"
#include "columns.h"
#include "directions.h"

namespace graphopt {

mxnet::FComputeEx plain_convolution, plain_convolution_gradient;

/* How a direction of a node is to be computed. */
Algorithm AlgorithmOf(const NodeAttrs& attrs, const std::string& direction) {
  auto found = attrs.dict.find("__algorithms__");
  const size_t at = found == attrs.dict.end() ? std::string::npos : found->second.find(direction + ":");
  if (at == std::string::npos) return {};
  const size_t begin = at + direction.size() + 1;
  const std::string name = found->second.substr(begin, found->second.find(' ', begin) - begin);
  if (name == "winograd4") return {true, true, false};
  if (name == "paired-winograd4") return {true, true, true};
  if (name == "paired") return {true, false, true};
  if (name == "columns") return {true, false, false, true};
  return {name == "direct", false, false};
}

/* Reads an attribute of a number for each of the last `axes` of two, "(2, 2)", "[2]" or "2", as MXNet does. What it does not
 * say is `usual`; false where it says something else. */
bool ReadPair(const NodeAttrs& attrs, const char* key, int64_t usual, int axes, int64_t* pair) {
  pair[0] = pair[1] = usual;
  auto found = attrs.dict.find(key);
  if (found == attrs.dict.end()) return true;
  mxnet::TShape said;
  std::istringstream text(found->second);
  if (!(text >> said) || (said.ndim() != 0 && said.ndim() != axes)) return false;
  std::copy(said.begin(), said.end(), pair + 2 - said.ndim());
  return true;
}

/* The same of all attributes that say how a window walks. */
bool ReadWindow(const NodeAttrs& attrs, int axes, int64_t* stride, int64_t* pad, int64_t* dilation) {
  return ReadPair(attrs, "stride", 1, axes, stride) && ReadPair(attrs, "pad", 0, axes, pad) &&
         ReadPair(attrs, "dilate", 1, axes, dilation);
}

/* What a convolution is by columns; `fits`: whether it can be computed so. */
struct FoundWindows : Windows {
  bool fits = false;

  FoundWindows(const NodeAttrs& attrs, const NDArray& data, const mxnet::TShape& weight, const mxnet::TShape& made)
      : Windows{} {
    const mxnet::TShape& shape = data.shape();
    const int axes = shape.ndim() - 2;
    if ((axes != 1 && axes != 2) || weight.ndim() != axes + 2 || made.ndim() != axes + 2 || shape.Size() == 0 ||
        made.Size() == 0 || data.dtype() != mshadow::kFloat32 || weight[1] != shape[1])
      return;
    images = shape[0], channels = shape[1], filters = weight[0];
    if (!ReadWindow(attrs, axes, stride, pad, dilation)) return;
    for (int d = 0; d < 2; ++d) {
      const int axis = d + axes;  // counted from the images of one axis
      kernel[d] = d + axes > 1 ? weight[axis] : 1;
      in[d] = d + axes > 1 ? shape[axis] : 1;
      out[d] = d + axes > 1 ? made[axis] : 1;
      const int64_t reach = (kernel[d] - 1) * dilation[d];
      if (stride[d] < 1 || pad[d] < 0 || dilation[d] < 1 || (in[d] + 2 * pad[d] - reach - 1) / stride[d] + 1 != out[d])
        return;
    }
    fits = true;
  }
};

/* What the convolution of an operator is; whether there is a way of ours to compute it. */
struct Found : Geometry {
  bool fits_winograd = false, fits_pairs = false, fits_groups = false, fits_depthwise = false;

  Found(const NodeAttrs& attrs, const NDArray& data, const mxnet::TShape& weight, const mxnet::TShape& made)
      : Geometry{} {
    const mxnet::TShape& shape = data.shape();
    const int64_t lanes = blocked::BlockLanes();
    if (shape.ndim() != 4 || weight.ndim() != 4 || made.ndim() != 4 || shape.Size() == 0 || made.Size() == 0 ||
        data.dtype() != mshadow::kFloat32 || weight[2] != weight[3] || shape[1] % weight[1] ||
        shape[1] % lanes || weight[0] % lanes || shape[1] > blocked::kMostBlocks * lanes ||
        weight[0] > blocked::kMostBlocks * lanes)
      return;
    images = shape[0], channels = shape[1], filters = weight[0], kernel = weight[2], groups = channels / weight[1];
    if (!ReadWindow(attrs, 2, stride, pad, dilation)) return;
    for (int d = 0; d < 2; ++d) {
      in[d] = shape[2 + d], out[d] = made[2 + d];
      const int64_t reach = (kernel - 1) * dilation[d];
      if (pad[d] < 0 || pad[d] > reach || (in[d] + 2 * pad[d] - reach - 1) / stride[d] + 1 != out[d]) return;
    }
    const int64_t width = weight[1];
    fits_winograd = kernel == 3 && groups == 1 && HasOneStride();
    fits_pairs = kernel == 1 && groups == 1;
    const bool is_dense = dilation[0] == 1 && dilation[1] == 1;
    fits_groups = kernel == 3 && is_dense && channels == filters && width < lanes &&
                  (width == 2 || width == 4 || width == 8);
    fits_depthwise = is_dense && channels == filters && width == 1 && kernel % 2 && kernel <= 7;
  }
  bool HasOneStride() const { return stride[0] == 1 && stride[1] == 1; }
  bool Fits(const Algorithm& algorithm) const {
    return algorithm.is_winograd ? fits_winograd : algorithm.is_paired ? fits_pairs : fits_groups;
  }
  bool FitsGradientOfFilters(const Algorithm& algorithm) const {
    return Fits(algorithm) || (fits_depthwise && !algorithm.is_winograd && !algorithm.is_paired);
  }
};

/* The context of a convolution that MXNet computes. In inference it leaves filters in oneDNN's layout, and those along one
 * axis it cannot write any more then; in training it leaves them in rows. */
mxnet::OpContext KeepingRows(const mxnet::OpContext& given, const NDArray& weight) {
  mxnet::OpContext context = given;
  context.is_train |= weight.shape().ndim() == 3;
  return context;
}

bool IsWhole(const NDArray& array) { return array.byte_offset_ == 0 && !array.IsView(); }

/* Inputs: images, filters and maybe a bias. */
void ConvolutionOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<NDArray>& inputs,
                         const std::vector<OpReqType>& requests, const std::vector<NDArray>& outputs) {
  const Algorithm algorithm = AlgorithmOf(attrs, "forward");
  const auto plain = [&] {
    plain_convolution(attrs, KeepingRows(context, inputs[1]), inputs, requests, outputs);
  };
  if (!algorithm.is_ours || requests[0] != mxnet::kWriteTo || !IsWhole(outputs[0])) return plain();
  if (algorithm.is_by_columns) {
    const FoundWindows found(attrs, inputs[0], inputs[1].shape(), outputs[0].shape());
    if (!found.fits) return plain();
    mended_calls.fetch_add(1, std::memory_order_relaxed);
    const NDArray x = InRows(inputs[0]), weight = InRows(inputs[1]);
    const NDArray bias = inputs.size() > 2 ? InRows(inputs[2]) : NDArray();
    return FilterColumns(found, Floats(x), Floats(weight), inputs.size() > 2 ? Floats(bias) : nullptr,
                         WriteRows(outputs[0]));
  }
  const Found found(attrs, inputs[0], inputs[1].shape(), outputs[0].shape());
  const bool has_rows = inputs.size() < 3 || !LayoutOf(inputs[2]);
  if (!found.Fits(algorithm) || !has_rows) return plain();
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  const NDArray x = Blocked(inputs[0]), weight = InRows(inputs[1]);
  const float* bias = inputs.size() > 2 ? Floats(inputs[2]) : nullptr;
  Filter(found, algorithm, Floats(weight), false, Floats(x), WriteBlocks(outputs[0]), bias);
}

/* The same by columns, or by MXNet where a direction is not marked so. */
void ConvolutionGradientByColumns(const FoundWindows& found, const NodeAttrs& attrs, const mxnet::OpContext& context,
                                  const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                                  const std::vector<NDArray>& outputs) {
  const auto is_ours = [&](const char* direction, size_t output) {
    return AlgorithmOf(attrs, direction).is_by_columns && requests[output] == mxnet::kWriteTo &&
           IsWhole(outputs[output]);
  };
  const bool data = is_ours("data", 0), bias = requests.size() > 2;
  const bool weight = is_ours("weight", 1) && (!bias || requests[2] == mxnet::kWriteTo);
  std::vector<OpReqType> left = requests;
  if (data) left[0] = mxnet::kNullOp;
  if (weight) std::fill(left.begin() + 1, left.end(), mxnet::kNullOp);
  if (std::any_of(left.begin(), left.end(), [](OpReqType r) { return r != mxnet::kNullOp; }))
    plain_convolution_gradient(attrs, context, inputs, left, outputs);
  if (!data && !weight) return;
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  const NDArray dy = InRows(inputs[0]);
  if (weight) {
    const NDArray x = InRows(inputs[1]);
    FilterGradientColumns(found, Floats(x), Floats(dy), WriteRows(outputs[1]));
    if (bias) SumPlanes(Floats(dy), found.images, found.filters, found.Places(), WriteRows(outputs[2]));
  }
  if (data) {
    const NDArray filters = InRows(inputs[2]);
    ImageGradientColumns(found, Floats(dy), Floats(filters), WriteRows(outputs[0]));
  }
}

/* Inputs: the gradient of the output, images, filters and maybe a bias. Outputs: gradients of the latter. */
void ConvolutionGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                                 const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                                 const std::vector<NDArray>& outputs) {
  const auto plain = [&](const std::vector<OpReqType>& left) {
    plain_convolution_gradient(attrs, context, inputs, left, outputs);
  };
  if (AlgorithmOf(attrs, "data").is_by_columns || AlgorithmOf(attrs, "weight").is_by_columns) {
    const FoundWindows windows(attrs, inputs[1], inputs[2].shape(), inputs[0].shape());
    return windows.fits ? ConvolutionGradientByColumns(windows, attrs, context, inputs, requests, outputs) : plain(requests);
  }
  const Found found(attrs, inputs[1], inputs[2].shape(), inputs[0].shape());
  const auto is_ours = [&](const Algorithm& algorithm, size_t output) {
    const bool fits = output ? found.FitsGradientOfFilters(algorithm) : found.Fits(algorithm);
    return algorithm.is_ours && fits && requests[output] == mxnet::kWriteTo && IsWhole(outputs[output]);
  };
  const Algorithm of_data = AlgorithmOf(attrs, "data"), of_weight = AlgorithmOf(attrs, "weight");
  const bool data = is_ours(of_data, 0) && found.HasOneStride(), bias = requests.size() > 2;
  const bool weight = is_ours(of_weight, 1) && (!bias || requests[2] == mxnet::kWriteTo);
  if (!data && !weight) return plain(requests);
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  std::vector<OpReqType> left = requests;
  if (data) left[0] = mxnet::kNullOp;
  if (weight) std::fill(left.begin() + 1, left.end(), mxnet::kNullOp);
  if (std::any_of(left.begin(), left.end(), [](OpReqType r) { return r != mxnet::kNullOp; })) plain(left);
  const NDArray dy = Blocked(inputs[0]);
  if (weight) {
    const NDArray x = Blocked(inputs[1]);
    FilterGradient(found, of_weight, Floats(x), Floats(dy), WriteRows(outputs[1]));
    if (bias)
      SumChannels(Floats(dy), found.images, found.filters, found.out[0] * found.out[1], WriteRows(outputs[2]));
  }
  if (data) {
    const NDArray filters = InRows(inputs[2]);
    Filter(found.Turned(), of_data, Floats(filters), true, Floats(dy), WriteBlocks(outputs[0]), nullptr);
  }
}

}  // namespace graphopt
