/*
 * See batch_norm.h. Sums are of 256 vectors at a time in float32, and of these in float64: the variance of each such
 * part is about its own mean, and parts are joined as in Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
 * Algorithm for Computing Sample Variances", 1979.
 */
#include "batch_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lanes_math.h"

namespace graphopt::norm {
namespace {

constexpr int64_t kPart = 256;  // vectors: what the first cache holds
constexpr int kSums = 4;        // that do not wait for each other
constexpr int64_t kNear = 4 << 20;  // bytes: what threads together may use of the last cache

template <int W>
struct Vectors {
  typedef float V __attribute__((vector_size(W * sizeof(float))));
  typedef double D __attribute__((vector_size(W * sizeof(double))));
};
template <int W>
using V = typename Vectors<W>::V;
template <int W>
using D = typename Vectors<W>::D;

template <int W>
inline V<W> Load(const float* from) {
  V<W> found;
  std::memcpy(&found, from, sizeof(found));
  return found;
}

template <int W>
inline void Store(float* to, const V<W>& given) {
  std::memcpy(to, &given, sizeof(given));
}

/* The first numbers of a vector, and zeros. */
template <int W>
inline V<W> LoadPart(const float* from, int64_t count) {
  V<W> found = {};
  std::memcpy(&found, from, count * sizeof(float));
  return found;
}

template <int W>
inline void StorePart(float* to, const V<W>& given, int64_t count) {
  std::memcpy(to, &given, count * sizeof(float));
}

/* Calls `f(i, which)` for each i, `which` of kSums sums to add to. */
template <typename F>
inline __attribute__((always_inline)) void InTurns(int64_t begin, int64_t end, const F& f) {
  static_assert(kSums == 4, "one call for each");
  for (; begin + kSums <= end; begin += kSums) f(begin, 0), f(begin + 1, 1), f(begin + 2, 2), f(begin + 3, 3);
  for (; begin < end; ++begin) f(begin, 0);
}

/* Mean and sum of squared distances from it. */
template <typename T>
struct Moments {
  double count = 0;
  T mean = {}, squares = {};

  void Join(double others, const T& their_mean, const T& their_squares) {
    const double all = count + others;
    const T apart = their_mean - mean;
    mean += apart * (others / all);
    squares += their_squares + apart * apart * (count * others / all);
    count = all;
  }
};

template <int W>
Moments<D<W>> MomentsOf(const float* from, int64_t vectors) {
  Moments<D<W>> found;
  for (int64_t n; vectors > 0; vectors -= n, from += n * W) {
    n = std::min(vectors, kPart);
    V<W> sums[kSums] = {}, squares[kSums] = {};
    InTurns(0, n, [&](int64_t i, int which) { sums[which] += Load<W>(from + i * W); });
    const V<W> mean = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * (1.0f / n);
    InTurns(0, n, [&](int64_t i, int which) {
      const V<W> apart = Load<W>(from + i * W) - mean;
      squares[which] += apart * apart;
    });
    const V<W> all = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    found.Join(n, __builtin_convertvector(mean, D<W>), __builtin_convertvector(all, D<W>));
  }
  return found;
}

/* What a vector of numbers is normalized by. */
template <int W>
struct Coefficients {
  V<W> mean, scale, shift;
};

/* How a number is computed from another one, and where gradients pass. */
template <int W, Function kFunction>
struct Rule {
  V<W> low, high, slope;

  explicit Rule(const Layer& layer) : low(V<W>{} + layer.low), high(V<W>{} + layer.high), slope(V<W>{} + layer.slope) {}

  static V<W> Sigmoid(const V<W>& z) {
    const V<W> end = V<W>{} + 87.0f;
    return 1.0f / (1.0f + blocked::Exp(z > end ? -end : z < -end ? end : -z));  // NaN stays
  }

  V<W> Of(const V<W>& z) const {
    if constexpr (kFunction == kSwish) return z * Sigmoid(z);
    if constexpr (kFunction == kHardSwish) return z < -3.0f ? V<W>{} : z > 3.0f ? z : z * (z * (1.0f / 6) + 0.5f);
    if constexpr (kFunction == kRelu) return z < 0 ? V<W>{} : z;
    if constexpr (kFunction == kLeaky) return z > 0 ? z : slope * z;
    if constexpr (kFunction == kClip) return z < low ? low : (z > high ? high : z);
    return z;
  }

