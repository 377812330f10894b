/*
 * Convolutions as products of their filters with columns, in rows of numbers (NCHW) and along one axis or two.
 *
 * A column has what a filter sees at one place of the output (Chellapilla, Puri and Simard, High Performance
 * Convolutional Neural Networks for Document Processing, 2006). As many as make a panel of product.h are cut, as that
 * wants its panels, multiplied and forgotten; for gradients they are cut again, or added back. It is for
 * convolutions that oneDNN has no kernels for: along one axis, or of channels and filters that are no whole blocks.
 *
 * Sums are the same by any number of threads.
 */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "cut.h"
#include "directions.h"
#include "product.h"

namespace graphopt {

/* A convolution of one group, along two axes. */
struct Windows {
  int64_t images, channels, filters, kernel[2], in[2], out[2], pad[2], stride[2], dilation[2];

  int64_t Depth() const { return channels * kernel[0] * kernel[1]; }
  int64_t Places() const { return out[0] * out[1]; }
  /* Pixels that filters see along an axis. */
  int64_t Reach(int axis) const { return (out[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1; }
  double Macs() const { return 1.0 * images * Places() * Depth() * filters; }
  /* Whether columns are adjacent numbers of the images: filters are as wide as these. */
  bool AreInPlace() const {
    return channels == 1 && kernel[1] == in[1] && out[1] == 1 && dilation[0] == 1 && dilation[1] == 1 && pad[0] == 0 &&
           pad[1] == 0;
  }
};

/* How images lie to be cut: with their padding, and pixels that one tap sees adjacent. */
struct Planes {
  int64_t high, wide, line, plane, image;  // `wide`: pixels of a line that a tap sees, `step` apart
  int64_t step;
  bool are_given;                          // as images lie anyhow

  explicit Planes(const Windows& windows) {
    are_given = windows.AreInPlace() || (windows.stride[1] == 1 && windows.pad[0] == 0 && windows.pad[1] == 0);
    step = are_given ? 1 : windows.stride[1];
    high = are_given ? windows.in[0] : windows.Reach(0);
    wide = are_given ? windows.in[1] : (windows.Reach(1) + step - 1) / step;
    line = wide * step, plane = high * line;
    image = windows.channels * plane;
  }
  /* What is added for each tap of each channel. */
  std::vector<int64_t> Taps(const Windows& windows) const {
    std::vector<int64_t> taps;
    for (int64_t channel = 0; channel < windows.channels; ++channel)
      for (int64_t y = 0; y < windows.kernel[0]; ++y)
        for (int64_t x = 0; x < windows.kernel[1]; ++x) {
          const int64_t right = x * windows.dilation[1];
          taps.push_back(channel * plane + y * windows.dilation[0] * line + right % step * wide + right / step);
        }
    return taps;
  }
};

/* Calls for each line of an image's planes: where it is in the images, -1 if it is padding, and where it lies. */
template <typename Visit>
void VisitLines(const Windows& windows, const Planes& planes, int64_t image, const Visit& visit) {
  for (int64_t channel = 0; channel < windows.channels; ++channel)
    for (int64_t y = 0; y < planes.high; ++y) {
      const int64_t given = y - windows.pad[0], at = (image * windows.channels + channel) * windows.in[0] + given;
      visit(given < 0 || given >= windows.in[0] ? -1 : at * windows.in[1],
            image * planes.image + channel * planes.plane + y * planes.line);
    }
}

/* Images with their padding. */
void LayOut(const Windows& windows, const Planes& planes, int64_t image, const float* x, float* to) {
  const int64_t step = planes.step, pad = windows.pad[1], wide = windows.in[1];
  VisitLines(windows, planes, image, [&](int64_t from, int64_t at) {
    if (from < 0) {
      std::fill_n(to + at, planes.line, 0.0f);
      return;
    }
    for (int64_t phase = 0; phase < step; ++phase) {
      float* line = to + at + phase * planes.wide;
      for (int64_t i = 0; i < planes.wide; ++i) {
        const int64_t pixel = i * step + phase - pad;
        line[i] = pixel < 0 || pixel >= wide ? 0 : x[from + pixel];
      }
    }
  });
}

/* The other way round. */
void TakeBack(const Windows& windows, const Planes& planes, int64_t image, const float* from, float* dx) {
  const int64_t step = planes.step, pad = windows.pad[1], size = windows.channels * windows.in[0] * windows.in[1];
  std::fill_n(dx + image * size, size, 0.0f);  // there may be pixels that no filter sees
  VisitLines(windows, planes, image, [&](int64_t to, int64_t at) {
    if (to < 0) return;
    for (int64_t phase = 0; phase < step; ++phase)
      for (int64_t i = 0; i < planes.wide; ++i) {
        const int64_t pixel = i * step + phase - pad;
        if (pixel >= 0 && pixel < windows.in[1]) dx[to + pixel] = from[at + phase * planes.wide + i];
      }
  });
}

/* Some places, counted through all images. */
class PlaceRange {
 public:
  PlaceRange(int64_t begin, int64_t count) : begin_(begin), count_(count) {}
  int64_t Begin() const { return begin_; }
  int64_t Count() const { return count_; }
  std::vector<cut::Run> Runs(const Windows& windows, const Planes& planes) const {
    std::vector<cut::Run> runs;
    const int64_t places = windows.Places(), wide = windows.out[1];
    for (int64_t at = 0; at < count_;) {
      const int64_t place = (begin_ + at) % places, y = place / wide, x = place % wide;
      const int64_t count = std::min(wide - x, count_ - at);
      runs.push_back({(begin_ + at) / places * planes.image + y * windows.stride[0] * planes.line + x, count, at});
      at += count;
    }
    return runs;
  }

 private:
  int64_t begin_, count_;
};

/* Images, as they are cut. */
class LaidOut {
 public:
  LaidOut(const Windows& windows, const float* x)
      : windows_(windows), planes_(windows), taps_(planes_.Taps(windows)),
        scratch_(planes_.are_given ? 0 : windows.images * planes_.image), at_(x) {
    end_ = x + windows.images * planes_.image;
    if (planes_.are_given) return;
    float* to = scratch_.data();
    at_ = to, end_ = to + windows.images * planes_.image;
    const int threads = Threads(0.5 * windows.images * planes_.image, windows.images);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t image = 0; image < windows.images; ++image) LayOut(windows, planes_, image, x, to);
  }
  void Cut(const PlaceRange& places, float* to, int64_t stride) const {
    const std::vector<cut::Run> runs = places.Runs(windows_, planes_);
    cut::Copy(at_, end_, runs.data(), runs.size(), taps_.data(), taps_.size(), to, stride);
  }

 private:
  const Windows& windows_;
  Planes planes_;
  std::vector<int64_t> taps_;
  Scratch scratch_;
  const float *at_, *end_;
};

/* What some places have of the output or its gradient, a row for each filter. */
void GatherPlaces(const Windows& windows, const PlaceRange& places, const float* from, float* to, int64_t stride) {
  const int64_t each = windows.Places();
  for (int64_t at = 0; at < places.Count();) {
    const int64_t place = (places.Begin() + at) % each, count = std::min(each - place, places.Count() - at);
    const float* source = from + (places.Begin() + at) / each * windows.filters * each + place;
    for (int64_t filter = 0; filter < windows.filters; ++filter)
      std::copy_n(source + filter * each, count, to + filter * stride + at);
    at += count;
  }
}

/* The other way round, and what is added to each filter's. */
void ScatterPlaces(const Windows& windows, const PlaceRange& places, const float* from, int64_t stride, const float* bias,
                   float* to) {
  const int64_t each = windows.Places();
  for (int64_t at = 0; at < places.Count();) {
    const int64_t place = (places.Begin() + at) % each, count = std::min(each - place, places.Count() - at);
    float* target = to + (places.Begin() + at) / each * windows.filters * each + place;
    for (int64_t filter = 0; filter < windows.filters; ++filter, target += each) {
      const float *source = from + filter * stride + at, added = bias ? bias[filter] : 0;
      for (int64_t i = 0; i < count; ++i) target[i] = source[i] + added;
    }
    at += count;
  }
}

/* Where the columns of windows that are adjacent numbers begin, and how far they are apart. */
product::Matrix ColumnsInPlace(const Windows& windows, int64_t place, const float* x) {
  const int64_t image = place / windows.Places(), y = place % windows.Places();
  return {x + (image * windows.in[0] + y * windows.stride[0]) * windows.in[1], windows.stride[0] * windows.in[1], true};
}

/* How places are divided: into panels of a product, and these so that a task has those of some images. */
class Division {
 public:
  /* most: places at a time; is_apart: no two tasks may have places of one image. */
  Division(const Windows& windows, int64_t most, bool is_apart) : most_(most) {
    const int64_t each = windows.Places(), all = windows.images * each;
    is_apart |= windows.AreInPlace();  // and then no panel has places of two images
    const int64_t group = std::max<int64_t>(1, std::min(most / each, windows.images / kTasks));
    images_ = windows.AreInPlace() ? 1 : group;
    task_ = is_apart ? images_ * each : most;
    tasks_ = (all + task_ - 1) / task_;
    all_ = all;
  }
  int64_t Tasks() const { return tasks_; }
  /* Of a task, where no two have places of one. */
  int64_t Images() const { return images_; }
  template <typename Use>
  void ForEach(int64_t task, const Use& use) const {
    const int64_t begin = task * task_, end = std::min(begin + task_, all_);
    const int64_t parts = (end - begin + most_ - 1) / most_;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = begin + part * most_;
      use(PlaceRange(first, std::min(most_, end - first)));
    }
  }

