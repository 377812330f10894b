/*
 * The operator graphopt_convolutions: a region of convolutions and what lies between them, in blocked
 * layout; see blocked.h.
 *
 * Attributes: `spec`, what is computed, which Python turns into a program; `packed`, weights come in the
 * order in which they are read, and biases filled up to whole blocks; `like`, if given, the spec whose order
 * that is, which differs in the sizes of images. Inputs: plain images, then for
 * each convolution its weights and its bias. Outputs: plain images, and the memory it works in. It
 * is for inference: there is no gradient.
 */
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>

#include "blocked.h"
#include "recurrence_operator.h"
#include "waiting.h"

namespace graphopt {

constexpr double kPackedNs = 0.5;  // a packed number

struct Phase {
  int64_t step, number, tasks;
};

struct Convolutions {
  int64_t arena = 0;              // floats
  size_t data = 0;                // inputs that are images
  std::vector<mxnet::TShape> inputs, outputs, packed;
  std::vector<blocked::Step> steps;
  std::vector<std::vector<int64_t>> offsets;  // of each step
  std::vector<Phase> phases;
};

mxnet::TShape ReadShape(const int64_t** at) {
  mxnet::TShape shape(static_cast<int>(*(*at)++), 0);
  for (int d = 0; d < shape.ndim(); ++d) shape[d] = *(*at)++;
  return shape;
}

/* Floats of a bias, filled up to whole blocks. */
int64_t PackedBias(const blocked::Step& step) {
  return blocked::Ceil(step.filters, blocked::BlockLanes()) * blocked::BlockLanes();
}

/* Floats of slopes, filled up to whole blocks. */
int64_t PackedSlopes(const blocked::Step& step) { return step.out.blocks * blocked::BlockLanes(); }

/* Shapes of packed parameters. */
void PackShapes(Convolutions* made) {
  made->packed = made->inputs;
  for (const blocked::Step& step : made->steps) {
    if (step.slopes >= 0) made->packed[step.slopes] = Shaped({PackedSlopes(step)});
    if (step.weights >= 0) made->packed[step.weights] = Shaped({blocked::PackedWeights(step)});
    if (step.bias >= 0) made->packed[step.bias] = Shaped({PackedBias(step)});
  }
}

/* Whether the steps are the same but for the sizes of images. */
bool HasStepsOf(const Convolutions& one, const Convolutions& other) {
  auto is_same = [](const blocked::Step& a, const blocked::Step& b) {
    return a.kind == b.kind && a.weights == b.weights && a.bias == b.bias && a.slopes == b.slopes &&
           a.channels == b.channels && a.filters == b.filters && a.groups == b.groups && a.bundle == b.bundle &&
           a.tile == b.tile && a.is_planar == b.is_planar && a.is_paired == b.is_paired;
  };
  return std::equal(one.steps.begin(), one.steps.end(), other.steps.begin(), other.steps.end(), is_same);
}

/* See Program.numbers in graphopt/kernels/convolutions/plan.py. `like`, if given, is the same for images of other
 * sizes: parameters are packed as for that. */
std::unique_ptr<Convolutions> ReadConvolutions(const std::vector<int64_t>& numbers, const Convolutions* like = nullptr) {
  auto made = std::make_unique<Convolutions>();
  const int64_t* at = numbers.data();
  if (*at++ != blocked::BlockLanes()) Fail("a program of convolutions is for another processor");
  made->arena = *at++;
  made->data = *at++;
  const int64_t n_inputs = *at++, n_outputs = *at++, n_steps = *at++;
  for (int64_t i = 0; i < n_inputs; ++i) made->inputs.push_back(ReadShape(&at));
  for (int64_t i = 0; i < n_outputs; ++i) made->outputs.push_back(ReadShape(&at));
  made->steps.resize(n_steps);
  const size_t words = n_steps * sizeof(blocked::Step) / sizeof(int64_t);
  if (numbers.data() + numbers.size() - at != static_cast<ptrdiff_t>(words))
    Fail("a program of convolutions has another length than its steps");
  std::memcpy(made->steps.data(), at, words * sizeof(int64_t));
  if (like && !HasStepsOf(*made, *like)) Fail("a program of convolutions is not like that for other sizes");
  for (int64_t i = 0; i < n_steps; ++i) {
    blocked::Step& step = made->steps[i];
    if (step.kind == blocked::kDirect || step.kind == blocked::kWinograd)
      step.group = like ? like->steps[i].group : blocked::BestGroup(step);
    made->offsets.emplace_back();
    if (step.kind == blocked::kDirect) made->offsets.back() = blocked::DirectOffsets(step);
    for (int64_t phase = 0; phase < blocked::Phases(step); ++phase)
      made->phases.push_back({i, phase, blocked::Tasks(step, phase)});
  }
  PackShapes(made.get());
  return made;
}

std::unordered_map<std::string, std::unique_ptr<Convolutions>> all_convolutions;

const Convolutions& ConvolutionsBy(const std::string& spec) {
  return FindOrMake(&all_convolutions, spec, [&] { return ReadConvolutions(Told(spec, 0)); });
}

/* Programs for other sizes of images, of which there may be ever more: the last so many, by their specs. */
constexpr size_t kMostLike = 256;
std::unordered_map<std::string, std::shared_ptr<const Convolutions>> convolutions_like;
std::deque<std::string> kept_like;  // the oldest first

/* A program for other sizes than that of the spec `like`; whoever runs it holds it meanwhile. */
std::shared_ptr<const Convolutions> ConvolutionsLike(const std::string& spec, const std::string& like) {
  const std::string key = like + '\n' + spec;
  {
    std::lock_guard<std::mutex> lock(recurrences_mutex);
    const auto found = convolutions_like.find(key);
    if (found != convolutions_like.end()) return found->second;
  }
  const Convolutions& other = ConvolutionsBy(like);
  std::shared_ptr<const Convolutions> made = ReadConvolutions(Told(spec, 0), &other);  // Python may run other threads
  std::lock_guard<std::mutex> lock(recurrences_mutex);
  const auto [place, is_new] = convolutions_like.emplace(key, std::move(made));
  const std::shared_ptr<const Convolutions> kept = place->second;
  if (is_new) kept_like.push_back(key);
  if (kept_like.size() > kMostLike) {
    convolutions_like.erase(kept_like.front());
    kept_like.pop_front();
  }
  return kept;
}

std::shared_ptr<const Convolutions> ConvolutionsOf(const NodeAttrs& attrs) {
  const std::string& spec = SpecOf(attrs);
  const auto like = attrs.dict.find("like");
  if (like != attrs.dict.end()) return ConvolutionsLike(spec, like->second);
  return {std::shared_ptr<void>(), &ConvolutionsBy(spec)};  // which stays for good
}

uint32_t ConvolutionsInputs(const NodeAttrs& attrs) { return ConvolutionsOf(attrs)->inputs.size(); }
uint32_t ConvolutionsOutputs(const NodeAttrs& attrs) { return ConvolutionsOf(attrs)->outputs.size() + 1; }

bool ConvolutionsShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const auto held = ConvolutionsOf(attrs);
  const Convolutions& all = *held;
  const auto& wanted = Flag(attrs, "packed") ? all.packed : all.inputs;
  for (size_t i = 0; i < wanted.size(); ++i) Settle(attrs, i, wanted[i], &(*in)[i]);
  for (size_t i = 0; i < all.outputs.size(); ++i) (*out)[i] = all.outputs[i];
  const int64_t spare = kLineBytes / sizeof(float);  // to begin where vectors like to
  (*out)[all.outputs.size()] = Shaped({all.arena + spare});
  return true;
}

