/*
 * Images in blocked layout, and the steps of a program over them.
 *
 * Channels lie in blocks of as many as a vector has lanes, and the blocks of an image one behind the
 * other (NCHW8c or NCHW16c in the field's shorthand; Zhang, Franchetti and Low, High Performance
 * Zero-Memory Overhead Direct Convolutions, 2018). So every pixel of a block is one vector, and no
 * loop has to care for the number of channels. Around an image may be a halo of zeros, for
 * convolutions to read instead of asking where the image ends.
 */
#pragma once

#include <cstdint>
#include <vector>

namespace graphopt::blocked {

/* Channels that make a block: the lanes of the widest vector these files were compiled for. */
int64_t BlockLanes();

/*
 * Where images lie in the arena; everything counts floats. Element (image, block, y, x, lane) is at
 * at + image * image_stride + block * block_stride + y * row_stride + x * kLanes + lane. A planar one
 * has a block for each channel, and pixels are single floats.
 */
struct View {
  int64_t at, image_stride, block_stride, row_stride;
  int64_t blocks, height, width;
  int64_t halo;  // rows above and below, and pixels left and right, that are zero

  int64_t Place(int64_t image, int64_t block, int64_t y) const {
    return at + image * image_stride + block * block_stride + y * row_stride;
  }
};

enum StepKind : int64_t {
  kLoad = 0,        // a plain input becomes blocked
  kLoadPlanar = 1,  // a plain input gets a halo, scaled and shifted by channels if there are weights
  kDirect = 2,
  kWinograd = 3,
  kDepthwise = 4,   // groups narrower than a block, most often of one channel
  kPool = 5,
  kCombine = 6,     // one or two operands, added or multiplied
  kStore = 7,       // blocked becomes a plain output
  kStretch = 8,     // each pixel becomes stride_y times stride_x of them
  kShuffle = 9,     // as many pixels that were channels go to their places
};

enum ActivationKind : int64_t {
  kNone = 0,
  kRelu = 1,
  kClip = 2,
  kLeaky = 3,
  kSigmoid = 4,
  kTanh = 5,
  kSoftplus = 6,
  kTanhOfSoftplus = 7,
  kNormalBelow = 8,
  kElu = 9,
};

/* What kCombine does with its other operand; a gate has one pixel. */
enum Combination : int64_t { kSum = 0, kProduct = 1, kGate = 2 };

/* What a program does, one after the other; the fields are filled from Python in this order. */
struct Step {
  int64_t kind;
  int64_t images;
  View in, out, other;        // `other` is added before the activation
  int64_t has_other;
  int64_t array;              // which plain input or output
  int64_t weights, bias;      // which inputs, or -1
  int64_t slopes;             // of a leaky activation, one for each channel: which input, or -1
  int64_t combination;        // of kCombine
  int64_t channels, filters;  // of the whole image, not counting what fills up blocks
  int64_t groups;             // of channels that filters see; as many filters see each
  int64_t bundle;             // groups that count as one, so that it is of whole blocks
  int64_t kernel_y, kernel_x, stride_y, stride_x, dilation_y, dilation_x, pad_y, pad_x;
  int64_t is_planar;          // the image it reads is
  int64_t is_paired;          // its products are: see paired_blocks.h
  int64_t group;              // blocks of filters that a tile computes: see BestGroup
  int64_t tile;               // of Winograd: output pixels of a tile in each direction
  int64_t chunk;              // of Winograd: tiles that are transformed at a time
  int64_t scratch;            // of Winograd: where it may write
  int64_t is_average, counts_padding;  // of pooling
  // Of a deconvolution whose filters make a convolution's, or zeros; vertical, horizontal.
  int64_t turned_kernel[2], turned_stride[2], turned_pad[2];
  int64_t activation, is_gated;  // see activations.py
  double low, high;              // bounds of a clip; the slope of a leaky one or an ELU is `low`
  double scale, shift;
};
static_assert(sizeof(Step) % sizeof(int64_t) == 0, "steps are read as whole numbers");

/* A step with what it works on. */
struct Bound {
  const Step* step;
  float* arena;
  const float* weights;  // packed
  const float *bias, *slopes;  // filled up to whole blocks, or null
  const int64_t* offsets;  // of a direct convolution: see DirectOffsets
  int64_t runs;
  const float* factors = nullptr;  // of a large layer in pairs (filtering.h): what its channels are multiplied by
};

constexpr int64_t kPairedGroup = 2;   // blocks of filters that a tile of products in pairs computes
constexpr int64_t kMostBlocks = 512;  // of channels that Winograd's products sum over

inline int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Winograd's tiles along an axis. Where pixels of a window are `dilation` apart, so are those of a tile. */
inline int64_t TilesOf(int64_t size, int64_t dilation, int64_t tile) {
  return dilation * Ceil(Ceil(size, dilation), tile);
}

/*
 * A step is done in phases, each in tasks that may run side by side. Tasks of a phase must be done
 * before the next one begins.
 */
int64_t Phases(const Step& step);
int64_t Tasks(const Step& step, int64_t phase);
void RunTask(const Bound& bound, int64_t phase, int64_t task, const float* from, float* to);

/* How many blocks of filters a tile of a direct convolution or of Winograd's products computes. */
int64_t BestGroup(const Step& step);

/* One kind each; see RunTask. */
int64_t DirectTasks(const Step& step);
void DirectTask(const Bound& bound, int64_t task);
/* Where the runs of adjacent numbers are that an output sums over, from its pixel's place. */
std::vector<int64_t> DirectOffsets(const Step& step);
int64_t PairedTasks(const Step& step);
void PairedTask(const Bound& bound, int64_t task);
int64_t WinogradPhases(const Step& step);
int64_t WinogradTasks(const Step& step, int64_t phase);
void WinogradTask(const Bound& bound, int64_t phase, int64_t task);

/*
 * Floats of packed weights, and packing them from (filters, channels / groups, y, x), in tasks that may run
 * side by side and write all of them.
 */
int64_t PackedWeights(const Step& step);
int64_t PackTasks(const Step& step);
/* The filters of a convolution that a deconvolution's, (channels, filters, y, x), become. */
std::vector<float> Turned(const Step& step, int64_t filters, const float* weights);
void PackTask(const Step& step, int64_t task, const float* weights, float* packed);
/* What is left to do when all are done, in tasks of its own. */
int64_t PairTasks(const Step& step);
void PairTask(const Step& step, int64_t task, float* packed);

/*
 * One product of Winograd's: c = a times packed for `rows` pixels of `depth` blocks, whose vectors are
 * `stride` floats apart from block to block in both; perhaps added to what is there.
 */
void MultiplyBlocked(const float* a, int64_t a_stride, int64_t depth, const float* packed,
                     int64_t group, float* c, int64_t c_stride, int64_t rows, bool adds);

}  // namespace graphopt::blocked