 private:
  static constexpr int64_t kTasks = 8;
  int64_t most_, images_, task_, tasks_, all_;
};

/* Memory of this thread: of one array, and another one. */
template <int kWhich>
float* RoomOf(int64_t floats) {
  static thread_local std::vector<float> kept;
  const size_t wanted = floats + kLineBytes / sizeof(float);
  if (kept.size() < wanted) kept.resize(wanted);
  return Aligned<float>(kept.data());
}

int64_t WholeVectors(int64_t count) {
  const int64_t lanes = blocked::BlockLanes();
  return (count + lanes - 1) / lanes * lanes;
}

/* Images through filters; bias: of each filter, or null. */
void FilterColumns(const Windows& windows, const float* x, const float* weights, const float* bias, float* y) {
  const Division division(windows, product::PanelWidth(), false);
  const int64_t depth = windows.Depth(), filters = windows.filters;
  const LaidOut images(windows, x);
  const int threads = Threads(0.02 * windows.Macs(), division.Tasks());
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads) if (threads > 1)
  for (int64_t task = 0; task < division.Tasks(); ++task)
    division.ForEach(task, [&](const PlaceRange& places) {
      const int64_t stride = WholeVectors(places.Count());
      float *columns = RoomOf<0>(depth * stride + cut::kSlack), *made = RoomOf<1>(filters * stride);
      if (windows.AreInPlace()) {
        product::PackMatrix(ColumnsInPlace(windows, places.Begin(), x), depth, places.Count(), columns);
      } else {
        images.Cut(places, columns, stride);
      }
      product::MultiplyPacked(filters, depth, places.Count(), {weights, depth, false}, columns, made, stride, false);
      ScatterPlaces(windows, places, made, stride, bias, y);
    });
}