bool ConvolutionsType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  for (int& type : *in) {
    if (type == -1) type = mshadow::kFloat32;
    if (type != mshadow::kFloat32) Fail("node " + attrs.name + " computes in float32 only");
  }
  for (int& type : *out) type = mshadow::kFloat32;
  return true;
}

/* A step's slopes as it wants them; one may be for all channels. */
void PackSlopes(const Convolutions& all, const blocked::Step& step, const float* const* inputs, float* slopes) {
  const int64_t given = all.inputs[step.slopes].Size();
  const float* from = inputs[step.slopes];
  std::fill(slopes, slopes + PackedSlopes(step), given == 1 ? *from : 0.0f);
  if (given > 1) std::copy(from, from + given, slopes);
}

/* A step's weights as it wants them, from inputs to where these are to be. */
void PackStep(const Convolutions& all, const blocked::Step& step, const float* const* inputs, float* to) {
  const float* weights = inputs[step.weights];
  std::vector<float> turned;
  if (step.turned_kernel[0]) {
    turned = blocked::Turned(step, all.inputs[step.weights][1], weights);
    weights = turned.data();
  }
  const int64_t tasks = blocked::PackTasks(step), pairs = blocked::PairTasks(step);
  const int threads = Threads(kPackedNs * blocked::PackedWeights(step), tasks);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
  for (int64_t task = 0; task < tasks; ++task) blocked::PackTask(step, task, weights, to);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
  for (int64_t task = 0; task < pairs; ++task) blocked::PairTask(step, task, to);
}