  V<W> Passed(const V<W>& gradient, const V<W>& z) const {
    if constexpr (kFunction == kSwish) {
      const V<W> gate = Sigmoid(z);
      return gradient * (gate + gate * (z * (1.0f - gate)));
    }
    if constexpr (kFunction == kHardSwish)
      return z < -3.0f ? V<W>{} : z > 3.0f ? gradient : gradient * (z * (1.0f / 3) + 0.5f);
    if constexpr (kFunction == kRelu) return z > 0 ? gradient : V<W>{};
    if constexpr (kFunction == kLeaky) return z > 0 ? gradient : slope * gradient;
    if constexpr (kFunction == kClip) return z < low ? V<W>{} : (z > high ? V<W>{} : gradient);
    return gradient;
  }
};

/* The kernels of one layout: vectors are of a block's channels, or of neighbouring pixels. */
template <int W, bool kIsInRows, Function kFunction, bool kAdds>
class Kernels {
  /* What passes the function is written in backward's first pass and read in its second: for the other summand, or
   * since it takes longer to compute than to fetch. */
  static constexpr bool kStores = kAdds || kFunction == kSwish;

 public:
  explicit Kernels(const Layer& layer)
      : layer_(layer), images_(layer.images), rule_(layer), size_(images_.pixels * images_.block),
        vectors_(size_ / W), rest_(size_ % W) {}

  void Forward(const float* data, const float* residual, const Numbers& numbers, float epsilon, float* to) const {
    const int64_t width = images_.block, count = images_.count;
    const bool is_own = epsilon >= 0;
    std::vector<double> parts(is_own ? 2 * images_.channels * count : 0);
    const auto first = [&](int64_t unit, int64_t image) {
      if (is_own) Measure(data + At(unit, image), &parts[2 * width * (unit * count + image)]);
    };
    const auto between = [&](int64_t unit) {
      if (is_own) Join(&parts[2 * width * unit * count], unit, numbers, epsilon);
    };
    const auto last = [&](int64_t unit, int64_t image) {
      const int64_t at = At(unit, image);
      Normalize(data + at, kAdds ? residual + at : nullptr, CoefficientsOf(numbers, unit), to + at);
    };
    Run(kAdds ? 3 : 2, first, between, last);
  }

  void Backward(const float* gradient, const float* data, const float* made, const Numbers& numbers, bool is_own,
                const Gradients& to) const {
    const int64_t width = images_.block, count = images_.count;
    std::vector<double> parts(2 * images_.channels * count);
    std::vector<float> means(2 * images_.channels);  // of gradients, and of them times distances
    float* passed = kAdds ? to.residual : to.data;
    const auto first = [&](int64_t unit, int64_t image) {
      const int64_t at = At(unit, image);
      Sum(gradient + at, data + at, kAdds ? made + at : nullptr, CoefficientsOf(numbers, unit),
          kStores && passed ? passed + at : nullptr, &parts[2 * width * (unit * count + image)]);
    };
    const auto between = [&](int64_t unit) {
      AddUp(&parts[2 * width * unit * count], unit, numbers, is_own, to, &means[2 * width * unit]);
    };
    const auto last = [&](int64_t unit, int64_t image) {
      if (!to.data) return;
      const int64_t at = At(unit, image);
      Pass((kStores ? passed : gradient) + at, data + at, CoefficientsOf(numbers, unit), &means[2 * width * unit],
           to.data + at);
    };
    Run(kAdds ? 4 : 3, first, between, last);
  }

 private:
  int64_t At(int64_t unit, int64_t image) const { return (image * images_.units() + unit) * size_; }

  /* A unit's second pass follows its first, while the data are still near: each thread takes units, or all
   * threads the images of one. */
  template <typename First, typename Between, typename Last>
  void Run(int arrays, const First& first, const Between& between, const Last& last) const {
    const int64_t units = images_.units(), count = images_.count;
    const int threads = layer_.threads;
    const int64_t bytes = arrays * count * size_ * static_cast<int64_t>(sizeof(float));
    const bool is_even = units % threads == 0 || units >= 4 * threads;
    if (count < threads || (is_even && threads * bytes <= kNear)) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
      for (int64_t unit = 0; unit < units; ++unit) {
        for (int64_t image = 0; image < count; ++image) first(unit, image);
        between(unit);
        for (int64_t image = 0; image < count; ++image) last(unit, image);
      }
      return;
    }
#pragma omp parallel num_threads(threads)
    for (int64_t unit = 0; unit < units; ++unit) {
#pragma omp for schedule(static)
      for (int64_t image = 0; image < count; ++image) first(unit, image);
#pragma omp single
      between(unit);
#pragma omp for schedule(static) nowait
      for (int64_t image = 0; image < count; ++image) last(unit, image);
    }
  }

