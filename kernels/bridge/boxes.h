/*
 * MXNet's box_nms, computed as fast as boxes can be read.
 *
 * MXNet copies and sorts all boxes that are above the threshold, and compares each of the best `topk` with each
 * other one by a parallel loop for every single box. Here the best are selected, and only they are sorted
 * and compared. Bit for bit the same comes out: boxes of equal scores are taken in their order, as by MXNet's
 * stable sort, and overlaps are rounded as MXNet rounds them.
 */
#pragma once

#include <algorithm>
#include <vector>

#include "arrays.h"

namespace mxnet {
namespace op {
/* As MXNet has it, in a header that its wheel has not; dmlc::any compares the name. */
struct BoxNMSParam {
  float overlap_thresh, valid_thresh;
  int topk, coord_start, score_index, id_index, background_id;
  bool force_suppress;
  int in_format, out_format;
};
}  // namespace op
}  // namespace mxnet

namespace graphopt {

using mxnet::op::BoxNMSParam;

mxnet::FCompute plain_box_nms;

constexpr int kCornerFormat = 0;

struct Candidate {
  float score;
  int64_t box;
  /* Whether it comes first. */
  bool operator<(const Candidate& other) const {
    return score > other.score || (score == other.score && box < other.box);
  }
};

/* What is compared of boxes, best first. */
struct Boxes {
  std::vector<float> left, top, right, bottom, area;
  std::vector<int> id, is_out;
};

/* As corners, each rounded as mxnet::op::Intersect does, and areas as mxnet::op::BoxArea. */
Boxes Gather(const BoxNMSParam& param, const float* data, int64_t width,
             const std::vector<Candidate>& best) {
  const size_t count = best.size();
  Boxes found;
  for (auto* part : {&found.left, &found.top, &found.right, &found.bottom, &found.area})
    part->resize(count);
  found.id.resize(count);
  found.is_out.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const float* box = data + best[i].box * width + param.coord_start;
    const bool corners = param.in_format == kCornerFormat;
    const float wide = corners ? box[2] - box[0] : box[2];
    const float high = corners ? box[3] - box[1] : box[3];
    const float half_w = box[2] / 2, half_h = box[3] / 2;
    found.left[i] = corners ? box[0] : box[0] - half_w;
    found.top[i] = corners ? box[1] : box[1] - half_h;
    found.right[i] = corners ? box[2] : box[0] + half_w;
    found.bottom[i] = corners ? box[3] : box[1] + half_h;
    found.area[i] = wide < 0 || high < 0 ? 0.0f : wide * high;
    const bool by_class = !param.force_suppress && param.id_index >= 0;
    found.id[i] = by_class ? static_cast<int>(data[best[i].box * width + param.id_index]) : 0;
  }
  return found;
}

/* Marks what overlaps with a better one that stays. */
__attribute__((optimize("O3", "fp-contract=off"))) void Suppress(Boxes* boxes, float most) {
  const int count = static_cast<int>(boxes->id.size());
  const float *left = boxes->left.data(), *top = boxes->top.data(), *right = boxes->right.data(),
              *bottom = boxes->bottom.data(), *area = boxes->area.data();
  const int* id = boxes->id.data();
  int* is_out = boxes->is_out.data();
  for (int better = 0; better < count; ++better) {
    if (is_out[better]) continue;
    const float l = left[better], t = top[better], r = right[better], b = bottom[better];
    const float own = area[better];
    const int kind = id[better];
    for (int i = better + 1; i < count; ++i) {
      float wide = (r < right[i] ? r : right[i]) - (l > left[i] ? l : left[i]);
      float high = (b < bottom[i] ? b : bottom[i]) - (t > top[i] ? t : top[i]);
      wide = wide > 0 ? wide : 0.0f;
      high = high > 0 ? high : 0.0f;
      const float common = wide * high;
      const float overlap = common / (own + area[i] - common);
      is_out[i] |= static_cast<int>(overlap > most) & static_cast<int>(id[i] == kind);
    }
  }
}

