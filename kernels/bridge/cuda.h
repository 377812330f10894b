/*
 * Launches kernels for NVIDIA GPUs through the driver's own interface. Knows nothing of MXNet.
 */
#pragma once

#include <cstdint>
#include <vector>

namespace graphopt {
namespace cuda {

/* What an argument of a kernel is; see graphopt/kernels/cuda/plan.py. */
enum Kind { kOperand = 0, kWorkspace = 1, kNumber = 2 };

/* One launch. All arguments are 8 bytes long. */
struct Launch {
  const char* image;    // PTX
  const char* entry;    // the kernel in it
  int64_t registers;    // that a thread may take at most; 0: any
  int64_t blocks, threads_x, threads_y;
  int64_t arguments;
  const int64_t* kinds;
  const int64_t* values;  // number of an operand, offset in the workspace in bytes, or the number
};

/* Launches one after the other, and the memory that they need besides operands. Images and entries stay
 * where they are as long as the process lives: they are told apart by their addresses. */
struct Launches {
  int64_t workspace_bytes;
  int64_t count;
  const Launch* launches;
};

/* A copy of launches, with arguments of its own. */
class OwnLaunches {
 public:
  explicit OwnLaunches(const Launches& given);
  OwnLaunches(const OwnLaunches&) = delete;
  OwnLaunches& operator=(const OwnLaunches&) = delete;

  const Launches& launches() const { return launches_; }

 private:
  std::vector<int64_t> arguments_;  // of each launch kinds, then values
  std::vector<Launch> each_;
  Launches launches_;
};

/* Of a GPU, for which plans are made. */
struct Device {
  int64_t processors, major, minor;
};

/* The GPU whose context is the calling thread's; without one, `ordinal` becomes it. */
Device Current(int ordinal);

/* Puts the launches on a stream, 0 for the default one; nothing waits for them. Throws
 * std::runtime_error. */
void Run(const Launches& launches, const int64_t* operands, void* stream);

/* Has bytes zeroed on a stream. */
void Zero(int64_t address, int64_t bytes, void* stream);

}  // namespace cuda
}  // namespace graphopt