/* The gradient of the images from that of the output. */
void ImageGradientColumns(const Windows& windows, const float* dy, const float* weights, float* dx) {
  const Division division(windows, product::PanelWidth(), true);
  const Planes planes(windows);
  const std::vector<int64_t> taps = planes.Taps(windows);
  const int64_t depth = windows.Depth(), filters = windows.filters, turned_floats = AlignedFloats(depth * filters);
  const int64_t own = planes.are_given ? 0 : division.Images() * planes.image;  // of a thread
  const int threads = Threads(0.02 * windows.Macs(), division.Tasks());
  Scratch scratch(turned_floats + threads * own);
  float* const turned = scratch.data();
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < depth; ++row)
      for (int64_t filter = 0; filter < filters; ++filter) turned[row * filters + filter] = weights[filter * depth + row];
    float* const mine = turned + turned_floats + omp_get_thread_num() * own;
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < division.Tasks(); ++task) {
      const int64_t first = task * division.Images(), images = std::min(division.Images(), windows.images - first);
      // Elsewhere the first image of the task lies where the first of all would.
      float* const at = planes.are_given ? dx : mine - first * planes.image;
      std::fill_n(at + first * planes.image, images * planes.image, 0.0f);
      division.ForEach(task, [&](const PlaceRange& places) {
        const int64_t stride = WholeVectors(places.Count());
        float *gradient = RoomOf<0>(filters * stride), *columns = RoomOf<1>(depth * stride + cut::kSlack);
        GatherPlaces(windows, places, dy, gradient, stride);
        if (!windows.AreInPlace()) {
          product::MultiplyPacked(depth, filters, places.Count(), {turned, filters, false}, gradient, columns, stride, false);
          const std::vector<cut::Run> runs = places.Runs(windows, planes);
          return cut::Add(columns, stride, runs.data(), runs.size(), taps.data(), depth, at);
        }
        product::Multiply(places.Count(), filters, depth, {gradient, stride, true}, {weights, depth, false}, columns,
                          depth, false);
        for (int64_t place = 0; place < places.Count(); ++place) {
          float* to = const_cast<float*>(ColumnsInPlace(windows, places.Begin() + place, at).at);
          cut::AddTo(columns + place * depth, depth, to);
        }
      });
      if (planes.are_given) continue;
      for (int64_t image = first; image < first + images; ++image) TakeBack(windows, planes, image, at, dx);
    }
  }
}