  /* For each channel of a unit of one image: mean and squares. */
  void Measure(const float* from, double* to) const {
    const Moments<D<W>> found = MomentsOf<W>(from, vectors_);
    if constexpr (!kIsInRows) {
      std::memcpy(to, &found.mean, sizeof(found.mean));
      std::memcpy(to + W, &found.squares, sizeof(found.squares));
      return;
    }
    Moments<double> whole;
    if (found.count > 0)
      for (int i = 0; i < W; ++i) whole.Join(found.count, found.mean[i], found.squares[i]);
    for (int64_t i = 0; i < rest_; ++i) whole.Join(1, from[vectors_ * W + i], 0);
    to[0] = whole.mean;
    to[1] = whole.squares;
  }

  void Join(const double* parts, int64_t unit, const Numbers& numbers, float epsilon) const {
    const int64_t width = images_.block;
    for (int64_t i = 0; i < width; ++i) {
      Moments<double> whole;
      for (int64_t image = 0; image < images_.count; ++image) {
        const double* part = parts + 2 * width * image + i;
        whole.Join(images_.pixels, part[0], part[width]);
      }
      numbers.mean[unit * width + i] = static_cast<float>(whole.mean);
      numbers.inverse[unit * width + i] = static_cast<float>(1 / std::sqrt(whole.squares / whole.count + epsilon));
    }
  }

  /* Numbers of a unit's channels, one for each lane. */
  V<W> Lanes(const float* numbers, int64_t unit) const {
    return kIsInRows ? V<W>{} + numbers[unit] : LoadPart<W>(numbers + unit * images_.block, images_.block);
  }

  Coefficients<W> CoefficientsOf(const Numbers& numbers, int64_t unit) const {
    const V<W> inverse = Lanes(numbers.inverse, unit);
    return {Lanes(numbers.mean, unit), numbers.gamma ? inverse * Lanes(numbers.gamma, unit) : inverse,
            Lanes(numbers.beta, unit)};
  }

  static V<W> Affine(const V<W>& x, const Coefficients<W>& by) { return (x - by.mean) * by.scale + by.shift; }

  void Normalize(const float* from, const float* residual, const Coefficients<W>& by, float* to) const {
    const auto make = [&](const V<W>& x, const V<W>& added) {
      const V<W> z = Affine(x, by);
      return rule_.Of(kAdds ? z + added : z);
    };
    for (int64_t i = 0; i < vectors_; ++i)
      Store<W>(to + i * W, make(Load<W>(from + i * W), kAdds ? Load<W>(residual + i * W) : V<W>{}));
    if (kIsInRows && rest_ > 0) {
      const int64_t i = vectors_ * W;
      const V<W> added = kAdds ? LoadPart<W>(residual + i, rest_) : V<W>{};
      StorePart<W>(to + i, make(LoadPart<W>(from + i, rest_), added), rest_);
    }
  }

  /* Of an image's unit: sums of gradients that pass the function, and of them times the distance from the mean. */
  void Sum(const float* gradient, const float* data, const float* made, const Coefficients<W>& by, float* passed,
           double* to) const {
    D<W> sums = {}, products = {};
    const auto pass = [&](const V<W>& head, const V<W>& x, const V<W>& result) {
      return rule_.Passed(head, kAdds ? result : kFunction == kNone ? x : Affine(x, by));
    };
    for (int64_t begin = 0; begin < vectors_; begin += kPart) {
      const int64_t end = std::min(begin + kPart, vectors_);
      V<W> some[kSums] = {}, times[kSums] = {};
      InTurns(begin, end, [&](int64_t i, int which) {
        const V<W> x = Load<W>(data + i * W);
        const V<W> head = pass(Load<W>(gradient + i * W), x, kAdds ? Load<W>(made + i * W) : V<W>{});
        if (kStores && passed) Store<W>(passed + i * W, head);
        some[which] += head;
        times[which] += head * (x - by.mean);
      });
      sums += __builtin_convertvector((some[0] + some[1]) + (some[2] + some[3]), D<W>);
      products += __builtin_convertvector((times[0] + times[1]) + (times[2] + times[3]), D<W>);
    }
    if constexpr (!kIsInRows) {
      std::memcpy(to, &sums, sizeof(sums));
      std::memcpy(to + W, &products, sizeof(products));
      return;
    }
    if (rest_ > 0) {  // zeros of the gradient behind it add nothing
      const int64_t i = vectors_ * W;
      const V<W> x = LoadPart<W>(data + i, rest_);
      const V<W> result = kAdds ? LoadPart<W>(made + i, rest_) : V<W>{};
      const V<W> head = pass(LoadPart<W>(gradient + i, rest_), x, result);
      if (kStores && passed) StorePart<W>(passed + i, head, rest_);
      sums += __builtin_convertvector(head, D<W>);
      products += __builtin_convertvector(head * (x - by.mean), D<W>);
    }
    to[0] = to[1] = 0;
    for (int i = 0; i < W; ++i) to[0] += sums[i], to[1] += products[i];
  }

