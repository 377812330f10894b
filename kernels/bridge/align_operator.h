/*
 * MXNet's ROIAlign by align.h: its own loop reads one number of a channel at a time, each from another line of
 * memory. The gradient stays MXNet's.
 */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "align.h"
#include "arrays.h"
#include "layouts.h"

namespace graphopt {

mxnet::FCompute plain_align;

/* Whether a box has sizes that can be sampled; MXNet stops at those of aligned boxes that are not positive. */
bool IsBox(const align::Pooling& pooling, const float* corners) {
  if (!std::all_of(corners, corners + 4, [](float corner) { return std::abs(corner) < 1e6f; })) return false;
  return pooling.offset == 0 || (corners[2] > corners[0] && corners[3] > corners[1]);
}

/* Inputs: images, and boxes: the number of the image, and two corners. */
void AlignOnRows(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
                 const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  const mxnet::TShape &given = inputs[0].shape_, &boxes = inputs[1].shape_, &made = outputs[0].shape_;
  const auto number = [&](const char* key, const char* otherwise) {
    return std::strtof(TextOf(attrs, key, otherwise).c_str(), nullptr);
  };
  const auto plain = [&] { plain_align(attrs, context, inputs, requests, outputs); };
  const bool is_float = inputs[0].type_flag_ == mshadow::kFloat32 && inputs[1].type_flag_ == mshadow::kFloat32;
  if (!is_float || requests[0] != mxnet::kWriteTo || given.Size() == 0 || made.Size() == 0 || made.ndim() != 4 ||
      Flag(attrs, "position_sensitive"))
    return plain();
  const align::Pooling pooling{
      given[1], given[2], given[3], made[2], made[3], number("spatial_scale", "1"),
      Flag(attrs, "aligned") ? 0.5f : 0.0f, static_cast<int64_t>(number("sample_ratio", "-1"))};
  const int64_t count = boxes[0];
  const auto all = static_cast<const float*>(inputs[1].dptr_);
  for (int64_t i = 0; i < count; ++i)
    if (!IsBox(pooling, all + i * align::kColumns + 1)) return plain();
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  align::PoolBoxes(pooling, static_cast<const float*>(inputs[0].dptr_), given[0], all, count,
                   Threads(2.0 * made.Size(), count), static_cast<float*>(outputs[0].dptr_));
}

}  // namespace graphopt