/* Packs what a step has learned, but for inputs that are null; `place` tells where an input of so many floats is to be. */
template <typename Place>
void PackLearned(const Convolutions& all, const blocked::Step& step, const float* const* inputs, const Place& place) {
  auto is_given = [&](int64_t input) { return input >= 0 && inputs[input]; };
  if (is_given(step.slopes)) PackSlopes(all, step, inputs, place(step.slopes, PackedSlopes(step)));
  if (is_given(step.weights)) PackStep(all, step, inputs, place(step.weights, blocked::PackedWeights(step)));
  if (!is_given(step.bias)) return;
  float* bias = place(step.bias, PackedBias(step));
  std::fill(bias, bias + PackedBias(step), 0.0f);
  std::copy(inputs[step.bias], inputs[step.bias] + step.filters, bias);
}

/* Weights and biases as the steps want them. */
class Packed {
 public:
  Packed(const Convolutions& all, const float* const* inputs, bool is_packed)
      : arrays_(inputs, inputs + all.inputs.size()) {
    if (is_packed) return;
    for (const blocked::Step& step : all.steps)
      PackLearned(all, step, inputs, [&](int64_t input, int64_t size) { return Add(input, size); });
  }
  const float* operator[](int64_t input) const { return input < 0 ? nullptr : arrays_[input]; }

 private:
  float* Add(int64_t input, int64_t size) {
    made_.emplace_back(new float[size]);
    arrays_[input] = made_.back().get();
    return made_.back().get();
  }
  std::vector<const float*> arrays_;
  std::vector<std::unique_ptr<float[]>> made_;
};

/* Seconds that this thread was running: others on the machine do not count. */
double ProcessorTime() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Waits until `done` reaches `all`; lets others run if that takes long. */
void AwaitTasks(const std::atomic<int64_t>& done, int64_t all) {
  for (int64_t looks = 0; done.load(std::memory_order_acquire) < all; ++looks) WaitALittle(looks);
}

/*
 * Runs all phases; threads take the tasks of each as they come. A phase is over when its tasks are
 * done, not when all threads were there: one that wakes late, or that the system takes away for a
 * while, is not waited for unless it holds a task. If `seconds` is given, processor time that all
 * threads spend on every step is added to it.
 */
void RunConvolutions(const Convolutions& all, const float* const* inputs, float* const* outputs,
                     bool is_packed, float* arena, int threads, double* seconds = nullptr) {
  const Packed params(all, inputs, is_packed);
  std::vector<blocked::Bound> bound;
  for (size_t i = 0; i < all.steps.size(); ++i) {
    const blocked::Step& step = all.steps[i];
    bound.push_back({&step, arena, params[step.weights], params[step.bias], params[step.slopes], all.offsets[i].data(),
                     static_cast<int64_t>(all.offsets[i].size())});
  }
  auto next = std::make_unique<std::atomic<int64_t>[]>(all.phases.size());
  auto done = std::make_unique<std::atomic<int64_t>[]>(all.phases.size());
  for (size_t i = 0; i < all.phases.size(); ++i) next[i] = done[i] = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (size_t i = 0; i < all.phases.size(); ++i) {
    const Phase& phase = all.phases[i];
    const blocked::Step& step = all.steps[phase.step];
    const double begin = seconds ? ProcessorTime() : 0;
    const bool loads = step.kind == blocked::kLoad || step.kind == blocked::kLoadPlanar;
    const float* from = loads ? inputs[step.array] : nullptr;
    float* to = step.kind == blocked::kStore ? outputs[step.array] : nullptr;
    int64_t mine = 0;
    for (int64_t task; (task = next[i].fetch_add(1, std::memory_order_relaxed)) < phase.tasks;
         ++mine)
      blocked::RunTask(bound[phase.step], phase.number, task, from, to);
    if (seconds && mine) {
      const double spent = ProcessorTime() - begin;
#pragma omp atomic
      seconds[phase.step] += spent;
    }
    if (mine) done[i].fetch_add(mine, std::memory_order_release);
    AwaitTasks(done[i], phase.tasks);
  }
}