  void AddUp(const double* parts, int64_t unit, const Numbers& numbers, bool is_own, const Gradients& to,
             float* means) const {
    const int64_t width = images_.block;
    const double all = static_cast<double>(images_.count) * images_.pixels;
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0, product = 0;
      for (int64_t image = 0; image < images_.count; ++image) {
        sum += parts[2 * width * image + i];
        product += parts[2 * width * image + width + i];
      }
      const int64_t channel = unit * width + i;
      const double inverse = numbers.inverse[channel];
      if (to.gamma) to.gamma[channel] = static_cast<float>(product * inverse);
      if (to.beta) to.beta[channel] = static_cast<float>(sum);
      means[i] = is_own ? static_cast<float>(sum / all) : 0;
      means[width + i] = is_own ? static_cast<float>(product * inverse * inverse / all) : 0;
    }
  }

  /* The gradient of an image's unit; `heads` may lie where it goes. */
  void Pass(const float* heads, const float* data, const Coefficients<W>& by, const float* means, float* to) const {
    const V<W> mean = Lanes(means, 0), product = Lanes(means + images_.block, 0);
    const auto make = [&](V<W> head, const V<W>& x) {
      if (!kStores && kFunction != kNone) head = rule_.Passed(head, Affine(x, by));
      return ((head - mean) - (x - by.mean) * product) * by.scale;
    };
    for (int64_t i = 0; i < vectors_; ++i)
      Store<W>(to + i * W, make(Load<W>(heads + i * W), Load<W>(data + i * W)));
    if (kIsInRows && rest_ > 0) {
      const int64_t i = vectors_ * W;
      StorePart<W>(to + i, make(LoadPart<W>(heads + i, rest_), LoadPart<W>(data + i, rest_)), rest_);
    }
  }

  const Layer& layer_;
  const Images& images_;
  const Rule<W, kFunction> rule_;
  const int64_t size_, vectors_, rest_;  // of a unit of one image
};

/* Calls `use` with the kernels for a layer. */
template <int W, bool kIsInRows, typename Use>
void ChooseFunction(const Layer& layer, bool adds, const Use& use) {
  if (layer.function == kRelu && adds) return use(Kernels<W, kIsInRows, kRelu, true>(layer));
  if (layer.function == kRelu) return use(Kernels<W, kIsInRows, kRelu, false>(layer));
  if (layer.function == kLeaky) return use(Kernels<W, kIsInRows, kLeaky, false>(layer));
  if (layer.function == kClip) return use(Kernels<W, kIsInRows, kClip, false>(layer));
  if (layer.function == kSwish) return use(Kernels<W, kIsInRows, kSwish, false>(layer));
  if (layer.function == kHardSwish) return use(Kernels<W, kIsInRows, kHardSwish, false>(layer));
  use(Kernels<W, kIsInRows, kNone, false>(layer));
}

template <typename Use>
void Choose(const Layer& layer, bool adds, const Use& use) {
  if (layer.images.block == 16) return ChooseFunction<16, false>(layer, adds, use);
  if (layer.images.block == 8) return ChooseFunction<8, false>(layer, adds, use);
  ChooseFunction<blocked::kLanes, true>(layer, adds, use);
}

}  // namespace

void Forward(const Layer& layer, const float* data, const float* residual, const Numbers& numbers, float epsilon,
             float* to) {
  Choose(layer, residual != nullptr,
         [&](const auto& kernels) { kernels.Forward(data, residual, numbers, epsilon, to); });
}

void Backward(const Layer& layer, const float* gradient, const float* data, const float* made, const Numbers& numbers,
              bool is_own, const Gradients& to) {
  Choose(layer, made != nullptr,
         [&](const auto& kernels) { kernels.Backward(gradient, data, made, numbers, is_own, to); });
}

}  // namespace graphopt::norm
