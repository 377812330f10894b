/*
 * MXNet's bilinear resizing and its gradient, along one axis after the other.
 *
 * MXNet computes each number from four, a pixel of all channels at a time, and enters a critical section for each number of
 * the gradient. Both axes are told apart in how it rounds, so lines that were resized along the one serve all lines
 * between them; of the gradient lines are added up first.
 */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "layouts.h"

namespace graphopt {

mxnet::FCompute plain_resizing, plain_resizing_gradient;

/* Of each pixel of the result along an axis: the first of two pixels that it is between, how far the other is, and what
 * they count. */
class ResizedAxis {
 public:
  struct Between {
    int64_t first, next;
    float of_first, of_next;
  };

  ResizedAxis(int64_t in, int64_t out, bool aligns) : pixels_(out) {
    const float scale = out < 2 ? 0.0f : aligns ? static_cast<float>(in - 1) / (out - 1) : static_cast<float>(in) / out;
    for (int64_t at = 0; at < out; ++at) {
      // Rounded as MXNet does.
      float place = aligns ? scale * at : static_cast<float>(scale * (at + 0.5) - 0.5);
      if (place < 0) place = 0;
      const int64_t first = std::min(static_cast<int64_t>(place), in - 1);
      const float part = place - first;
      pixels_[at] = {first, first < in - 1 ? 1 : 0, 1.0f - part, part};
    }
  }
  const Between& operator[](int64_t at) const { return pixels_[at]; }
  int64_t size() const { return pixels_.size(); }

 private:
  std::vector<Between> pixels_;
};

/* Planes of images of one size, and of another. */
class Resizing {
 public:
  Resizing(int64_t planes, const int64_t* in, const int64_t* out, bool aligns)
      : planes_(planes), height_(in[0]), width_(in[1]), down_(in[0], out[0], aligns), across_(in[1], out[1], aligns) {}

  void Forward(const float* from, float* to) const {
    if (IsCopy()) return static_cast<void>(std::memcpy(to, from, planes_ * height_ * width_ * sizeof(float)));
#pragma omp parallel for num_threads(Threads(Cost(), planes_))
    for (int64_t plane = 0; plane < planes_; ++plane) {
      std::vector<float> wide(height_ * across_.size());
      for (int64_t y = 0; y < height_; ++y) Widen(from + (plane * height_ + y) * width_, Line(&wide, y));
      for (int64_t y = 0; y < down_.size(); ++y) {
        const ResizedAxis::Between& lines = down_[y];
        const float *first = Line(&wide, lines.first), *next = Line(&wide, lines.first + lines.next);
        float* made = to + (plane * down_.size() + y) * across_.size();
#pragma omp simd
        for (int64_t x = 0; x < across_.size(); ++x) made[x] = lines.of_first * first[x] + lines.of_next * next[x];
      }
    }
  }

  void Backward(const float* from, float* to) const {
    if (IsCopy()) return static_cast<void>(std::memcpy(to, from, planes_ * height_ * width_ * sizeof(float)));
#pragma omp parallel for num_threads(Threads(Cost(), planes_))
    for (int64_t plane = 0; plane < planes_; ++plane) {
      std::vector<float> wide(height_ * across_.size());
      for (int64_t y = 0; y < down_.size(); ++y) {
        const ResizedAxis::Between& lines = down_[y];
        AddLine(from + (plane * down_.size() + y) * across_.size(), lines.of_first, Line(&wide, lines.first));
        AddLine(from + (plane * down_.size() + y) * across_.size(), lines.of_next, Line(&wide, lines.first + lines.next));
      }
      for (int64_t y = 0; y < height_; ++y) Narrow(Line(&wide, y), to + (plane * height_ + y) * width_);
    }
  }

 private:
  bool IsCopy() const { return height_ == down_.size() && width_ == across_.size(); }
  double Cost() const { return 0.5 * planes_ * std::max(height_, down_.size()) * std::max(width_, across_.size()); }
  float* Line(std::vector<float>* wide, int64_t y) const { return wide->data() + y * across_.size(); }

  void Widen(const float* from, float* to) const {
    for (int64_t x = 0; x < across_.size(); ++x) {
      const ResizedAxis::Between& pixels = across_[x];
      to[x] = pixels.of_first * from[pixels.first] + pixels.of_next * from[pixels.first + pixels.next];
    }
  }

  void AddLine(const float* from, float factor, float* to) const {
#pragma omp simd
    for (int64_t x = 0; x < across_.size(); ++x) to[x] += factor * from[x];
  }

  void Narrow(const float* from, float* to) const {
    std::fill(to, to + width_, 0.0f);
    for (int64_t x = 0; x < across_.size(); ++x) {
      const ResizedAxis::Between& pixels = across_[x];
      to[pixels.first] += pixels.of_first * from[x];
      to[pixels.first + pixels.next] += pixels.of_next * from[x];
    }
  }

  const int64_t planes_, height_, width_;
  const ResizedAxis down_, across_;
};

/* Of images that are resized to the size of others there are two inputs, and two gradients, of which that of the others
 * is zero. */
void ResizeOnRows(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
                  const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs, bool is_backward) {
  const TBlob &given = inputs[0], &made = outputs[0];
  const auto is_float = [](const TBlob& blob) { return blob.type_flag_ == mshadow::kFloat32 && blob.shape_.Size() > 0; };
  const auto is_written = [](OpReqType request) { return request == mxnet::kWriteTo || request == mxnet::kNullOp; };
  if (requests[0] != mxnet::kWriteTo || !std::all_of(requests.begin(), requests.end(), is_written) ||
      !std::all_of(outputs.begin(), outputs.end(), is_float) || !is_float(given) || given.ndim() != 4) {
    const mxnet::FCompute& plain = is_backward ? plain_resizing_gradient : plain_resizing;
    return plain(attrs, context, inputs, requests, outputs);
  }
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  const mxnet::TShape& before = (is_backward ? made : given).shape_;
  const mxnet::TShape& after = (is_backward ? given : made).shape_;
  const int64_t in[] = {before[2], before[3]}, out[] = {after[2], after[3]};
  const bool aligns = attrs.dict.count("align_corners") == 0 || Flag(attrs, "align_corners");
  const Resizing resizing(before[0] * before[1], in, out, aligns);
  const float* from = static_cast<const float*>(given.dptr_);
  float* to = static_cast<float*>(made.dptr_);
  is_backward ? resizing.Backward(from, to) : resizing.Forward(from, to);
  for (size_t i = 1; i < outputs.size(); ++i)
    if (requests[i] == mxnet::kWriteTo) std::memset(outputs[i].dptr_, 0, Bytes(outputs[i]));
}

void ResizingOnRows(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
                    const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  ResizeOnRows(attrs, context, inputs, requests, outputs, false);
}

/* Input: the gradient of the output. */
void ResizingGradientOnRows(const NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<TBlob>& inputs,
                            const std::vector<OpReqType>& requests, const std::vector<TBlob>& outputs) {
  ResizeOnRows(attrs, context, inputs, requests, outputs, true);
}

}  // namespace graphopt