/* The gradient of the filters from images and the gradient of the output, in parts that are summed up in their order. */
void FilterGradientColumns(const Windows& windows, const float* x, const float* dy, float* gradient) {
  // Columns that stay in a cache, and sums that take no more memory than images do mostly.
  constexpr int64_t kFloats = 200000, kPlaces = 480, kParts = 8, kFewest = 2, kSums = 4 << 20;
  const int64_t depth = windows.Depth(), filters = windows.filters, size = filters * depth;
  const Division division(windows, std::clamp(kFloats / depth, product::PanelWidth(), kPlaces), false);
  const int64_t tasks = division.Tasks(), parts = std::min(tasks, std::clamp(kSums / size, kFewest, kParts));
  Scratch scratch(parts * size);
  const LaidOut images(windows, x);
  float* const sums = scratch.data();  // of each part, a row for each tap of each channel
  const int threads = Threads(0.02 * windows.Macs(), parts);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < parts; ++part) {
      bool adds = false;
      for (int64_t task = tasks * part / parts; task < tasks * (part + 1) / parts; ++task)
        division.ForEach(task, [&](const PlaceRange& places) {
          const int64_t stride = WholeVectors(places.Count()), count = places.Count();
          float *gathered = RoomOf<0>(filters * stride), *to = sums + part * size;
          GatherPlaces(windows, places, dy, gathered, stride);
          product::Matrix columns = ColumnsInPlace(windows, places.Begin(), x);
          if (!windows.AreInPlace()) {
            float* made = RoomOf<1>(depth * stride + cut::kSlack);
            images.Cut(places, made, stride);
            columns = {made, stride, false};
          }
          float* packed = product::PackedRoom(count, filters);
          product::PackMatrix({gathered, stride, true}, count, filters, packed);
          product::MultiplyPacked(depth, count, filters, columns, packed, to, filters, adds);
          adds = true;
        });
    }
#pragma omp for schedule(static)
    for (int64_t row = 0; row < depth; ++row)
      for (int64_t filter = 0; filter < filters; ++filter) {
        float sum = sums[row * filters + filter];
        for (int64_t part = 1; part < parts; ++part) sum += sums[part * size + row * filters + filter];
        gradient[filter * depth + row] = sum;
      }
  }
}

/* The sums of each channel's numbers, of an array in rows. */
void SumPlanes(const float* from, int64_t images, int64_t channels, int64_t places, float* to) {
#pragma omp parallel for num_threads(Threads(0.2 * images * channels * places, channels))
  for (int64_t channel = 0; channel < channels; ++channel) {
    double sum = 0;
    for (int64_t image = 0; image < images; ++image) {
      const float* at = from + (image * channels + channel) * places;
      float part[8] = {};
      int64_t place = 0;
      for (; place + 8 <= places; place += 8)
        for (int64_t i = 0; i < 8; ++i) part[i] += at[place + i];
      for (; place < places; ++place) part[0] += at[place];
      for (float each : part) sum += each;
    }
    to[channel] = static_cast<float>(sum);
  }
}

}  // namespace graphopt