void PackInput(const Convolutions& all, int64_t input, const float* numbers, float* packed) {
  std::vector<const float*> inputs(all.inputs.size());
  inputs.at(input) = numbers;
  for (const blocked::Step& step : all.steps)
    PackLearned(all, step, inputs.data(), [&](int64_t, int64_t) { return packed; });
}

/*
 * Runs some times on packed parameters; `seconds` becomes the least processor time of every step, as a
 * share for each thread.
 */
void TimeConvolutions(const Convolutions& all, const float* const* inputs, float* const* outputs,
                      int threads, int times, double* seconds) {
  std::vector<float> memory(all.arena + kLineBytes);
  for (int i = 0; i < times; ++i) {
    std::vector<double> spent(all.steps.size());
    RunConvolutions(all, inputs, outputs, true, Aligned<float>(memory.data()), threads, spent.data());
    for (size_t step = 0; step < spent.size(); ++step)
      seconds[step] =
          std::min(i == 0 ? std::numeric_limits<double>::infinity() : seconds[step],
                   spent[step] / threads);
  }
}

void ConvolutionsForward(const NodeAttrs& attrs, const mxnet::OpContext&,
                         const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                         const std::vector<TBlob>& outputs) {
  const auto held = ConvolutionsOf(attrs);
  const Convolutions& all = *held;
  std::vector<const float*> from;
  for (const TBlob& blob : inputs) from.push_back(static_cast<const float*>(blob.dptr_));
  Results results;
  std::vector<float*> to;
  std::vector<std::vector<float>> unread;
  for (size_t i = 0; i < all.outputs.size(); ++i) {
    to.push_back(static_cast<float*>(results.Add(outputs[i], requests[i])));
    if (to.back()) continue;
    unread.emplace_back(all.outputs[i].Size());
    to.back() = unread.back().data();
  }
  RunConvolutions(all, from.data(), to.data(), Flag(attrs, "packed"), Aligned<float>(outputs.back().dptr_),
                 Threads(1e9, 1 << 10));
  results.Finish();
}

/* MXNet derives the backward graph of every graph; this one must not run. */
std::vector<NodeEntry> ConvolutionsGradient(const ObjectPtr& node,
                                            const std::vector<NodeEntry>& heads) {
  std::vector<std::pair<std::string, std::string>> own = {{"spec", SpecOf(node->attrs)}};
  const auto like = node->attrs.dict.find("like");
  if (like != node->attrs.dict.end()) own.push_back(*like);
  ObjectPtr made = MakeNode("_backward_graphopt_convolutions", node->attrs.name + "_backward", own);
  View(made).inputs = View(node).inputs;
  std::vector<NodeEntry> gradients;
  for (size_t i = 0; i < View(node).inputs.size(); ++i)
    gradients.emplace_back(made, static_cast<uint32_t>(i), 0);
  return gradients;
}

void ConvolutionsBackward(const NodeAttrs& attrs, const mxnet::OpContext&,
                          const std::vector<TBlob>&, const std::vector<OpReqType>&,
                          const std::vector<TBlob>&) {
  Fail("node " + attrs.name + " was optimized for inference and has no gradient");
}

void RegisterConvolutions() {
  auto registry = dmlc::Registry<nnvm::Op>::Get();
  nnvm::Op& forward = registry->__REGISTER_OR_GET__("graphopt_convolutions");
  forward.get_num_inputs = LegacyFunction(&ConvolutionsInputs);
  forward.get_num_outputs = LegacyFunction(&ConvolutionsOutputs);
  SetAttribute<mxnet::FInferShape>(forward, "FInferShape", LegacyFunction(&ConvolutionsShape));
  SetAttribute<nnvm::FInferType>(forward, "FInferType", LegacyFunction(&ConvolutionsType));
  SetAttribute<mxnet::FCompute>(forward, "FCompute<cpu>", LegacyFunction(&ConvolutionsForward));
  SetAttribute<nnvm::FGradient>(forward, "FGradient", LegacyFunction(&ConvolutionsGradient));
  nnvm::Op& backward = registry->__REGISTER_OR_GET__("_backward_graphopt_convolutions");
  backward.get_num_inputs = LegacyFunction(&ConvolutionsInputs);
  backward.get_num_outputs = LegacyFunction(&ConvolutionsInputs);
  SetAttribute<nnvm::TIsBackward>(backward, "TIsBackward", true);
  SetAttribute<mxnet::FCompute>(backward, "FCompute<cpu>", LegacyFunction(&ConvolutionsBackward));
}

}  // namespace graphopt