/* Corners to centre and extent, or back; MXNet leaves boxes that begin left of zero as they are. */
void Convert(float* box, int to) {
  if (box[0] < 0) return;
  const float a = box[0], b = box[1], c = box[2], d = box[3];
  if (to == kCornerFormat) {
    const float half_w = c / 2, half_h = d / 2;
    box[0] = a - half_w, box[1] = b - half_h, box[2] = a + half_w, box[3] = b + half_h;
  } else {
    box[0] = (a + c) / 2, box[1] = (b + d) / 2, box[2] = c - a, box[3] = d - b;
  }
}

/* A part of the boxes of one image. */
struct BoxPart {
  int64_t begin, end;
  std::vector<Candidate> found;
};

/* Finds what is above the threshold and marks all of the outputs as empty. */
void Scan(const BoxNMSParam& param, const float* data, int64_t width, BoxPart* part, float* out,
          float* record) {
  std::fill(out + part->begin * width, out + part->end * width, -1.0f);
  if (record) std::fill(record + part->begin, record + part->end, -1.0f);
  const float background = static_cast<float>(param.background_id);
  for (int64_t i = part->begin; i < part->end; ++i) {
    const float* box = data + i * width;
    if (!(box[param.score_index] > param.valid_thresh)) continue;
    if (param.id_index >= 0 && box[param.id_index] == background) continue;
    part->found.push_back({box[param.score_index], i});
  }
}

/* The best of an image's boxes, best first. */
std::vector<Candidate> Best(const BoxPart* parts, int64_t count, size_t topk) {
  std::vector<Candidate> best;
  for (int64_t p = 0; p < count; ++p)
    best.insert(best.end(), parts[p].found.begin(), parts[p].found.end());
  if (best.size() > topk) {
    std::nth_element(best.begin(), best.begin() + topk, best.end());
    best.resize(topk);
  }
  std::sort(best.begin(), best.end());
  return best;
}

void BoxNms(const NodeAttrs& attrs, const mxnet::OpContext& context,
            const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
            const std::vector<TBlob>& outputs) {
  const auto& param = dmlc::unsafe_get<BoxNMSParam>(
      reinterpret_cast<const LegacyNode*>(&attrs)->parsed);
  const mxnet::TShape& shape = inputs[0].shape_;
  const int64_t width = shape[shape.ndim() - 1], count = shape[shape.ndim() - 2];
  const int64_t images = count ? shape.Size() / width / count : 0;
  if (inputs[0].type_flag_ != mshadow::kFloat32 || shape.Size() == 0 || param.topk == 0 ||
      inputs[0].dptr_ == outputs[0].dptr_ || requests[0] != mxnet::kWriteTo ||
      requests[1] == mxnet::kAddTo)
    return plain_box_nms(attrs, context, inputs, requests, outputs);
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  auto data = static_cast<const float*>(inputs[0].dptr_);
  auto out = static_cast<float*>(outputs[0].dptr_);
  // For the gradient; inference has no use for it.
  const bool records = requests[1] != mxnet::kNullOp;
  float* record = records ? static_cast<float*>(outputs[1].dptr_) : nullptr;
  const size_t topk = param.topk < 0 ? count : std::min<int64_t>(param.topk, count);
  constexpr int64_t kBoxesOfPart = 16384;
  const int64_t pieces = (count + kBoxesOfPart - 1) / kBoxesOfPart;
  std::vector<BoxPart> parts(images * pieces);
  const int threads = Threads(2.0 * images * count, images * pieces);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t p = 0; p < images * pieces; ++p) {
    const int64_t begin = p / pieces * count, at = p % pieces * kBoxesOfPart;
    parts[p].begin = begin + at;
    parts[p].end = begin + std::min(at + kBoxesOfPart, count);
    Scan(param, data, width, &parts[p], out, record);
  }
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && images > 1)
  for (int64_t image = 0; image < images; ++image) {
    const std::vector<Candidate> best = Best(&parts[image * pieces], pieces, topk);
    Boxes boxes = Gather(param, data, width, best);
    Suppress(&boxes, param.overlap_thresh);
    int64_t at = image * count;
    for (size_t i = 0; i < best.size(); ++i) {
      if (boxes.is_out[i]) continue;
      std::copy_n(data + best[i].box * width, width, out + at * width);
      if (param.in_format != param.out_format)
        Convert(out + at * width + param.coord_start, param.out_format);
      if (record) record[at] = static_cast<float>(best[i].box);
      ++at;
    }
  }
}

}  // namespace graphopt
